"""Runs the command ``lrpe`` when called as ``python -m fairseq_lrpe``."""

from fairseq_lrpe.cli import main

main()
