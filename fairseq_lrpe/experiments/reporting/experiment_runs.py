"""Functions that print all runs of an experiment."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.reporting import aggregate, renderers
from fairseq_lrpe.experiments.reporting.aggregate import summarize_runs
from fairseq_lrpe.experiments.reporting.omissions import changed_extensions
from fairseq_lrpe.experiments.reporting.records import read_runs, read_runs_of
from fairseq_lrpe.experiments.reporting.renderers import Section, heading
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.numbers import format_number


def read_experiment_runs(experiment: str, results: Path) -> list[RunRecord]:
    """Returns the records of all runs of an experiment, whose YAML file may be missing.

    Prints on stderr which runs have numbers of other code.

    Raises:
        UserError: if the results folder has no run of the experiment.
    """
    records = read_runs_of(experiment, results)
    if not records:
        names = dict.fromkeys(record.run.experiment for record in read_runs(results))
        existing = f"it has runs of {', '.join(names)}" if names else "it has no runs at all"
        raise UserError(f"{results} has no run of the experiment {experiment!r}: {existing}")
    for message in changed_extensions(records):
        print(f"results: {message}", file=sys.stderr)
    return records


def print_runs(records: list[RunRecord], format: str | None = None) -> None:
    if format == "csv":
        renderers.show_csv(summarize_runs(records)[aggregate.RUNS_CSV], "measured_seeds")
    else:
        renderers.show(experiment_sections(records), format)


def experiment_sections(records: list[RunRecord]) -> Iterator[str | Section]:
    """Yields the parts of the printed runs of an experiment: lines of text, and a table as a section."""
    yield f"all runs of {records[0].run.experiment}"
    yield "mean ± sample standard deviation over the seeds (number of seeds, if some are not measured)"
    lines = {}
    for run in summarize_runs(records).itertuples():
        row = {
            "attention": run.attention,
            "method": run.method,
            "changes": run.changes or "-",
            "seeds": str(run.seeds),
            "length": run.length or "-",
            "state": run.state,
        }
        line = lines.setdefault((run.attention, run.method, run.changes), row)
        if run.measured_seeds:
            number = format_number(run.mean, int(run.decimals), run.std)
            if run.measured_seeds < run.seeds:
                number += f" ({run.measured_seeds})"
            line[heading(f"{run.evaluation} {run.metric}")] = number
    yield Section("", pd.DataFrame(list(lines.values())).fillna("-"))
