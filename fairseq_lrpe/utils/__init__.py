"""Files, subprocesses, GPUs and command-line helpers that all packages share."""
