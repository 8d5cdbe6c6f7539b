"""Pictures: their files decoded, and what training and evaluation make of them."""
