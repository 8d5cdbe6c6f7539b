"""Measurements of finished and unfinished runs as tables, plots and an HTML report."""
