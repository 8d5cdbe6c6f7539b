"""Tables whose rows have settings that a search has found best, and tables of such a search."""

import math

import pytest
from support.tiny import write_configs, write_run

from fairseq_lrpe.cli.results import RECORDED
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting import recorded_results
from fairseq_lrpe.experiments.reporting import tables as report
from fairseq_lrpe.experiments.reporting.aggregate import summarize
from fairseq_lrpe.experiments.reporting.cells import measure_cells
from fairseq_lrpe.experiments.reporting.run_record import by_run, readable
from fairseq_lrpe.utils.errors import UserError

RATE = {"train.lr": 0.01}


def write_table(configs, **settings):
    """Writes a table with NoPE and RoPE in both attentions, and a column at the scales full and mini."""
    rows = []
    for attention in ("linear", "softmax"):
        for method in ("nope", "rope"):
            rows.append({"row": method, "attention": attention, "method": method})
    column = {"experiment": "lm/big", "mini": "lm/big", "evaluation": "valid"}
    table = {"title": "Mine", "baseline": "nope", "columns": {"valid": column}, "rows": rows, **settings}
    write_configs(configs, {"tables/mine": table})


def changes_of(table):
    """Returns {(attention, row): the changes of the row's runs}."""
    return {(cell.attention, cell.row): cell.runs[0].changes for cell in table.cells}


def test_settings_of_single_rows(configs):
    """They change the runs of these rows at scale mini, and not the baseline with which a row is compared."""
    write_table(configs, mini_tuned=[{"changes": RATE, "linear": ["rope"]}])
    table = Table("mine", "mini")
    changed = (("train.lr", "0.01"),)
    assert changes_of(table) == {
        ("linear", "nope"): (),
        ("linear", "rope"): changed,
        ("softmax", "nope"): (),
        ("softmax", "rope"): (),
    }
    rope = table.cells[1]
    assert table.baseline(rope) is table.cells[0]
    assert set(changes_of(Table("mine")).values()) == {()}


def test_tables_name_the_rows_with_their_settings(configs, runs):
    tuned = [{"changes": RATE, "linear": ["rope"], "softmax": ["rope", "nope"]}]
    write_table(configs, mini_tuned=tuned)
    table = Table("mine", "mini")
    lines = list(report.table_sections(table, summarize(table, {})))
    assert "train.lr=0.01 in the rows rope (linear); nope, rope (softmax)" in lines


@pytest.mark.parametrize("tuned, message", [
    ({"changes": RATE, "linear": ["rpoe"]}, "unknown row in linear attention 'rpoe' (did you mean"),
    ({"changes": {}, "linear": ["rope"]}, "mini_tuned"),
    ({"changes": {"train.lrpe_core": "unitary"}, "linear": ["rope"]}, "is an option of the encoding lrpe"),
    ({"changes": {"data": "x"}, "linear": ["rope"]}, "data is not allowed in changes"),
])  # fmt: skip
def test_wrong_settings_of_rows(tuned, message, configs):
    write_table(configs, mini_tuned=[tuned])
    with pytest.raises(UserError) as error:
        Table("mine", "mini")
    assert message in str(error.value)


def test_seeds_of_a_scale(configs):
    write_table(configs, mini_seeds=[7])
    assert {run.seed for run in Table("mine", "mini").runs()} == {7}
    assert {run.seed for run in Table("mine").runs()} == {1, 2, 3}
    assert {run.seed for run in Table("mine", "mini", ["seeds=[5]"]).runs()} == {5}


def test_last_value_of_the_curve_is_a_metric(configs, tmp_path):
    """Lower perplexities of the validation are better, and a run without a validation has no value."""
    write_table(
        configs, columns={"loss": {"experiment": "lm/big", "evaluation": "training", "metric": "valid_ppl"}}
    )
    for method, curve in {"nope": {50: 8.5, 100: 9.25}, "rope": {}}.items():
        write_run(tmp_path / f"lm/big/linear_{method}/seed-1", curve, 1.0)
    table = Table("mine")
    measured = measure_cells(table, report.read_table_runs(table, tmp_path))
    nope, rope = table.cells[:2]
    assert nope.better == "lower"
    assert measured[id(nope)].values == {1: 9.25}
    assert measured[id(rope)].values == {}


def test_recall_has_the_learning_rates_of_its_search():
    """Each row has the rate with the lowest validation loss of seed 1.

    Until the search has measured all rows, all have 3e-3: tuned rows cannot be compared with others.
    """
    search = Table("recall_learning_rates", "mini")
    records = by_run(readable(recorded_results.read_recorded(RECORDED)))
    measured = measure_cells(search, records)
    losses = {}
    for cell in search.cells:
        values = measured[id(cell)].values
        if values:
            loss = math.inf if math.isnan(values[1]) else values[1]
            losses.setdefault((cell.attention, cell.row), {})[rate_of(cell)] = loss
    is_finished = all(len(of_row) == 3 for of_row in losses.values())
    wrong = []
    for cell in Table("recall", "mini").cells:
        of_row = losses.get((cell.attention, cell.row), {})
        best = min(of_row, key=of_row.get) if is_finished else "0.003"
        if rate_of(cell) != best:
            wrong.append((cell.attention, cell.row, of_row))
    assert not wrong


def rate_of(cell):
    return dict(cell.runs[0].changes).get("train.lr", "0.003")
