"""Experiments, their runs and kinds, and tables, as the YAML files in ``configs`` define them."""
