"""Experiments: their definition, their execution with fairseq's commands, reports, and inference."""
