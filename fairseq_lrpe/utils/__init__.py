"""Helpers shared by all packages: command lines, error messages, files, subprocesses and GPUs."""
