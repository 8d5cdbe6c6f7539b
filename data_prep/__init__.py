"""Prepares published or your own data for fairseq; one module per corpus in ``corpora``."""
