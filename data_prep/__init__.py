"""Published data, or your own -> fairseq's binaries: a module per corpus, a row each in __main__."""
