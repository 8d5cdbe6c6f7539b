"""The trials of a run that chooses among settings: their records, and the best trial as the run's result."""

import json
import os
import shutil
from pathlib import Path

from fairseq_lrpe.experiments.definition.choice import best_by_score
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.run_files import read_log, write_json
from fairseq_lrpe.utils.files import atomic_file, write_atomic


class Tried:
    """The executed trials of a job; the best has the best first metric of the kind in the first evaluation.

    :meth:`add` also writes a line to log.jsonl for each trial, so that the progress of the run is known.
    """

    def __init__(self, job: Job):
        self.job = job
        self.trials: list[Job] = []
        self.evaluations: dict[str, dict] = {}  # {name of a trial: its evaluations}
        self.updates = 0  # of all trials
        self.log = ""

    def add(self, trial: Job) -> None:
        name = self.job.trial_name(trial)
        record = trial.record
        self.trials.append(trial)
        self.evaluations[name] = record["evaluations"]
        self.updates += record["ended"]["updates"] if "ended" in record else trial.updates
        self.log += _log_line({"kind": "tried", "trial": name, "num_updates": self.updates})
        write_atomic(self.job.folder / "log.jsonl", self.log)

    def best(self) -> Job:
        kind = self.job.kind
        evaluation = next(iter(kind.evaluations(self.job.cfg)))
        metric = next(iter(kind.metrics))
        scores = [measured[evaluation][metric] for measured in self.evaluations.values()]
        return self.trials[best_by_score(scores, kind.metrics[metric])]

    def outcome(self, best: Job) -> dict:
        """Returns the part of the run's record with the evaluations of its trials and of the best trial.

        If the training of the best trial ended early, its ending is included.
        """
        outcome = {"evaluations": self.evaluations[self.job.trial_name(best)], "tried": self.evaluations}
        ended = best.record.get("ended")
        if ended is not None:
            outcome["ended"] = {**ended, "updates": self.updates}
        return outcome

    def record_best(self, best: Job, outcome: dict) -> None:
        """Records ``outcome`` and the log of the best trial as those of the run, and links its checkpoint.

        The checkpoints of the other trials, and all others of the best one, are removed.
        """
        folder = self.job.folder
        checkpoint = best.checkpoint
        self._remove_checkpoints(except_for=checkpoint)
        linked = folder / "checkpoints" / checkpoint.name
        link(checkpoint, linked)
        lines = [_log_line(entry) for entry in read_log(best.folder) if entry["kind"] != "train_inner"]
        write_atomic(folder / "log.jsonl", self.log + "".join(lines))
        name = self.job.trial_name(best)
        path = str(linked.relative_to(folder))
        write_json(folder / "evaluation.json", {"chosen": name, "checkpoint": path, **outcome})

    def _remove_checkpoints(self, except_for):
        for trial in self.trials:
            for path in trial.folder.glob("checkpoints/*.pt"):
                if path != except_for:
                    path.unlink()


def link(checkpoint: Path, linked: Path) -> None:
    """Makes ``linked`` a hard link to a checkpoint, or a copy if the file system has no hard links."""
    linked.parent.mkdir(exist_ok=True)
    if linked.exists() and linked.samefile(checkpoint):  # os.replace would then not remove the temporary link
        return
    with atomic_file(linked) as part:
        part.unlink(missing_ok=True)
        try:
            os.link(checkpoint, part)
        except OSError:
            shutil.copyfile(checkpoint, part)


def _log_line(entry):
    return json.dumps(entry) + "\n"
