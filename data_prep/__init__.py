"""Prepares published corpora and your own data for fairseq; the classes of corpora are in ``corpora``."""
