"""Corpora, which are subclasses of ``data_prep.corpus.Corpus``; ``fairseq_lrpe.data.corpora`` lists them."""
