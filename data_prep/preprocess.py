"""Runs fairseq-preprocess such that its worker processes end when it is killed."""

import os

from fairseq_cli.preprocess import cli_main

from fairseq_lrpe.utils.subprocesses import die_with_parent

if __name__ == "__main__":
    os.register_at_fork(after_in_child=die_with_parent())
    cli_main()
