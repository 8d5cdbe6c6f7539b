"""A paper's table beside the runs: numbers worked out by hand, every format, what is missing or broken."""

import csv
import fcntl
import io
import json
import re
import signal
import subprocess

import pandas as pd
import pytest
from omegaconf import OmegaConf
from tiny import BIN, run_command, write_configs, write_run

import fairseq_lrpe
from fairseq_lrpe.cli import results
from fairseq_lrpe.experiments.reporting import aggregate, plots, renderers
from fairseq_lrpe.experiments.reporting import tables as report
from fairseq_lrpe.experiments.reporting.measurements import load_results
from fairseq_lrpe.experiments.spec import experiment as experiments
from fairseq_lrpe.experiments.spec.table import SCALES, Cell, Table, tables

ROWS = ("Base", "RoPE", "Type1", "Type2", "PER", "SPE")
METHODS = ("base", "rope", "tmlr_type1", "iclr_type2", "per", "spe")
PUBLISHED = (10.0, 9.0, {"mean": 8.0, "std": 0.1}, 8.5, 9.5, 12.0)
VALID = {  # {seed: perplexity}
    "linear_base": {1: 100, 2: 102, 3: 104},
    "linear_rope": {1: 92, 2: 95, 3: 98},
    "linear_tmlr_type1": {2: 96},
    "softmax_base": {1: 50, 2: 52},
    "softmax_rope": {1: 48, 2: 47},
}


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """A paper's table of two attentions, six rows and two columns, the second with no run planned."""
    folder = tmp_path / "configs"
    rows = [
        {"row": row, "attention": attention, "method": method, "values": {"a_valid": value, "b_test": 7.0}}
        for attention in ("linear", "softmax")
        for row, method, value in zip(ROWS, METHODS, PUBLISHED, strict=True)
    ]
    del rows[-1]["values"]["a_valid"]  # the paper has a dash
    columns = {name: {"metric": "perplexity", "better": "lower"} for name in ("a_valid", "b_test")}
    paper_table = {"shows": "x", "columns": columns, "rows": rows}
    paper = {"source": "Someone (2020)", "tables": {"table9": paper_table}}
    table = {
        "paper": "paper",
        "table": "table9",
        "title": "A title",
        "baseline": "base",
        "columns": {"a_valid": {"experiment": "lm/big", "mini": "lm/small", "evaluation": "valid"}},
    }
    own = [{key: row[key] for key in ("row", "attention", "method")} for row in rows]
    figure = {key: value for key, value in table.items() if key != "table"}
    flags = {"kind": "language_modeling", "data": "x", "batch": {"total": 8, "per_gpu": 8}}
    evaluations = {"valid": {"split": "valid"}}
    files = {
        "paper/paper": paper,
        "tables/some_table9": table | {"mini_seeds": [1, 2]},
        "tables/some_figure": figure | {"mini_seeds": [1], "rows": own},
        "lm/big": flags | {"seeds": [1, 2, 3], "updates": 100, "evaluations": evaluations},
        "lm/small": {"defaults": "lm/big"},
    }
    write_configs(folder, files)
    monkeypatch.setattr(experiments, "CONFIGS", folder)
    return folder


@pytest.fixture
def runs(configs, tmp_path):
    folder = tmp_path / "results"
    for name, seeds in VALID.items():
        for seed, valid in seeds.items():
            write_run(folder / "lm/big" / name / f"seed-{seed}", {50: 2 * valid, 100: valid}, valid)
    # iclr_type2 has the flags of tmlr_type2, whose run is its own.
    write_run(folder / "lm/big/linear_tmlr_type2/seed-1", {20: 300, 40: 200})
    return folder


def entry(folder, attention, row, scale="full"):
    summary = report.collect(Table("some_table9", scale), folder)
    return summary.set_index(["attention", "row", "column"]).loc[(attention, row, "a_valid")]


def statistics(folder, attention, row):
    cell = entry(folder, attention, row)
    return cell["mean"], None if pd.isna(cell["std"]) else cell["std"], cell["seeds"]


def difference(folder, attention, row):
    """(mean, (low, high) or None, common seeds)"""
    cell = entry(folder, attention, row)
    interval = None if pd.isna(cell["low"]) else (cell["low"], cell["high"])
    return cell["difference"], interval, cell["common_seeds"]


def ranks(summary, attention, column):
    cells = summary[(summary["attention"] == attention) & (summary["column"] == column)]
    cells = cells.dropna(subset="rank").set_index("row")[["paper_rank", "rank"]]
    return dict(zip(cells.index, cells.itertuples(index=False, name=None), strict=True))


def output(capsys, monkeypatch, *arguments):
    results.main(list(map(str, arguments)))
    return capsys.readouterr().out


def refusal(monkeypatch, *arguments):
    with pytest.raises(SystemExit) as end:
        results.main(list(map(str, arguments)))
    assert "\n" not in end.value.code
    return end.value.code


# --- numbers ----------------------------------------------------------------------------------------


def test_a_run_under_the_name_of_a_method_with_the_same_flags(runs):
    before = entry(runs, "linear", "Type2")["state"]
    (runs / "lm/big/linear_tmlr_type2").rename(runs / "lm/big/linear_iclr_type2")
    assert entry(runs, "linear", "Type2")["state"] == before != "-"


def test_mean_and_deviation(runs):
    assert statistics(runs, "linear", "Base") == (102, pytest.approx(2), 3)
    assert statistics(runs, "linear", "RoPE") == (95, pytest.approx(3), 3)
    assert statistics(runs, "linear", "Type1") == (96, None, 1)
    assert entry(runs, "linear", "Type2")["seeds"] == 0 and pd.isna(entry(runs, "linear", "Type2")["mean"])
    assert tuple(entry(runs, "linear", "Type1")[["paper", "paper_std"]]) == (8, 0.1)
    assert pd.isna(entry(runs, "softmax", "SPE")["paper"])


@pytest.mark.parametrize("better, expected", [("lower", {1: 3.0, 2: 4.0}), ("higher", {1: 5.0, 2: 6.0})])
def test_the_best_of_columns_is_that_of_each_seed(better, expected):
    values = [(1, 3.0, True), (2, 6.0, True), (3, 9.0, True), (1, 5.0, True), (2, 4.0, True), (3, 1.0, False)]
    parts = pd.DataFrame(values, columns=["seed", "value", "is_measured"])
    cell = Cell("softmax", "XL", "best", better=better, is_best=True, parts=[Cell("softmax", "XL", "x")] * 2)
    best = aggregate._combine(cell, parts)
    assert dict(zip(best["seed"], best["value"], strict=True)) == expected


def test_a_column_of_one_attention(configs):
    path = configs / "tables/some_table9.yaml"
    table = OmegaConf.load(path)
    table.columns.a_valid.attention = "linear"
    OmegaConf.save(table, path)
    assert {cell.attention for cell in Table("some_table9").cells if cell.runs} == {"linear"}


def test_the_picture_of_columns(runs, configs, tmp_path, capsys, monkeypatch):
    """A line for each measured row, its points where its columns are."""
    out = tmp_path / "pictures/columns.png"
    output(capsys, monkeypatch, runs, "--table", "some_table9", "--plot-columns", out)
    assert out.read_bytes().startswith(b"\x89PNG")
    figure = plots.plot_columns("a title", report.collect(Table("some_table9"), runs), out)
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["linear attention", "softmax attention"]
    named = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in figure.axes]
    assert named[0] == ["95.00  RoPE", "96.00  Type1", "102.00  Base"]
    message = refusal(monkeypatch, runs, "--experiment", "lm/big", "--plot-columns", out)
    assert message.startswith("results: --plot-columns cannot be combined with --experiment")


def test_differences_are_paired_by_seed(runs):
    mean, interval, n = difference(runs, "linear", "RoPE")  # -8, -7 and -6
    assert (mean, n) == (-7, 3)
    assert interval == pytest.approx((-7 - 4.302653 / 3**0.5, -7 + 4.302653 / 3**0.5))
    mean, interval, n = difference(runs, "softmax", "RoPE")  # -2 and -5
    assert (mean, n) == (-3.5, 2)
    assert interval == pytest.approx((-3.5 - 12.7062 * 1.5, -3.5 + 12.7062 * 1.5), rel=1e-5)
    assert difference(runs, "linear", "Type1") == (96 - 102, None, 1)
    for row in ("Base", "PER"):
        mean, interval, n = difference(runs, "linear", row)
        assert pd.isna(mean) and interval is None and n == 0


def test_ranks_and_spearman(runs):
    table = Table("some_table9")
    summary = report.collect(table, runs)
    assert ranks(summary, "linear", "a_valid") == {"Base": (3, 3), "RoPE": (2, 1), "Type1": (1, 2)}
    assert ranks(summary, "softmax", "a_valid") == {"Base": (2, 2), "RoPE": (1, 1)}
    correlations = aggregate.rank_correlations(summary)
    assert correlations["linear", "a_valid"] == pytest.approx(1 - 6 * (0 + 1 + 1) / (3 * 8))
    assert pd.isna(correlations["softmax", "a_valid"])  # two methods
    for cell in table.cells:
        cell.better = "higher"
    summary = report.collect(table, runs)
    assert ranks(summary, "linear", "a_valid") == {"Base": (1, 1), "RoPE": (2, 3), "Type1": (3, 2)}


def test_all_results_give_the_same_summary_as_the_tables_runs(runs):
    """The public DataFrame of every run is enough for a table."""
    table, everything = Table("some_table9"), fairseq_lrpe.load_results(runs)
    assert len(everything) == 2 * 11 + 1  # loss and perplexity, and a run that is not finished
    summary = aggregate.summarize(table, aggregate.seed_values(table, everything))
    pd.testing.assert_frame_equal(summary, report.collect(table, runs))
    found = everything.query("method == 'rope' and attention == 'linear' and metric == 'perplexity'")
    assert list(found["value"]) == [92, 95, 98] and list(found["seed"]) == [1, 2, 3]
    published = fairseq_lrpe.published()
    assert len(published) == 2 * 6 + 11 and set(published["paper"]) == {"paper"}
    [number] = published.query(
        "row == 'Type1' and attention == 'linear' and column == 'a_valid'"
    ).itertuples()
    assert (number.mean, number.std, number.better) == (8.0, 0.1, "lower")


# --- missing, unfinished, damaged ---------------------------------------------------------------------


def test_what_is_not_there_yet(runs):
    states = {row: entry(runs, "linear", row)["state"] for row in ROWS}
    assert states == {
        "Base": "3",
        "RoPE": "3",
        "Type1": "1 of 3",
        "Type2": "stopped at 40 of 100",
        "PER": "-",
        "SPE": "-",
    }
    with (runs / "lm/big/linear_tmlr_type2/seed-1/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert entry(runs, "linear", "Type2")["state"] == "running 40/100"
    assert entry(runs, "linear", "Type2")["state"] == "stopped at 40 of 100"


@pytest.mark.parametrize(
    "name, content",
    [
        ("run.json", "{"),
        ("run.json", "{}"),
        ("evaluation.json", "[1]"),
        ("evaluation.json", '{"evaluations": {"valid": 3}}'),
        ("log.jsonl", 'x\n{"kind": "train"}\n'),
    ],
)
def test_a_damaged_run_is_named_and_counts_as_missing(runs, name, content, capsys):
    folder = runs / "lm/big/linear_base/seed-2"
    (folder / name).write_text(content)
    assert entry(runs, "linear", "Base")["state"] == "2 of 3"
    assert entry(runs, "linear", "RoPE")["common_seeds"] == 2
    [line] = set(capsys.readouterr().err.strip().splitlines())
    assert f"results: {folder} cannot be read" in line


def test_a_line_that_is_being_written_is_no_damage(runs, capsys):
    with (runs / "lm/big/linear_tmlr_type2/seed-1/log.jsonl").open("a") as log:
        log.write('{"kind": "val')
    assert entry(runs, "linear", "Type2")["state"] == "stopped at 40 of 100"
    (runs / "lm/big/linear_tmlr_type2/seed-1/log.jsonl").unlink()
    assert entry(runs, "linear", "Type2")["state"] == "stopped at 0 of 100"
    assert not capsys.readouterr().err


def test_a_run_that_diverged_has_no_rank(runs, capsys):
    write_run(runs / "lm/big/linear_per/seed-1", {100: float("nan")}, float("nan"))
    write_run(runs / "lm/big/linear_per/seed-2", {100: 90}, 90)
    table = Table("some_table9")
    summary = report.collect(table, runs)
    assert "PER" not in ranks(summary, "linear", "a_valid")
    values = report.values_frame(summary.assign(label=summary["row"]), "x").to_numpy().tolist()
    assert ["linear", "PER", "9.50", "diverged (2 of 3)", "7.00", "-"] in values
    lines = plots.table_lines(table, runs)
    assert "PER" not in set(lines.query("attention == 'linear'")["row"])
    report.show_table(table, summary, "csv")
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("linear,PER,a_valid")]
    assert ",9.5,,nan,,2 of 3,2," in line


# --- formats ----------------------------------------------------------------------------------------

LINEAR = [
    ["linear", "Base", "10.00", "102.00 ± 2.00 (3)", "7.00", "-"],
    ["linear", "RoPE", "9.00", "**95.00 ± 3.00 (3)**", "7.00", "-"],
    ["linear", "Type1", "**8.00 ± 0.10**", "96.00 (1 of 3)", "7.00", "-"],
    ["linear", "Type2", "8.50", "stopped at 40 of 100", "7.00", "-"],
    ["linear", "PER", "9.50", "-", "7.00", "-"],
    ["linear", "SPE", "12.00", "-", "7.00", "-"],
]
RANKS = [
    ["linear", "Base", "3", "3"],
    ["linear", "RoPE", "2", "1"],
    ["linear", "Type1", "1", "2"],
    ["linear", "Spearman ρ", "", "0.50"],
    ["softmax", "Base", "2", "2"],
    ["softmax", "RoPE", "1", "1"],
    ["softmax", "Spearman ρ", "", "needs 3 methods"],
]
DIFFERENCES = [
    ["linear", "RoPE", "-7.00 [-9.48, -4.52] (3)"],
    ["linear", "Type1", "-6.00 (1 seed: no interval)"],
    ["softmax", "RoPE", "-3.50 [-22.56, +15.56] (2)"],
]


def check(header, values, ranks, differences):
    columns = "a valid (paper)", "a valid (measured)", "b test (paper)", "b test (measured)"
    assert header == ["attention", "method", *columns]
    assert values[:6] == LINEAR and values[6][:4] == ["softmax", "Base", "10.00", "51.00 ± 1.41 (2 of 3)"]
    assert len(values) == 12 and values[-1][2:4] == ["-", "-"]
    assert ranks == RANKS and differences == DIFFERENCES


def test_markdown(runs, capsys, monkeypatch):
    text = output(capsys, monkeypatch, runs, "--table", "some_table9")  # not on a terminal
    assert text == output(capsys, monkeypatch, runs, "--table", "some_table9", "--format", "markdown")
    assert "measured on lm/big (100 updates)" in text and "paper: Someone (2020), table9" in text
    tables, last = [], ""
    for line in text.splitlines():
        if line.startswith("|"):
            tables += [] if last.startswith("|") else [[]]
            tables[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        last = line
    (header, _, *values), (_, _, *ranks), (_, _, *differences) = tables
    check(header, values, ranks, differences)


def test_latex(runs, capsys, monkeypatch):
    text = output(capsys, monkeypatch, runs, "--table", "some_table9", "--format", "latex")
    tables = []
    for part in text.split(r"\begin{tabular}")[1:]:
        rows = [line for line in part.split(r"\end{tabular}")[0].splitlines() if line.endswith(r"\\")]
        for code, character in ((r"$\pm$", "±"), (r"\_", "_"), (r"$\rho$", "ρ")):
            rows = [re.sub(r"\\textbf{(.*?)}", r"**\1**", row.replace(code, character)) for row in rows]
        tables.append([[cell.strip() for cell in row.removesuffix(r"\\").split("&")] for row in rows])
    (header, *values), (_, *ranks), (_, *differences) = tables
    check(header, values, ranks, differences)
    outside = [line for line in text.splitlines() if line and line[0] not in "%\\" and "&" not in line]
    assert not outside


def test_csv(runs, capsys, monkeypatch):
    text = output(capsys, monkeypatch, runs, "--table", "some_table9", "--format", "csv")
    rows = {(r["attention"], r["row"], r["column"]): r for r in csv.DictReader(io.StringIO(text))}
    assert len(rows) == 24
    rope = rows["linear", "RoPE", "a_valid"]
    numbers = {"paper": 9, "mean": 95, "std": 3, "seeds": 3, "paper_rank": 2, "rank": 1}
    numbers |= {"difference": -7, "low": -9.484138, "high": -4.515862, "common_seeds": 3}
    assert {name: float(rope[name]) for name in numbers} == pytest.approx(numbers, rel=1e-6)
    assert rope["measured_on"] == "lm/big" and rows["linear", "Type1", "a_valid"]["std"] == ""
    assert rows["linear", "Type2", "a_valid"]["state"] == "stopped at 40 of 100"
    assert rows["linear", "Base", "b_test"]["measured_on"] == rows["linear", "Base", "b_test"]["mean"] == ""


def test_the_terminals_table(runs, capsys):
    table = Table("some_table9")
    renderers.show_rich(report.table_sections(table, report.collect(table, runs)))
    text = capsys.readouterr().out
    assert "measured on lm/big (100 updates)" in text and "[-9.48, -4.52] (3)" in text


def test_the_small_scale_says_so(runs, capsys, monkeypatch):
    for seed, updates in ((1, 100), (2, 60)):
        write_run(runs / "lm/small/linear_rope" / f"seed-{seed}", {50: 9}, 9, updates)
    text = output(capsys, monkeypatch, runs, "--table", "some_table9", "--scale", "mini")
    sentence = "measured on lm/small (60 or 100 updates), a small substitute: compare ranks, not values"
    assert sentence in text and "measured on lm/big" not in text
    assert "| attention | method | a valid (paper) | a valid (mini) |" in text and "b test" not in text
    assert "| linear | RoPE, 60 or 100 updates | 9.00 | 9.00 ± 0.00 (2) |" in text
    assert "Differences to base need a seed" in text


def test_a_figure_without_published_numbers(runs, capsys, monkeypatch):
    text = output(capsys, monkeypatch, runs, "--table", "some_figure")
    assert "| attention | method | a valid |" in text
    assert "| linear | RoPE | **95.00 ± 3.00 (3)** |" in text
    assert "has no numbers to rank by" in text


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", tables())
def test_the_papers_own_tables(name, scale, tmp_path):
    """Every run of every table is found again, in a row and column of the table."""
    try:
        table = Table(name, scale)
    except ValueError as error:
        assert "no small form" in str(error)
        return
    for run in table.runs():
        write_run(tmp_path / str(run), {100: 9})
    summary = report.collect(table, tmp_path)
    expected = [(cell.attention, cell.row, cell.column) for cell in table.cells if cell.runs]
    found = summary[summary["state"] == "not measured"][["attention", "row", "column"]]
    assert list(found.itertuples(index=False, name=None)) == expected


# --- the figure -------------------------------------------------------------------------------------


def test_the_figure_has_a_line_for_each_method(runs, tmp_path):
    lines = plots.table_lines(Table("some_table9"), runs)
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
    assert len(softmax.lines) == 2 and linear.get_yscale() == "log"
    looks = {(line.get_color(), line.get_marker(), str(line.get_linestyle())) for line in linear.lines}
    assert len(looks) == 4


# --- refusals ---------------------------------------------------------------------------------------


def test_what_cannot_be_shown(runs, tmp_path, monkeypatch):
    assert "unknown table 'table1': choose from some_figure, some_table9" in refusal(
        monkeypatch, runs, "--table", "table1"
    )
    assert "does not exist" in refusal(monkeypatch, tmp_path / "none", "--table", "some_table9")
    empty = tmp_path / "empty"
    (empty / "lm/small").mkdir(parents=True)
    message = refusal(monkeypatch, empty, "--table", "some_table9")
    assert "has no run of" in message and "lm/big/linear_base/seed-1; for the runs of lm/small" in message
    assert "has no run of" in refusal(monkeypatch, runs, "--table", "some_table9", "--scale", "mini")


def test_the_overrides_of_the_runs_that_exist_are_named(configs, tmp_path, monkeypatch):
    folder = tmp_path / "results"
    for changes in (
        "linear_base/updates=10",
        "linear_rope/updates=10",
        "softmax_base/train.lr=0.1/updates=20",
    ):
        write_run(folder / f"lm/big/{changes}/seed-1", {10: 100}, 100)
    write_run(folder / "lm/big/linear_t5/updates=7/seed-1", {7: 100}, 100)  # of no row
    message = refusal(monkeypatch, folder, "--table", "some_table9")
    assert message.endswith("the existing runs add updates=10 or train.lr=0.1 updates=20")
    assert "add updates=10" in refusal(monkeypatch, folder, "--table", "some_table9", "updates=30")


def test_the_command_ends_with_one_sentence(tmp_path):
    done = run_command("python", "-m", "fairseq_lrpe", "results", tmp_path, "--table", "none")
    assert done.returncode == 1 and not done.stdout
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("results: unknown table 'none': `bash scripts/table.sh` lists")


COLUMN = {"columns": {"a": {"experiment": "lm/big", "evaluation": "valid"}}}


def own_row(**about):
    """A table's key ``rows`` with one row."""
    return {"rows": [{"row": "Own", "attention": "linear", "method": "base", **about}]}


@pytest.mark.parametrize("form", ["markdown", "csv", "latex"])
def test_a_reader_that_leaves_is_no_error(runs, form):
    """As head does in ``results ... | head``."""
    words = [
        BIN / "python",
        "-m",
        "fairseq_lrpe",
        "results",
        runs,
        "--experiment",
        "lm/big",
    ]
    words += ["--format", form]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 128 + signal.SIGPIPE


@pytest.mark.parametrize("change, message", [
    ({"titel": "x"}, "tables/own.yaml, key titel is unknown (did you mean 'title'?): choose from title"),
    ({"columns": {"a": {"metrik": "x"}}},
     "key columns.a.metrik is unknown (did you mean 'metric'?): choose from experiment"),
    ({"title": None, "columns": None}, "tables/own.yaml, key title"),
    ({"paper": "papre"}, "tables/own.yaml, key paper: there is no "),
    ({"table": "table1"}, "tables/own.yaml, key table: "),
    ({"columns": {"a": {"experiment": "lm/bgi", "evaluation": "valid"}}},
     "key columns.a.experiment is 'lm/bgi', no experiment (did you mean 'lm/big'?): choose from lm/big"),
    ({"columns": {"a": {"experiment": "lm/big", "evaluation": "vaild"}}},
     "key columns.a.evaluation is 'vaild' (did you mean 'valid'?): lm/big has valid, training"),
    ({"columns": {"a": {"experiment": "lm/big", "evaluation": "valid", "metric": "perplexty"}}},
     "key columns.a.metric is 'perplexty' (did you mean 'perplexity'?): valid of lm/big measures "),
    ({"columns": {"a": {"experiment": "lm/big"}}}, "key columns.a.evaluation is missing: lm/big has valid"),
    ({"columns": {"a": {"evaluation": "valid"}}}, "key columns.a.experiment is missing: say whose runs"),
    ({"columns": {"a": {"mini": "lm/small", "evaluation": "valid"}}},
     "key experiment is missing: the table has a small form alone"),
    ({"columns": {"a": "valid"}}, "key columns.a has to be made of experiment, mini, evaluation"),
    ({"columns": ["a"]}, "key columns has to be keys with values"),
    ({"columns": {}}, "key columns is empty"),
    ({"columns": {"a": {"experiment": "lm/big", "evaluation": "valid", "changes": {"updatse": 3}}}},
     "key columns.a.changes cannot be: lm/big has no key 'updatse'"),
    (COLUMN | {"metric": "x"}, "key metric is 'x': valid of lm/big measures"),
    ({"columns": {**COLUMN["columns"], "mean": {"average": ["a", "b"]}}},
     "key columns.mean.average names 'b': choose from a"),
    ({"columns": {**COLUMN["columns"], "mean": {"average": "a"}}},
     "key columns.mean.average has to be a list, each of its items a text"),
    ({"columns": {**COLUMN["columns"], "x": {"best": ["b"]}}},
     "key columns.x.best names 'b': choose from a"),
    ({"columns": {"a": {"experiment": "lm/big", "evaluation": "valid", "attention": "lin"}}},
     "key columns.a.attention is 'lin' (did you mean 'linear'?): choose from linear, softmax"),
    ({"baseline": "bsae"}, "key baseline is 'bsae', the method of no row (did you mean 'base'?): choose"),
    ({"table": None}, "key rows is missing: give rows, or a paper and its table"),
    ({"paper": None}, "key table needs the key paper"),
    ({"seeds": 3}, "key seeds has to be a list, each of its items a whole number"),
    ({"seeds": [1, "two"]}, "key seeds[1] has to be a whole number"),
    ({"title": ["a"]}, "key title has to be a text"),
    ({"drop_worst": "maybe"}, "key drop_worst has to be true or false"),
    ({"rows": {"a": 1}}, "key rows has to be a list"),
    ({"rows": ["base"]}, "key rows[0] has to be made of row, attention, method"),
    (own_row(method="bsae"), "key rows[0] cannot be: unknown method 'bsae' (did you mean 'base'?)"),
    (own_row(attention="lin"), "key rows[0] cannot be: unknown attention 'lin' (did you mean 'linear'?)"),
    (own_row(changes={"train.x": 1}), "key rows[0] cannot be: lm/big has no key 'train.x'"),
    (own_row(changes={"updates": "many"}), "key rows[0] cannot be: updates: many: updates is a number"),
    (own_row(changes={"updates": 0}), "key rows[0] cannot be: updates=0: at least 1 is needed"),
    (own_row(changes={"data": "x"}), "key rows[0] cannot be: data makes no other run of lm/big"),
    (own_row(columns=["b"]), "key rows[0].columns names 'b': choose from a_valid"),
    (own_row(columns="a_valid"), "key rows[0].columns has to be a list, each of its items a text"),
    (own_row(values={"a_valid": 3}), "key rows[0].values is for published rows"),
    (own_row(methd="base"), "key rows[0].methd is unknown (did you mean 'method'?): choose from row"),
    (own_row(row="Base"), "key rows has linear Base twice"),
    ({"rows": [{"row": "Own", "attention": "linear"}]}, "tables/own.yaml lacks the key rows[0].method"),
])  # fmt: skip
def test_a_slip_in_a_tables_yaml_gets_one_sentence(change, message, configs):
    own = OmegaConf.to_container(OmegaConf.load(configs / "tables/some_table9.yaml"))
    OmegaConf.save({**own, **change}, configs / "tables/own.yaml")
    with pytest.raises(ValueError) as refused:
        Table("own")
    said = str(refused.value)
    assert message in said and "\n" not in said and said.startswith(str(configs / "tables/own.yaml"))


def test_a_table_of_ones_own_without_a_paper(runs, configs, capsys, monkeypatch):
    rows = [{"row": m, "attention": "linear", "method": m} for m in ("base", "rope")]
    rows += [{"row": "hot", "attention": "linear", "method": "rope", "changes": {"updates": 50}}]
    columns = {"valid": {"experiment": "lm/big", "evaluation": "valid"}}
    OmegaConf.save({"title": "Mine", "columns": columns, "rows": rows}, configs / "tables/mine.yaml")
    write_run(runs / "lm/big/linear_rope/updates=50/seed-2", {50: 9}, 9, 50)
    text = output(capsys, monkeypatch, runs, "--table", "mine")
    assert "| linear | rope | **95.00 ± 3.00 (3)** |" in text
    assert "paper" not in text and "Difference" not in text


def test_runs_of_another_length_say_so_and_are_compared_with_none(runs, configs, capsys, monkeypatch):
    rows = [{"row": m, "attention": "linear", "method": m} for m in ("base", "rope")]
    rows += [{"row": "short", "attention": "linear", "method": "rope", "changes": {"updates": 50}}]
    columns = {"a_valid": {"experiment": "lm/big", "evaluation": "valid"}}
    mine = {"title": "Mine", "baseline": "base", "columns": columns, "rows": rows}
    OmegaConf.save(mine, configs / "tables/mine.yaml")
    for seed in (1, 2):
        write_run(runs / f"lm/big/linear_rope/updates=50/seed-{seed}", {50: 9}, 9, 50)
    text = output(capsys, monkeypatch, runs, "--table", "mine")
    assert "| linear | short, 50 updates | 9.00 ± 0.00 (2 of 3) |" in text  # and not bold
    assert "| linear | rope | **95.00 ± 3.00 (3)** |" in text
    assert "not compared with the other rows: linear short (50 updates).\n" in text.replace("  \n", "\n")
    assert "| linear | rope | -7.00 [" in text and text.count("short") == 2
    short = report.collect(Table("mine"), runs).set_index("row").loc["short"]
    assert pd.isna(short["difference"]) and not short["is_ranked"]

    for row in rows[:2]:  # of all rows the same length is none that is apart
        row["changes"] = {"updates": 50}
    OmegaConf.save({**mine, "rows": rows[:2]}, configs / "tables/mine.yaml")
    for seed in (1, 2):
        write_run(runs / f"lm/big/linear_base/updates=50/seed-{seed}", {50: 10}, 10, 50)
    text = output(capsys, monkeypatch, runs, "--table", "mine")
    assert "| linear | rope | **9.00 ± 0.00 (2 of 3)** |" in text and "not compared" not in text
    assert "| linear | rope | -1.00 [" in text


def test_an_average_of_trainings_of_several_lengths_is_compared(runs, configs, capsys, monkeypatch):
    rows = [{"row": m, "attention": "linear", "method": m} for m in ("base", "rope")]
    long = {"experiment": "lm/big", "evaluation": "valid"}
    columns = {
        "both": {"average": ["short", "long"]},
        "long": long,
        "short": {**long, "changes": {"updates": 50}},
    }
    OmegaConf.save(
        {"title": "Mine", "baseline": "base", "columns": columns, "rows": rows}, configs / "tables/mine.yaml"
    )
    for seed in (1, 2):
        for method, value in (("base", 10), ("rope", 9)):
            write_run(runs / f"lm/big/linear_{method}/updates=50/seed-{seed}", {50: value}, value, 50)
    text = output(capsys, monkeypatch, runs, "--table", "mine")
    assert "not compared" not in text and "updates |" not in text
    table = Table("mine")
    values = aggregate.seed_values(table, load_results(runs))
    found = {}
    for line in values[values["is_measured"]].itertuples():
        cell = table.cells[line.cell]
        found.setdefault((cell.row, cell.column), {})[line.seed] = line.value
    rope, base, short = found["rope", "both"], found["base", "both"], found["rope", "short"]
    assert rope == {seed: (short[seed] + found["rope", "long"][seed]) / 2 for seed in (1, 2)}
    both = report.collect(table, runs).set_index(["row", "column"]).loc[("rope", "both")]
    expected = sum(rope[seed] - base[seed] for seed in (1, 2)) / 2
    assert both["common_seeds"] == 2 and both["difference"] == pytest.approx(expected)


def test_one_row_has_no_rank(runs, capsys, monkeypatch):
    for name in ("base", "rope"):
        (runs / f"lm/big/softmax_{name}").rename(runs / f"softmax_{name}")
    for name in ("rope", "tmlr_type1"):
        (runs / f"lm/big/linear_{name}").rename(runs / f"linear_{name}")
    text = output(capsys, monkeypatch, runs, "--table", "some_table9")
    assert (
        "Ranks need two methods of the same attention that are finished." in text and "Spearman" not in text
    )
    text = output(capsys, monkeypatch, runs, "--table", "some_table9", "--format", "csv")
    assert not any(row["rank"] or row["paper_rank"] for row in csv.DictReader(io.StringIO(text)))


def test_numbers_are_those_of_their_metric(runs, configs, capsys, monkeypatch):
    """A loss has four decimals at any size, and CSV no rest of binary arithmetic."""
    for seed in (1, 2, 3):
        path = runs / f"lm/big/linear_base/seed-{seed}/evaluation.json"
        record = json.loads(path.read_text())
        record["evaluations"] |= {"training": {"tokens_per_second": 9708.8}}
        record["evaluations"]["valid"] |= {"loss": 1.74321, "perplexity": [9.1, 9.2, 9.18][seed - 1]}
        path.write_text(json.dumps(record))
    rows = [{"row": "Base", "attention": "linear", "method": "base"}]
    valid = {"experiment": "lm/big", "evaluation": "valid"}
    columns = {"ppl": valid, "loss": {**valid, "metric": "loss"}}
    columns |= {"speed": {**valid, "evaluation": "training", "metric": "tokens_per_second"}}
    OmegaConf.save({"title": "Mine", "columns": columns, "rows": rows}, configs / "tables/mine.yaml")
    text = output(capsys, monkeypatch, runs, "--table", "mine")
    assert "| linear | Base | 9.16 ± 0.05 (3) | 1.7432 ± 0.0000 (3) | 9,709 ± 0 (3) |" in text
    text = output(capsys, monkeypatch, runs, "--table", "mine", "--format", "csv")
    means = {row["column"]: row["mean"] for row in csv.DictReader(io.StringIO(text))}
    assert means == {"ppl": "9.16", "loss": "1.74321", "speed": "9708.8"}
    assert report.format_published(0.3269, float("nan")) == "0.3269"
    assert report.format_published(2.3, 0.1) == "2.30 ± 0.10"


def test_what_markdown_and_latex_would_read_as_their_own(capsys):
    rows = [["x|y", renderers.Bold("1 & 2")], ["50%_{$}", "<"]]
    parts = [renderers.Section("", pd.DataFrame(rows, columns=["method", "a"], dtype=object))]
    renderers.show(parts, "markdown")
    assert "| x\\|y | **1 & 2** |" in capsys.readouterr().out
    renderers.show(parts, "latex")
    said = capsys.readouterr().out
    assert r"x|y & \textbf{1 \& 2} \\" in said and r"50\%\_\{\$\} & $<$ \\" in said


@pytest.mark.parametrize("better, values, expected", [
    ("lower", {1: 3.0, 2: 1.0, 3: 2.0}, 1.5),
    ("higher", {1: 3.0, 2: 1.0, 3: 2.0}, 2.5),
    ("higher", {1: 3.0, 2: 1.0}, 2.0),
])  # fmt: skip
def test_the_worst_of_three_or_more_seeds_is_left_out_where_the_table_says_so(better, values, expected):
    cell = Cell("softmax", "a row", "a column", better=better, drop_worst=True)
    columns = ["seed", "value", "is_measured", "state", "unit", "signature"]
    lines = pd.DataFrame([(*x, True, "finished", None, None) for x in values.items()], columns=columns)
    found = aggregate._summarize_cell(cell, list(lines.itertuples()), len(values))
    assert (found["mean"], found["seeds"]) == (expected, len(values))
