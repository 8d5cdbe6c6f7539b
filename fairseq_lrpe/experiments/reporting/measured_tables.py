"""All tables at all scales with their recorded runs, for the pages of recorded results."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from fairseq_lrpe.experiments.definition.config_files import tables
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.definition.table_spec import TableSpec
from fairseq_lrpe.experiments.reporting.aggregate import summarize
from fairseq_lrpe.experiments.reporting.run_record import RunRecord

PAPERS = ("lrpe_tmlr", "lrpe_iclr", "lfhc_gcdf", "roper")
"""Papers whose tables come first, in this order."""


@dataclass
class MeasuredTable:
    """A table at one scale."""

    table: Table
    planned: set[Run]
    recorded: set[Run]
    summary: pd.DataFrame | None  # None without recorded runs

    @property
    def counts(self) -> str:
        return f"{len(self.recorded)} of {len(self.planned)}"


def measured_tables(runs: Mapping[Run, RunRecord]) -> dict[str, dict[str, MeasuredTable]]:
    """Returns {name of a table: {scale: measured table}}, ordered by paper; small scales come first."""
    measured = {}
    for name in sorted(tables(), key=_order):
        measured[name] = {}
        for scale in TableSpec(name).scales[::-1]:
            table = Table(name, scale)
            planned = set()
            for cell in table.cells:
                planned.update(cell.runs)
            recorded = planned & runs.keys()
            summary = summarize(table, runs) if recorded else None
            measured[name][scale] = MeasuredTable(table, planned, recorded, summary)
    return measured


def _order(name):
    """Returns the sort key of a table: its paper, then its name."""
    paper = TableSpec(name).settings.paper
    return PAPERS.index(paper) if paper in PAPERS else len(PAPERS), name
