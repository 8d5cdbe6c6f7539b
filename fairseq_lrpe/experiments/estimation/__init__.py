"""Estimates of the cost of runs before they start: parameters, tokens, FLOPs, memory and hours."""
