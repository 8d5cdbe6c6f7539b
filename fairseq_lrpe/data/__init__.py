"""Corpora, layout of data folders, tokenization, pretrained weights and vectors, and image transforms.

Packages that take seconds to import are imported in the functions that need them.
"""
