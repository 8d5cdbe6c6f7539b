"""Subclasses of ``data_prep.corpus.Corpus``, one or more per corpus in ``fairseq_lrpe.data.corpora``."""
