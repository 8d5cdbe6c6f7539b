"""``python -m fairseq_lrpe`` is the command ``lrpe``."""

from fairseq_lrpe.cli import main

main()
