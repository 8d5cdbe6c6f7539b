"""Training and evaluation of runs: run folders, resuming, scheduling and progress."""
