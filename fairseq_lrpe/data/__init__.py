"""Dataset folder layout, tokenization, word vectors and image transforms."""
