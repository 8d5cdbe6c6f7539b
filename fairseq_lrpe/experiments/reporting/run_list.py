"""The list of an experiment's runs in the HTML report: common values appear once, others in each row."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import pandas as pd

from fairseq_lrpe.experiments.execution.run_schema import METRICS, SPEEDS
from fairseq_lrpe.experiments.reporting.renderers import heading
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.experiments.reporting.settings import flat_texts

IDENTIFYING = ("experiment", "attention", "method", "seed", "changes", "started")
"""Keys of run.json that the other columns of a row show."""
RECORDED = ("evaluations", "tried", "finished")
"""Keys of evaluation.json that columns show, or, for "tried", the rows of the trials."""

MEASURED = (*METRICS, *SPEEDS)
"""Metrics of evaluations; each has a column."""
EVALUATED = ("evaluations.", "ended.", "chosen", "checkpoint")
"""Beginnings of the keys of evaluation.json, a file that a run has only after its training."""


@dataclass
class RunList:
    """The runs of an experiment, and the contents of their files as text."""

    records: list[RunRecord]
    common: dict[str, str]  # what most of the runs have
    metrics: list[str]  # columns with the measurements, such as "valid perplexity"
    measured: list[list[str]]  # values of these columns of each run
    differences: list[str]  # what each run has instead of the common values


def run_list(records: Collection[RunRecord]) -> RunList:
    """Returns the list of runs, in which the common values of run.json and evaluation.json are separated."""
    texts = [_texts(record) for record in records]
    numbers = pd.DataFrame([_numbers(record) for record in records], dtype=object).fillna("")
    common = _common(texts)
    differences = []
    for run in texts:
        differences.append(_differences(run, common))
    return RunList(
        list(records),
        common,
        numbers.columns.tolist(),
        numbers.to_numpy().tolist(),
        differences,
    )


def _common(texts):
    """Returns {key: text} of the values that more than half of the readable runs have."""
    counts = Counter()
    readable = 0
    for run in texts:
        counts.update(run.items())
        readable += bool(run)
    common = {}
    for (key, text), count in counts.items():
        if 2 * count > readable:
            common[key] = text
    return common


def _texts(record):
    """Returns {key: text} of a run's settings and of the settings of its evaluations."""
    settings = _without(record.settings, IDENTIFYING)
    if not settings:
        return {}
    evaluation = _without(record.evaluation, RECORDED)
    for name, measured in record.evaluation.get("evaluations", {}).items():
        other = _without(measured, MEASURED)
        if other:
            evaluation[f"evaluations.{name}"] = other
    return flat_texts(settings | evaluation)


def _without(content, keys):
    """Returns the dictionary ``content`` without ``keys``."""
    return {key: value for key, value in content.items() if key not in keys}


def _numbers(record):
    """Returns {"EVALUATION METRIC": text} of a run's measurements."""
    values = {}
    for name, measured in record.evaluation.get("evaluations", {}).items():
        for key, value in measured.items():
            if key in MEASURED:
                values[heading(f"{name} {key}")] = value
    return flat_texts(values) if values else {}


def _differences(texts, common):
    """Returns a text with the values of a run that are not common, and the common settings that it lacks."""
    parts = []
    for key, text in texts.items():
        if common.get(key) != text:
            parts.append(f"{key}: {text}")
    if texts:
        for key in common:
            if key not in texts and not key.startswith(EVALUATED):
                parts.append(f"{key}: missing")
    return "; ".join(parts)
