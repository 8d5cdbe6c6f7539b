"""The table of methods."""

from tiny import run_here

from fairseq_lrpe.cli.methods import main
from fairseq_lrpe.methods import METHODS


def test_command_lists_every_method_with_its_flags():
    done = run_here(main)
    assert done.returncode == 0, done.stderr
    assert set(METHODS) <= set(done.stdout.split())
    assert "--encoding xpos --xpos-scale-base 512" in done.stdout  # a flag whose value is a number
