"""Inference with trained models: sampled and generated text, filled masks, and predicted labels."""
