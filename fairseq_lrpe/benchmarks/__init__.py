"""Holds the programs that time or draw the models and encodings themselves."""
