"""Training and evaluating runs: run directories, resuming, scheduling, progress."""
