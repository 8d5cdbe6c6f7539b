"""Layout of data folders, tokenization, word vectors and image transforms."""
