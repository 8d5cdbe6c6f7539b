"""Tables with published and measured numbers: statistics, formats, missing and damaged runs, errors."""

import csv
import io
import json
import math
import sys

import pandas as pd
import pytest
from omegaconf import OmegaConf
from support.tiny import run_here, write_configs, write_run

import fairseq_lrpe
from fairseq_lrpe.cli import results
from fairseq_lrpe.experiments.definition.cell import Cell
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.definition.table_settings import Row
from fairseq_lrpe.experiments.reporting import (
    aggregate,
    cells,
    column_plot,
    encoding_descriptions,
    experiment_runs,
    plots,
    renderers,
    table_parts,
)
from fairseq_lrpe.experiments.reporting import tables as report


def summary(folder, name="some_table9", scale="full"):
    table = Table(name, scale)
    return aggregate.summarize(table, report.read_table_runs(table, folder))


def entry(folder, attention, row):
    return summary(folder).set_index(["attention", "row", "column"]).loc[(attention, row, "a_valid")]


def ranks(summary, attention, column):
    cells = summary[(summary["attention"] == attention) & (summary["column"] == column)]
    cells = cells.dropna(subset="rank").set_index("row")[["paper_rank", "rank"]]
    return dict(zip(cells.index, cells.itertuples(index=False, name=None), strict=True))


def curves(name, folder):
    """Returns {(attention, row): points} of a table's lines."""
    table = Table(name)
    lines = plots.table_lines(table, report.read_table_runs(table, folder))
    return {(line.attention, line.row): line.points["mean"].to_dict() for line in lines}


def output(capsys, folder, *arguments):
    results.main(["--results", *map(str, (folder, *arguments))])
    return capsys.readouterr().out


@pytest.fixture
def choice(configs):
    """A table that chooses k of Shaw once for all seeds, of an experiment that chooses it for each seed."""
    rows = [{"row": m, "attention": "softmax", "method": m} for m in ("shaw", "xl")]
    column = {"experiment": "lm/choice", "evaluation": "valid"}
    table = {"title": "A choice", "choose_by": "mean", "columns": {"a": column}, "rows": rows}
    choose = {"train.shaw_k": [2, 4, 8]}
    write_configs(configs, {"tables/choice": table, "lm/choice": {"defaults": "lm/big", "choose": choose}})


@pytest.mark.parametrize("is_once, by", [(True, "mean"), (False, "seed")])
def test_earlier_name_of_a_choice(is_once, by, choice, configs):
    content = OmegaConf.to_container(OmegaConf.load(configs / "tables/choice.yaml"))
    del content["choose_by"]
    OmegaConf.save({**content, "choose_once": is_once}, configs / "tables/earlier.yaml")
    OmegaConf.save({**content, "choose_by": by}, configs / "tables/choice.yaml")
    assert Table("earlier").settings == Table("choice").settings
    assert Table("earlier").runs() == Table("choice").runs()


def write_trials(folder, measured):
    """Writes runs of Shaw with {k: {seed: perplexity}}."""
    for k, seeds in measured.items():
        for seed, valid in seeds.items():
            name = f"lm/choice/softmax_shaw/train.shaw_k={k}/seed-{seed}"
            write_run(folder / name, {50: 2 * valid, 100: valid}, valid)


def test_one_trial_is_chosen_for_all_seeds(choice, tmp_path, capsys):
    """Each k is the best of one seed, but their means differ."""
    table, folder = Table("choice"), tmp_path / "results"
    trials = [run for run in table.runs() if run.method == "shaw"]
    assert len(trials) == 3 * 3 and all(run.changes for run in trials) and len(table.runs()) == 3 * 3 + 3
    write_trials(folder, {2: {1: 9, 2: 30, 3: 30}, 4: {1: 20, 2: 19, 3: 21}, 8: {1: 22, 2: 29, 3: 20}})
    cell = summary(folder, "choice").iloc[0]
    assert (cell["mean"], cell["std"], cell["state"], cell["chosen"]) == (20, 1, "3", "train.shaw_k=4")
    text = output(capsys, folder, "--table", "choice")
    assert "chosen by the mean over all seeds: shaw of a train.shaw_k=4" in " ".join(text.split())
    assert curves("choice", folder) == {("softmax", "shaw"): {50: 40, 100: 20}}


def test_choice_waits_for_all_trials_of_a_seed(choice, tmp_path):
    folder = tmp_path / "results"
    write_trials(folder, {2: {1: 10, 2: 90, 3: 9}, 4: {1: 12, 2: 12}, 8: {1: 30, 2: 30}})
    cell = summary(folder, "choice").iloc[0]
    assert (cell["mean"], cell["state"], cell["chosen"]) == (12, "2 of 3", "train.shaw_k=4")
    write_trials(tmp_path / "diverged", {2: {1: float("nan")}, 4: {1: 12}, 8: {1: 30}})
    assert summary(tmp_path / "diverged", "choice").iloc[0]["mean"] == 12
    write_trials(tmp_path / "few", {2: {1: 10}, 8: {1: 30}})
    assert pd.isna(summary(tmp_path / "few", "choice").iloc[0]["mean"])


@pytest.mark.parametrize("better, expected", [("lower", {1: 3.0, 2: 4.0}), ("higher", {1: 5.0, 2: 6.0})])
def test_best_of_columns_is_taken_per_seed(better, expected):
    parts = [cells.Measured(of, 3) for of in ({1: 3.0, 2: 6.0, 3: 9.0}, {1: 5.0, 2: 4.0})]
    cell = Cell("softmax", "XL", "best", better=better, is_best=True)
    assert cells._combine(cell, parts).values == expected


def legends(figure):
    """Returns {title of a panel: texts of its legend}."""
    panels = {ax.get_title(): ax.get_legend().get_texts() for ax in figure.axes}
    return {title: [text.get_text() for text in texts] for title, texts in panels.items()}


def test_plot_of_columns_separates_kinds_of_many_rows(runs, tmp_path, monkeypatch):
    rows = [("linear", "Base"), ("softmax", "Base"), ("linear", "RoPE"), ("linear", "Type1")]
    first = summary(runs)
    measured = pd.concat([first, first.assign(column="a second column")])
    kinds = dict(zip([*rows, ("softmax", "RoPE")], ["absolute"] * 2 + ["relative"] * 3, strict=True))
    named = legends(column_plot.plot_columns("a title", measured, tmp_path / "columns.png", kinds))
    assert named["linear attention"] == ["95.00  RoPE", "96.00  Type1", "102.00  Base"] and len(named) == 2
    monkeypatch.setattr(column_plot, "MANY_ROWS", 2)
    named = legends(column_plot.plot_columns("a title", measured, tmp_path / "columns.png", kinds))
    assert list(named) == [
        f"{kind}: {x} attention" for kind in ("absolute", "relative") for x in ("linear", "softmax")
    ]
    assert named["relative: linear attention"] == ["95.00  RoPE", "96.00  Type1"]
    assert named["absolute: linear attention"] == ["102.00  Base"]


@pytest.mark.parametrize("method, changes, kind", [
    ("nope", {}, "none"),
    ("base", {}, "absolute"),
    ("rope", {}, "relative, in q and k"),
    ("t5", {}, "relative, in scores"),
    ("tupe_a", {}, "absolute and relative"),
    ("alibi", {}, "decay"),
    ("fox_rope", {}, "contextual"),
    ("cope", {}, "contextual"),
    ("nope", {"train.token_positions": "rnn"}, "token positions"),
])  # fmt: skip
def test_kinds_of_encodings(method, changes, kind):
    assert (
        encoding_descriptions.row_kind(Row(row="x", attention="softmax", method=method, changes=changes))
        == kind
    )


def test_ranks_where_higher_is_better(runs):
    table = Table("some_table9")
    for cell in table.cells:
        cell.better = "higher"
    found = aggregate.summarize(table, report.read_table_runs(table, runs))
    assert ranks(found, "linear", "a_valid") == {"Base": (1, 1), "RoPE": (2, 3), "Type1": (3, 2)}


def test_numbers_as_data_frames(runs):
    everything = fairseq_lrpe.load_results(runs)
    assert len(everything) == 2 * 11 + 1  # bits and perplexity, and a run that is not finished
    found = everything.query("method == 'rope' and attention == 'linear' and metric == 'perplexity'")
    assert list(found["value"]) == [92, 95, 98] and list(found["seed"]) == [1, 2, 3]
    published = fairseq_lrpe.published()
    assert len(published) == 2 * 6 + 11 and set(published["paper"]) == {"paper"}
    found = published.query("row == 'Type1' and attention == 'linear' and column == 'a_valid'")
    [number] = found.itertuples()
    assert (number.mean, number.std, number.better) == (8.0, 0.1, "lower")


def test_damaged_run_counts_as_missing(runs, capsys):
    folder = runs / "lm/big/linear_base/seed-2"
    (folder / "run.json").write_text("{")
    assert entry(runs, "linear", "Base")["state"] == "2 of 3"
    assert entry(runs, "linear", "RoPE")["common_seeds"] == 2
    [line] = set(capsys.readouterr().err.strip().splitlines())
    assert line.startswith(f"results: numbers of {folder} are not shown: the files cannot be read (")


def test_numbers_with_other_settings_are_omitted(runs, capsys):
    """A table has no numbers of runs that another command or version trained or evaluated differently."""
    for seed, changes in ((1, {"starts_from": "own.pt"}), (2, {"train": {"lr": 9}})):
        path = runs / f"lm/big/linear_base/seed-{seed}/run.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "config": content["config"] | changes}))
    for seed in (1, 3):
        path = runs / f"lm/big/linear_rope/seed-{seed}/evaluation.json"
        path.write_text(path.read_text().replace('"split": "valid"', '"split": "valid", "context_window": 9'))
    assert entry(runs, "linear", "Base")["state"] == "1 of 3"
    assert entry(runs, "linear", "RoPE")["state"] == "1 of 3"
    lines = set(capsys.readouterr().err.strip().splitlines())
    assert sorted(line.partition(" (")[0] for line in lines) == [
        f"results: numbers of {runs}/lm/big/linear_base/seed-1 are not shown: trained with other settings",
        f"results: numbers of {runs}/lm/big/linear_base/seed-2 are not shown: trained with other settings",
        f"results: numbers of {runs}/lm/big/linear_rope/seed-1 and 1 more runs are not shown: "
        "evaluated with other settings",
    ]
    for text in ("starts_from was own.pt, now None", "train.lr was 9, ", "valid.context_window was 9, "):
        assert any(text in line for line in lines), (text, lines)
    text = output(capsys, runs, "--table", "some_table9", "evaluate.flags={context_window: 9}")
    assert "| linear | RoPE | 9.00 | 95.00 ± 4.24 (2 of 3) |" in text


def test_diverged_run_has_no_rank(runs, capsys):
    write_run(runs / "lm/big/linear_per/seed-1", {100: float("nan")}, float("nan"))
    write_run(runs / "lm/big/linear_per/seed-2", {100: 90}, 90)
    assert "PER" not in ranks(summary(runs), "linear", "a_valid")
    assert ("linear", "PER") not in curves("some_table9", runs)
    text = output(capsys, runs, "--table", "some_table9")
    assert "| linear | PER | 9.50 | diverged (2 of 3) | 7.00 | - |" in text


def test_markdown(runs, capsys):
    text = output(capsys, runs, "--table", "some_table9")  # not on a terminal
    assert "measured on lm/big (100 updates)" in text and "paper: Someone (2020), table9" in text
    assert [line for line in text.splitlines() if line.startswith(("| attention", "| linear"))] == [
        "| attention | method | a valid (paper) | a valid (measured) | b test (paper) | b test (measured) |",
        "| linear | Base | 10.00 | 102.00 ± 2.00 (3) | 7.00 | - |",
        "| linear | RoPE | 9.00 | **95.00 ± 3.00 (3)** | 7.00 | - |",
        "| linear | Type1 | **8.00 ± 0.10** | 96.00 (1 of 3) | 7.00 | - |",
        "| linear | Type2 | 8.50 | stopped at 40 of 100 | 7.00 | - |",
        "| linear | PER | 9.50 | - | 7.00 | - |",
        "| linear | SPE | 12.00 | - | 7.00 | - |",
        "| attention | method | a valid (paper) | a valid (measured) |",
        "| linear | Base | 3 | 3 |",
        "| linear | RoPE | 2 | 1 |",
        "| linear | Type1 | 1 | 2 |",
        "| linear | Spearman ρ |  | 0.50 |",
        "| attention | method | a valid |",
        "| linear | RoPE | -7.02 [-12.99, -0.65] (3) |",  # of geometric means
        "| linear | Type1 | -6.00 (1 seed: no interval) |",
    ]
    assert "| softmax | SPE | - | - | 7.00 | - |" in text and "| softmax | RoPE | 1 | 1 |" in text
    assert "| softmax | Spearman ρ |  | needs 3" in text
    assert "| softmax | RoPE | -3.49 (2 seeds: no interval) |" in text  # -2 and -5


def test_latex(runs, capsys):
    text = output(capsys, runs, "--table", "some_table9", "--format", "latex")
    assert r"linear & RoPE & 9.00 & \textbf{95.00 $\pm$ 3.00 (3)} & 7.00 & - \\" in text
    assert r"linear & Spearman $\rho$ &  & 0.50 \\" in text and text.count(r"\end{tabular}") == 3


def test_csv(runs, capsys):
    text = output(capsys, runs, "--table", "some_table9", "--format", "csv")
    rows = {(r["attention"], r["row"], r["column"]): r for r in csv.DictReader(io.StringIO(text))}
    rope = rows["linear", "RoPE", "a_valid"]
    numbers = {"paper": 9, "mean": 95, "std": 3, "seeds": 3, "paper_rank": 2, "rank": 1}
    numbers |= {"difference": -7.018516, "low": -12.988654, "high": -0.647892, "common_seeds": 3}
    assert {name: float(rope[name]) for name in numbers} == pytest.approx(numbers, rel=1e-6)
    type1 = rows["linear", "Type1", "a_valid"]
    assert rope["measured_on"] == "lm/big" and type1["std"] == type1["low"] == type1["high"] == ""
    assert rows["linear", "Type2", "a_valid"]["state"] == "stopped at 40 of 100"
    assert rows["linear", "Base", "b_test"]["measured_on"] == rows["linear", "Base", "b_test"]["mean"] == ""


def test_terminal_without_published_numbers(runs, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = output(capsys, runs, "--table", "some_figure")
    assert "measured on lm/big (100 updates)" in text and "[-12.99, -0.65] (3)" in text and "|" not in text
    assert "has no numbers to rank by" in text and "(paper)" not in text


def test_small_configuration(runs, capsys):
    for seed in (1, 2):
        write_run(runs / "lm/small/linear_rope" / f"seed-{seed}", {50: 9}, 9)
    text = output(capsys, runs, "--table", "some_table9", "--scale", "mini")
    sentence = "measured on lm/small (100 updates), a small substitute: compare ranks, not values"
    assert sentence in text and "measured on lm/big" not in text
    assert "| attention | method | a valid (paper) | a valid (mini) |" in text and "b test" not in text
    assert "| linear | RoPE | 9.00 | 9.00 ± 0.00 (2) |" in text
    assert "Differences to base need a seed" in text


@pytest.mark.parametrize("name, scale", [
    ("tmlr_table3", "full"), ("tmlr_table2", "small"), ("lfhc_table7", "mini"),
    pytest.param("roper", "full", marks=pytest.mark.slow),
])  # fmt: skip
def test_tables_of_the_papers(name, scale, tmp_path):
    """Every run of a table is found in a row and column of the table."""
    table = Table(name, scale)
    for run in table.runs():
        write_run(tmp_path / str(run), {100: 9})
    found = summary(tmp_path, name, scale)
    expected = [(cell.attention, cell.row, cell.column) for cell in table.cells if cell.runs]
    found = found[found["state"].str.match("stopped|not measured")][["attention", "row", "column"]]
    assert list(found.itertuples(index=False, name=None)) == expected


def test_plot_has_one_line_per_method(runs, tmp_path):
    table = Table("some_table9")
    lines = plots.table_lines(table, report.read_table_runs(table, runs))
    figure = plots.plot_curves("A title", lines, tmp_path / "plots" / "figure.png")
    assert (tmp_path / "plots/figure.png").read_bytes().startswith(b"\x89PNG")
    linear, softmax = figure.axes
    labels = [text.get_text() for text in linear.get_legend().get_texts()]
    assert labels == ["95.00  RoPE", "96.00  Type1", "102.00  Base", "200.00  Type2 (at 40)"]
    assert [line.get_label() for line in linear.lines] == labels
    base = linear.lines[2]
    assert list(base.get_xdata()) == [50, 100] and list(base.get_ydata()) == [204, 102]
    assert len(linear.collections) == 2  # Type1 and Type2 have one seed
    band = linear.collections[-1].get_paths()[0].vertices
    assert band[:, 1].min() == 100 and band[:, 1].max() == 208
    assert len(softmax.lines) == 2


MEASURED = {"experiment": "lm/big", "evaluation": "valid"}
OWN = {"row": "Own", "attention": "linear", "method": "base"}


def save_table(configs, columns, *more):
    rows = [{"row": m, "attention": "linear", "method": m} for m in ("base", "rope")]
    table = {"title": "Mine", "baseline": "base", "columns": columns, "rows": [*rows, *more]}
    OmegaConf.save(table, configs / "tables/mine.yaml")


@pytest.mark.parametrize("change, message", [
    ({"table": "table1"}, "table: "),
    ({"columns": {"a": {**MEASURED, "experiment": "lm/bgi"}}}, "columns.a.experiment: unknown experiment"),
    ({"columns": {"a": {**MEASURED, "evaluation": "valdi"}}}, "unknown evaluation 'valdi' (did you mean"),
    ({"columns": {"a": {**MEASURED, "metric": "perplexty"}}}, "columns.a.metric: unknown metric"),
    ({"baseline": "bsae"}, "baseline: unknown method 'bsae'"),
    ({"rows": [{**OWN, "method": None}]}, "row Own: attention and method are required"),
    ({"rows": [{**OWN, "method": "bsae"}]}, "row Own: unknown method 'bsae'"),
    ({"rows": [{**OWN, "method": "t5"}]}, "row Own: the method 't5' does not exist in linear attention"),
    ({"rows": [{**OWN, "changes": {"data": "x"}}]}, "data is not allowed in changes: set it"),
    ({"rows": [{**OWN, "row": "Base"}]}, "rows: linear Base is not unique"),
    ({"choose_by": "median"}, "choose_by: input should be 'seed'"),
    ({"choose_by": "mean", "choose_once": True}, "choose_once: is the earlier name of choose_by: omit it"),
    ({"choose_once": 1}, "choose_once: expected true or false, not 1"),
    ({"rows_of": "some_table"}, "rows_of: unknown table 'some_table' (did you mean 'some_table9'?)"),
    ({"rows_of": "own"}, "rows_of: unknown table 'own'"),
    ({"rows_of": "other"}, "rows_of: own → other → own: give one of these tables rows of its own"),
])  # fmt: skip
def test_errors_name_file_and_key(change, message, configs):
    own = OmegaConf.to_container(OmegaConf.load(configs / "tables/some_table9.yaml"))
    OmegaConf.save({**own, **change}, configs / "tables/own.yaml")
    OmegaConf.save({**own, "rows_of": "own"}, configs / "tables/other.yaml")
    with pytest.raises(ValueError) as error:
        Table("own")
    text = str(error.value)
    assert text.startswith(f"{configs}/tables/own.yaml: ") and message in text and "\n" not in text


def test_rows_of_another_table():
    others = [
        (row.attention, row.row, row.method, row.changes) for row in Table("extrapolation", "mini").rows
    ]
    for name, columns in {"length_generalization": 10, "recall": 4, "recall_learning_rates": 3}.items():
        table = Table(name, "mini")
        rows = [(row.attention, row.row, row.method, row.changes) for row in table.rows]
        assert rows[: len(others)] == others
        assert len(table.cells) == columns * len(rows) and all(cell.runs for cell in table.cells)
    assert len(rows) > len(others)  # it has rows of its own, too


def test_baseline_has_the_same_k():
    table = Table("lfhc_table7", "mini")
    pairs = {cell.row: base.row for cell in table.cells if (base := table.baseline(cell))}
    assert pairs == {f"LFHC-RPE k={k}": f"Shaw-RPE k={k}" for k in (4, 8, 12, 16)}


def test_rows_with_changes_are_compared_with_the_unchanged_baseline():
    table = Table("recall", "mini")
    baselines = {cell.row: table.baseline(cell) for cell in table.cells if cell.attention == "linear"}
    assert baselines.pop("NoPE") is None
    assert {baseline.row for baseline in baselines.values()} == {"NoPE"}
    assert {"NoPE with a convolution", "RoPE in every second layer"} <= baselines.keys()


def test_a_single_baseline_is_that_of_all_methods():
    table = Table("tmlr_table2", "mini")
    baselines = {cell.method: table.baseline(cell) for cell in table.cells}
    assert baselines.pop("base") is None and {cell.method for cell in baselines.values()} == {"base"}


def test_average_over_columns_of_different_lengths(runs, configs):
    """The average of a seed needs the seed in all columns; their lengths may differ."""
    short = {**MEASURED, "changes": {"updates": 50}}
    save_table(configs, {"both": {"average": ["short", "long"]}, "long": MEASURED, "short": short})
    for seed in (1, 2):
        for method, value in (("base", 10), ("rope", 9)):
            write_run(runs / f"lm/big/linear_{method}/updates=50/seed-{seed}", {50: value}, value, 50)
    both = summary(runs, "mine").set_index(["row", "column"]).loc[("rope", "both")]
    assert both["mean"] == pytest.approx(((9 + 92) / 2 + (9 + 95) / 2) / 2) and both["state"] == "2 of 3"
    assert both["common_seeds"] == 2 and both["difference"] == pytest.approx((-9 / 2 - 8 / 2) / 2)


def test_decimals_depend_on_the_metric(runs, configs, capsys):
    """CSV shows ten digits, without rounding errors of binary arithmetic."""
    for seed in (1, 2, 3):
        path = runs / f"lm/big/linear_base/seed-{seed}/evaluation.json"
        record = json.loads(path.read_text())
        record["evaluations"] |= {"training": {"tokens_per_second": 9708.8}}
        record["evaluations"]["valid"] |= {"bits": 1.74321, "perplexity": [9.1, 9.2, 9.18][seed - 1]}
        path.write_text(json.dumps(record))
    speed = {**MEASURED, "evaluation": "training", "metric": "tokens_per_second"}
    save_table(configs, {"ppl": MEASURED, "loss": {**MEASURED, "metric": "bits"}, "speed": speed})
    text = output(capsys, runs, "--table", "mine")
    assert "| linear | base | **9.16 ± 0.05 (3)** | 1.7432 ± 0.0000 (3) | 9,709 ± 0 (3) |" in text
    text = output(capsys, runs, "--table", "mine", "--format", "csv")
    rows = csv.DictReader(io.StringIO(text))
    means = {row["column"]: row["mean"] for row in rows if row["row"] == "base"}
    assert means == {"ppl": "9.16", "loss": "1.74321", "speed": "9708.8"}
    assert table_parts.format_published(0.3269, float("nan")) == "0.3269"
    assert table_parts.format_published(2.3, 0.1) == "2.30 ± 0.10"


def test_only_speeds_are_left_out_of_the_list_of_runs(runs):
    """Wherever they are in the record."""
    for path in runs.glob("lm/big/*/*/evaluation.json"):
        record = json.loads(path.read_text())
        record["evaluations"] = {"training": {"tokens_per_second": 9708.8}} | record["evaluations"]
        path.write_text(json.dumps(record))
    listed = aggregate.summarize_runs(experiment_runs.read_experiment_runs("lm/big", runs))
    assert set(listed["metric"].dropna()) == {"bits", "perplexity"}


def test_special_characters_are_escaped(capsys):
    rows = [["x|y", renderers.Bold("1 & 2")], ["50%_{$}", "<"]]
    parts = [renderers.Section("", pd.DataFrame(rows, columns=["method", "a"], dtype=object))]
    renderers.show(parts, "markdown")
    assert "| x\\|y | **1 & 2** |" in capsys.readouterr().out
    renderers.show(parts, "latex")
    output = capsys.readouterr().out
    assert r"x|y & \textbf{1 \& 2} \\" in output and r"50\%\_\{\$\} & $<$ \\" in output


@pytest.mark.parametrize("better, values, expected", [
    ("lower", {1: 3.0, 2: 1.0, 3: 2.0}, 1.5),
    ("higher", {1: 3.0, 2: 1.0, 3: 2.0}, 2.5),
    ("higher", {1: 3.0, 2: 1.0}, 2.0),
    ("higher", {1: math.nan, 2: 1.0, 3: 2.0}, 1.5),
])  # fmt: skip
def test_drop_worst(better, values, expected):
    cell = Cell("softmax", "a row", "a column", better=better, drop_worst=True)
    found = aggregate._summarize_cell(cell, cells.Measured(values, len(values)))
    assert (found["mean"], found["seeds"]) == (expected, len(values))


def test_other_baseline_and_chosen_rows(runs, capsys):
    """The numbers of the chosen rows, among them the intervals, are those of the whole table."""
    arguments = ["--table", "some_table9", "--baseline", "rope"]
    whole = output(capsys, runs, *arguments)
    chosen = output(capsys, runs, *arguments, "--methods", "tmlr_type1")
    assert "Measured difference to rope of the same attention" in whole
    lines = [line for line in chosen.splitlines() if line.startswith("| linear") and "Spearman" not in line]
    assert {line.split("|")[2].strip() for line in lines} == {"RoPE", "Type1"}
    assert all(line in whole.splitlines() for line in lines)


def test_plot_of_chosen_rows(runs, tmp_path, monkeypatch):
    """The plots show the rows that the table shows."""
    drawn = []
    monkeypatch.setattr(plots, "plot_curves", lambda title, lines, path: drawn.extend(lines))
    arguments = ["--results", runs, "--table", "some_table9", "--methods", "tmlr_type1", "--plot", "x.png"]
    assert run_here(results.main, *arguments).returncode == 0
    assert {line.row for line in drawn} == {"Base", "Type1"}


def test_other_seeds(runs, capsys):
    arguments = ["--table", "some_table9", "--format", "csv"]
    chosen = output(capsys, runs, *arguments, "--seeds", "1", "2")
    assert chosen == output(capsys, runs, *arguments, "seeds=[1,2]") != output(capsys, runs, *arguments)


@pytest.mark.parametrize("arguments, message", [
    (["--table", "some_table9", "--baseline", "rpoe"], "the table has no method 'rpoe' (did you mean 'rope'"),
    (["--table", "some_table9", "--methods", "shaw"], "the table has no method 'shaw'"),
    (["--experiment", "lm/big", "--baseline", "rope"], "--baseline, --methods and --seeds need --table: add"),
    (["--experiment", "lm/big", "--seeds", "1"], "--baseline, --methods and --seeds need --table: add it"),
    (["--table", "some_table9", "--seeds", "7"], "has no run of the table 'some_table9' at this scale"),
    (["--experiment", "lm/big", "--over", "train.lr"], "--over needs --experiment and --plot: add them"),
])  # fmt: skip
def test_wrong_choices(arguments, message, runs, capsys):
    with pytest.raises(SystemExit) as error:
        output(capsys, runs, *arguments)
    assert message in str(error.value)
