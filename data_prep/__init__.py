"""Prepares published corpora and your own data for fairseq; the classes of corpora are in ``corpora``.

Packages that take seconds to import are imported in the functions that need them.
"""
