"""Comparison of the processes and batches that fairseq-train reports with those that were requested."""

import re
from collections.abc import Callable

from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.utils.errors import UserError

PROCESSES = re.compile(r"training on (\d+) devices \(GPUs/TPUs\)")
LIMITS = re.compile(r"max tokens per device = (\w+) and max sentences per device = (\w+)")
ROUNDING = 0.05  # fairseq logs "bsz" and "wpb" with one decimal


class ReportedBatch:
    """Check that the processes and the total batch in fairseq's log are those that were requested.

    If they differ, UserError is raised, so that no run is recorded under settings that it does not have.

    Args:
        job: the run that is trained.
        parse: function that returns the metrics in a line of fairseq's log, or None.
    """

    def __init__(self, job: Job, parse: Callable[[str], dict | None]):
        self.batch = job.cfg.batch
        self.parse = parse
        self.processes = max(job.gpus, 1) * job.nodes
        self.last_entry = None

    def before(self, on_line: Callable[[str], object]) -> Callable[[str], object]:
        """Returns a function that checks a line and passes it to ``on_line``."""

        def check_and_pass_on(line):
            self.check(line)
            return on_line(line)

        return check_and_pass_on

    def check(self, line: str) -> None:
        processes = PROCESSES.search(line)
        limits = LIMITS.search(line)
        if processes:
            self._compare("processes", int(processes[1]), self.processes)
        elif limits:
            self._check_limits(tokens=limits[1], sequences=limits[2])
        else:
            entry = self.parse(line)
            if entry and entry["kind"] == "train_inner":
                self._check_entry(entry)
                self.last_entry = entry

    def _check_limits(self, **limits):
        unit = self.batch.unit
        other = "sequences" if unit == "tokens" else "tokens"
        self._compare(f"{unit} per process", limits[unit], str(self.batch.per_gpu))
        self._compare(f"{other} per process", limits[other], "None")

    def _check_entry(self, entry):
        """Raises UserError if the mean batch of the updates since the last entry has a wrong size.

        With --max-tokens, batches contain at most that many tokens. Batches of sequences are full, except for
        one batch of a process in each epoch and those of the last update of the epoch.
        """
        total = self.batch.total
        if self.batch.unit == "tokens":
            if "wpb" in entry and entry["wpb"] > total + ROUNDING:
                self._compare("tokens per update", entry["wpb"], f"at most {total}")
            return
        if "bsz" not in entry:
            return
        least = 0
        before = self.last_entry
        if before and before["epoch"] == entry["epoch"] and not _ends_epoch(entry):
            # After a gradient overflow in half precision, fairseq logs the same number of updates again.
            updates = max(1, entry["num_updates"] - before["num_updates"])
            least = total - (self.batch.per_gpu - 1) / updates
        if not least - ROUNDING <= entry["bsz"] <= total + ROUNDING:
            self._compare("sequences per update", entry["bsz"], total)

    def _compare(self, what, reported, expected):
        if reported != expected:
            wrong = f"fairseq-train reports {reported} {what} instead of {expected}, so the run was stopped"
            remedy = "omit flags after -- that change the processes or the batch, and remove the run's folder"
            raise UserError(f"{wrong}: {remedy}")


def _ends_epoch(entry):
    """Returns whether an entry is that of the last update of an epoch; its "update" is in units of epochs."""
    return entry["update"] >= entry["epoch"]
