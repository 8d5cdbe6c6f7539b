"""Evaluators of trained models; a file in this folder contains the evaluator of the kind with its name."""

from importlib import import_module
from importlib.util import find_spec

from fairseq_lrpe.experiments.execution.evaluators.base import Evaluator
from fairseq_lrpe.experiments.execution.job import Job


def build_evaluator(job: Job) -> Evaluator:
    """Returns the evaluator of a job; only the module of the job's kind is imported."""
    module = f"{__name__}.{job.cfg.kind}"
    if find_spec(module) is None:
        return Evaluator(job)
    return import_module(module).EVALUATOR(job)
