"""fairseq tasks that fairseq has not got; each registers itself when it is imported."""
