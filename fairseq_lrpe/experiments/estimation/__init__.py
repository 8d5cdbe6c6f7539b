"""The cost of runs before they start: parameters, tokens, FLOPs, memory, disk and hours."""
