"""The page of findings: sentences that are computed from recorded runs."""

import math
from functools import cache

import pandas as pd
import pytest

from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting.at_a_glance import PROPERTIES, at_a_glance, machines_of_speed
from fairseq_lrpe.experiments.reporting.findings import GATED, LEAST_RANKED, Findings
from fairseq_lrpe.experiments.reporting.measured_columns import MeasuredColumn, listed
from fairseq_lrpe.experiments.reporting.measured_tables import MeasuredTable
from fairseq_lrpe.experiments.reporting.renderers import Bold

ROWS = {"NoPE": 11.0, "RoPE": 9.0, "ALiBi": 7.0, "FoX": 7.01, "LRPE (Type1)": 8.0, "NoPE with an RNN": 5.0}


@cache
def extrapolation():
    return Table("extrapolation", "mini")


class Record:
    """A finished run with the same value for every evaluation."""

    def __init__(self, run, value):
        self.run, self.measured = run, value
        self.settings = {"config": {"updates": 800, "train.decoder_embed_dim": 64}, "machine": "CPU"}

    def value(self, evaluation, metric):
        return self.measured


def records(rows, attention="linear", seeds=(1, 2, 3)):
    """Returns {run: record} of rows of extrapolation; a row's perplexities differ by 0.01 between seeds."""
    runs = {}
    for cell in extrapolation().cells:
        if cell.row in rows and cell.attention == attention:
            for run in cell.runs:
                if run.seed in seeds:
                    runs[run] = Record(run, rows[cell.row] + 0.01 * run.seed)
    return runs


def column(runs, **options):
    return MeasuredColumn(extrapolation(), "1 ×", "linear", runs, **options)


def test_the_best_rows():
    text = column(records(ROWS)).describe_best("perplexity")
    expected = "ALiBi has the lowest perplexity of 5 methods, 7.02; FoX cannot be told apart from it"
    assert text == f"{expected} (NoPE: 11.02, RoPE: 9.02)."
    assert column(records(ROWS), with_changes=True).describe_best("x").startswith("NoPE with an RNN has")


def test_rows_that_are_not_measured_completely():
    runs = records(ROWS) | records({"ALiBi": math.nan, "FoX": math.inf})
    runs = {run: record for run, record in runs.items() if (run.method, run.seed) != ("rope", 2)}
    assert set(column(runs).rows) == {"NoPE", "LRPE (Type1)"}


def test_the_direction_of_differences():
    here = column(records(ROWS))
    assert here.is_better("ALiBi", "RoPE") and not here.is_better("RoPE", "ALiBi")
    assert not here.is_better("ALiBi", "FoX") and not here.is_different("ALiBi", "FoX")
    assert here.difference("ALiBi", "RoPE").startswith("-2.00 [-2.")


def answers(runs, methods=0):
    """Returns {question: its sentences}; ``methods`` have published numbers with the order of ours."""
    ranks = [("linear", "1 ×", rank, rank) for rank in range(methods)]
    summary = pd.DataFrame(ranks, columns=["attention", "column", "paper_rank", "rank"])
    mini = MeasuredTable(extrapolation(), set(extrapolation().runs()), set(runs), summary)
    found = Findings(runs, {"extrapolation": {"mini": mini}}).all()
    return {finding.question: finding.sentences for finding in found}


def test_answers():
    found = answers(records(ROWS))
    [sentence] = found["Does LRPE beat RoPE?"]
    assert "1 of 1 types of LRPE with learned angles are better than RoPE, and 0 of 0 types" in sentence
    assert "LRPE (Type1), has 8.02 and RoPE 9.02" in sentence and "RoPE-Mixed, has no number." in sentence
    short, long = found["Which absolute positions help linear attention?"]
    assert "1 of 1 kinds" in short and "better than NoPE (11.02): NoPE with an RNN (5.02)." in long
    assert "width 64, the longest training 800 updates" in found["What has nobody measured yet?"][1]
    assert "Which methods recall what they have read?" not in found  # there are no records


def test_methods_at_a_glance():
    """The three best rows and those for comparison; the best and a row with the same digits are bold."""
    rows = {**ROWS, "xPos": 7.001, "PER": 7.5}
    measured = records(rows)
    tables = {"extrapolation": {"mini": MeasuredTable(extrapolation(), set(), set(measured), None)}}
    frame = at_a_glance(Findings(measured, tables), "linear")
    assert list(frame["method"]) == ["ALiBi", "xPos", "FoX", "RoPE", "NoPE"]
    assert frame.iloc[1, 1] == "7.02" and isinstance(frame.iloc[1, 1], Bold)
    assert frame.iloc[2, 1] == "7.03" and not isinstance(frame.iloc[2, 1], Bold)
    assert list(frame) == ["method", *(each.heading for each in PROPERTIES[:2])]
    assert at_a_glance(Findings({}, {}), "linear").empty


def test_machines_of_speed():
    measured = records(ROWS)
    table = MeasuredTable(extrapolation(), set(), set(measured), None)
    findings = Findings(measured, {"training_speed": {"mini": table}})
    assert machines_of_speed(findings) == {"CPU"}
    next(iter(measured.values())).settings["machine"] = "H200"
    assert machines_of_speed(findings) == {"CPU", "H200"}
    assert machines_of_speed(Findings({}, {})) == set()


def test_ranks():
    question = "Do the ranks of the papers' tables repeat at this scale?"
    assert question not in answers(records(ROWS), LEAST_RANKED - 1)
    [sentence] = answers(records(ROWS), LEAST_RANKED)[question]
    assert "at least 0.5 in 1 of 1 columns" in sentence and "the median is 1.00" in sentence


@pytest.mark.parametrize("row, base", GATED.items())
def test_rows_with_a_gate(row, base):
    """They are rows of the table in both attentions."""
    names = {(cell.attention, cell.row) for cell in extrapolation().cells}
    assert {(attention, name) for attention in ("linear", "softmax") for name in (row, base)} <= names


@pytest.mark.parametrize("texts, expected", [([], ""), (["a"], "a"), (["a", "b"], "a and b")])
def test_listed(texts, expected):
    assert listed(texts) == expected
    assert listed(["a", "b", "c"]) == "a, b and c"


def test_listed_rows_are_few():
    many = {cell.row: 7.0 for cell in extrapolation().cells}
    assert "; no other one can be told apart from it" in column(records(many)).describe_best("perplexity")
    many["NoPE"] = 11.0
    assert " more cannot be told apart" in column(records(many)).describe_best("perplexity")
