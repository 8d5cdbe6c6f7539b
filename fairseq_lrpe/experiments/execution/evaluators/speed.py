"""Measurement of the speed and memory of training steps relative to those of the reference."""

import json
import shlex
from dataclasses import replace

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution.evaluators.base import Evaluator
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.methods import architecture, canonical
from fairseq_lrpe.utils.subprocesses import as_flags


class SpeedEvaluator(Evaluator):
    def evaluate(self, name):
        job = self.job
        cfg = job.cfg
        out = job.folder / f"speed-{name}.json"
        settings = {
            "batch_size": cfg.batch.total,
            "length": cfg.length,
            "layers": cfg.layers,
            "vocab_size": cfg.vocab_size,
            "rounds": cfg.rounds,
            "cpu": job.cpu,
            "json": out,
        }
        reference = replace(job, run=self.reference_run())
        models = [model_words(reference), model_words(job)]
        flags = {"seed": job.run.seed, job.precision: job.precision != "fp32"}
        command = ["python", "-m", "fairseq_lrpe", "bench", "train", *models, *as_flags(settings)]
        self.run([*command, "--", *as_flags(flags)], name)
        base, measured = json.loads(out.read_text("utf-8"))
        return {
            "relative_speed": measured["relative"],
            "milliseconds": measured["ms"],
            "relative_memory": measured["MiB"] / base["MiB"],
        }

    def reference_run(self) -> Run:
        """Returns the run of the reference, with the overrides of the command and the job's grid values."""
        job = self.job
        run = job.run
        method = canonical(job.kind.reference(job.cfg))
        grid = {key: text for key, text in run.changes if key in job.cfg.grid}
        reference = Run(run.experiment, run.attention, method, run.seed)
        return reference.changed(job.experiment.changes_for(method) | grid)


def model_words(job: Job) -> str:
    """Returns the architecture and flags of a job as one quoted word, an argument of ``lrpe bench train``."""
    arch = architecture(job.run.attention, job.cfg.model, job.run.method)
    return shlex.join([arch, *as_flags(job.train_flags)])


EVALUATOR = SpeedEvaluator
