"""Helpers shared by all packages: command lines, files, subprocesses, GPUs and YAML."""
