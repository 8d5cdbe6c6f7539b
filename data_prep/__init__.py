"""Raw public data -> fairseq's binaries: a shell script per corpus, and a module of its name that works."""
