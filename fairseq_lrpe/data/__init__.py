"""Corpora, layout of data folders, tokenization, pretrained weights and vectors, and image transforms."""
