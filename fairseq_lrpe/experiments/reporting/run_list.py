"""The runs of an experiment for the HTML report: what they share is shown once, what differs in each row."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from fairseq_lrpe.experiments.execution.run_schema import METRICS, SPEEDS
from fairseq_lrpe.experiments.reporting.renderers import heading
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.experiments.reporting.settings import flat_texts

IDENTIFYING = ("experiment", "attention", "method", "seed", "changes", "started")
"""Keys of run.json that the other columns of a row show."""
RECORDED = ("evaluations", "tried", "finished")
"""Keys of evaluation.json that columns show, or the runs of trials."""

MEASURED = (*METRICS, *SPEEDS)
"""Keys of evaluations that have a column each."""
EVALUATED = ("evaluations.", "ended.", "chosen", "checkpoint")
"""Beginnings of the keys of evaluation.json, which a run has after its training."""


@dataclass
class RunList:
    """The runs of an experiment with their files' contents as text."""

    records: list[RunRecord]
    common: dict[str, str]  # what most of the runs have
    metrics: list[str]  # columns with the measurements, such as "valid perplexity"
    measured: list[list[str]]  # values of these columns of each run
    own: list[str]  # what each run has instead of the common values


def run_list(records: Collection[RunRecord]) -> RunList:
    """Separates the contents of run.json and evaluation.json into common and own values."""
    texts = [_texts(record) for record in records]
    counts = Counter(pair for found in texts for pair in found.items())
    readable = sum(1 for found in texts if found)
    common = {key: text for (key, text), count in counts.items() if 2 * count > readable}
    numbers = [_numbers(record) for record in records]
    metrics = list(dict.fromkeys(name for found in numbers for name in found))
    return RunList(
        list(records),
        common,
        metrics,
        [[found.get(name, "") for name in metrics] for found in numbers],
        [_differences(found, common) for found in texts],
    )


def _texts(record):
    """Returns {key: text} of a run's settings and of those of its evaluations."""
    settings = {key: value for key, value in record.settings.items() if key not in IDENTIFYING}
    evaluation = {key: value for key, value in record.evaluation.items() if key not in RECORDED}
    for name, measured in record.evaluation.get("evaluations", {}).items():
        texts = {key: value for key, value in measured.items() if key not in MEASURED}
        evaluation |= {f"evaluations.{name}": texts} if texts else {}
    return flat_texts(settings | evaluation) if settings else {}


def _numbers(record):
    """Returns {"EVALUATION METRIC": text} of a run's measurements."""
    found = {}
    for name, measured in record.evaluation.get("evaluations", {}).items():
        values = {heading(f"{name} {key}"): x for key, x in measured.items() if key in MEASURED}
        found |= flat_texts(values)
    return found


def _differences(texts, common):
    """Returns a run's own values, and the names of common settings that its run.json lacks."""
    parts = [f"{key}: {text}" for key, text in texts.items() if common.get(key) != text]
    if texts:
        missing = [key for key in common if key not in texts and not key.startswith(EVALUATED)]
        parts += [f"{key}: missing" for key in missing]
    return "; ".join(parts)
