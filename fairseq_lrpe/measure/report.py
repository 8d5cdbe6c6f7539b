"""Writes one page of everything that was run: ``python -m fairseq_lrpe.measure.report RESULTS``."""

from fairseq_lrpe.experiments.page import main

if __name__ == "__main__":
    main()
