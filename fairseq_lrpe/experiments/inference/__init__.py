"""Inference with trained models: predicted labels, generated text and classified images."""
