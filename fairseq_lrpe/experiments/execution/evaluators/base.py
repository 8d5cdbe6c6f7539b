"""The base class of evaluators, which run the commands that evaluate the model of a job."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.utils.files import PLUGIN, display_path
from fairseq_lrpe.utils.subprocesses import as_flags, run_command


class Evaluator:
    """Evaluator of the checkpoint of a job with fairseq-validate; subclasses use other commands.

    Args:
        job: the run to evaluate, and the machine that evaluates it.
    """

    def __init__(self, job: Job):
        self.job = job

    def evaluate(self, name: str) -> dict[str, float]:
        """Returns {metric: value} of one evaluation."""
        measured = self.validate(name)
        return {metric: float(measured[metric]) for metric in self.job.kind.metrics}

    def evaluate_all(self, names: list[str]) -> Iterator[tuple[str, dict[str, float]]]:
        """Yields (name, {metric: value}) of several evaluations; a subclass may use one process for all."""
        for name in names:
            yield name, self.evaluate(name)

    def settings(self, name: str) -> dict[str, object]:
        """Returns the settings of an evaluation."""
        return self.job.kind.evaluations(self.job.cfg)[name]

    def run(self, command: list[object], name: str) -> Path:
        """Runs a command and returns the path of its log."""
        log = self.job.folder / f"eval-{name}.log"
        log.unlink(missing_ok=True)
        run_command([str(word) for word in command], log, **self.job.command_options)
        return log

    def run_fairseq(self, name: str, program: str, split_flag: str, **flags: object) -> Path:
        """Runs a command of fairseq on the split of an evaluation and returns the path of its log."""
        cfg = self.job.cfg
        flags = {
            "user_dir": display_path(PLUGIN),
            "path": display_path(self.job.checkpoint),
            "num_workers": cfg.train.get("num_workers"),  # its processes need memory in /dev/shm
            **cfg.evaluate.flags,
            "distributed_world_size": 1,  # each of several processes would report only a part of the split
            split_flag: self.settings(name)["split"],
            "cpu": self.job.cpu,
            "log_format": "json",
            **flags,
        }
        data = [cfg.data] if cfg.data else []
        return self.run([program, *data, *as_flags(flags)], name)

    def validate(self, name: str) -> dict[str, object]:
        """Runs fairseq-validate and returns its metrics."""
        kind = self.job.kind
        flags = {"task": kind.task, **kind.validation_flags}
        log = self.run_fairseq(name, "fairseq-validate", "valid_subset", **flags)
        split = self.settings(name)["split"]
        line = re.search(rf"\| {split} \| (\{{.*\}})$", log.read_text("utf-8"), re.MULTILINE)
        metrics = json.loads(line[1])
        return {key.removeprefix(f"{split}_"): value for key, value in metrics.items()}
