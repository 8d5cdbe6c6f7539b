"""Prepares published corpora or the user's own data for fairseq; the package ``corpora`` implements them."""
