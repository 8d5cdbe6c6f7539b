"""Counts the operations that a GPU would have to start, on a CPU."""

from fairseq_lrpe.experiments.estimation.launches import Launches

__all__ = ["Launches"]
