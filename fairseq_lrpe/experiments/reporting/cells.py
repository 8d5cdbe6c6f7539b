"""The measurements of the cells of a table: values of runs, or combinations of the values of other cells."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairseq_lrpe.experiments.definition.cell import Cell
from fairseq_lrpe.experiments.definition.choice import best_by_score
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting.run_record import RunRecord


@dataclass
class Measured:
    """The measurements of a cell, and the number of seeds that are planned for it."""

    values: dict[int, float]  # {seed: value}
    planned: int
    records: list[RunRecord] = field(default_factory=list)  # started runs


def measuring_runs(cell: Cell, records: Mapping[Run, RunRecord]) -> list[Run]:
    """Returns the runs that measure a cell, one per seed: its runs, or those of the best of its ``trials``.

    The best trial has the best mean score over the seeds for which every trial is measured. For any other
    seed, a run that is not measured is returned, so that the cell has no value for this seed.
    """
    if not cell.trials:
        return cell.runs
    seeds = list(zip(*cell.trials, strict=True))  # for each seed, the runs of all trials
    scores = []
    complete = []
    for runs in seeds:
        row = _scores(runs, cell.score, records)
        scores.append(row)
        # The means of two trials can be compared only over the same seeds.
        if None not in row:
            complete.append(row)
    means = [statistics.fmean(trial) for trial in zip(*complete, strict=True)]
    _, metric = cell.score
    best = best_by_score(means, cell.kind.metrics[metric]) if means else 0
    measuring = []
    for runs, row in zip(seeds, scores, strict=True):
        trial = row.index(None) if None in row else best
        measuring.append(runs[trial])
    return measuring


def _scores(runs, score, records):
    """Returns the score of each run, or None for a run whose score is not measured."""
    scores = []
    for run in runs:
        scores.append(records[run].value(*score) if run in records else None)
    return scores


def measure(cell: Cell, records: Mapping[Run, RunRecord]) -> Measured:
    runs = {run.seed: run for run in measuring_runs(cell, records)}
    measured = Measured({}, len(runs))
    for seed, run in runs.items():
        if run in records:
            measured.records.append(records[run])
            value = records[run].value(cell.evaluation, cell.metric)
            if value is not None:
                measured.values[seed] = value
    return measured


def measure_cells(table: Table, records: Mapping[Run, RunRecord]) -> dict[int, Measured]:
    """Returns {id of a cell: its measurements} of all cells of a table."""
    measured = {}
    for cell in table.cells:
        if not cell.parts:
            measured[id(cell)] = measure(cell, records)
    # Parts are cells themselves, and may come later in the table than the cell that combines them.
    for cell in table.cells:
        if cell.parts:
            parts = [measured[id(part)] for part in cell.parts]
            measured[id(cell)] = _combine(cell, parts)
    return measured


def _combine(cell, parts):
    """Returns the mean or the best of the measurements of parts, for each seed that all parts have."""
    seeds = set(parts[0].values)
    for part in parts[1:]:
        seeds &= set(part.values)
    values = {}
    for seed in sorted(seeds):
        measured = [part.values[seed] for part in parts]
        if cell.is_best:
            values[seed] = measured[best_by_score(measured, cell.better)]
        else:
            values[seed] = statistics.fmean(measured)
    return Measured(values, min(part.planned for part in parts))
