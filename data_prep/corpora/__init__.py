"""One module per corpus."""
