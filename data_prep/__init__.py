"""Preparation of published corpora and of your own data for fairseq; ``corpora`` has the classes of corpora.

Packages that take seconds to import are imported in the functions that need them.
"""
