"""The HTML report: its contents, escaping, damaged runs, plots, and how a browser shows it."""

import fcntl
import json
import sys
from collections import Counter

import plotly.graph_objects as go
import pytest
from html_page import Page
from tiny import run_command, run_here, write_configs, write_run

from fairseq_lrpe.cli import report as command
from fairseq_lrpe.experiments.definition import experiment as experiments
from fairseq_lrpe.experiments.reporting import blocks, interactive_plots, plots, report, style

HOSTILE = '<img src="x" onerror="alert(1)">&amp;</script><script>alert(2)</script>'
FOLDER = "<img src=x onerror=alert(3)>%"  # a folder name
METHODS = {"base": 100, "rope": 95, "tmlr_type1": 90}
VERSIONS = {"python": "3.11.7", "torch": "2.13.0+cpu", "fairseq": "0.12.3.1", "fairseq_lrpe": HOSTILE}


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """A published table at both scales, a table with three columns of the same runs, and an invalid one."""
    rows = [
        {"row": method, "attention": "linear", "method": method, "values": {"valid": value / 10}}
        for method, value in METHODS.items()
    ]
    columns = {"valid": {"metric": "perplexity", "better": "lower"}}
    paper_table = {"shows": "x", "columns": columns, "rows": rows}
    flags = {"kind": "language_modeling", "data": "x", "batch": {"total": 8, "per_gpu": 8}}
    blocks = {f"m_{n}": {"evaluation": f"m_{n}"} for n in (1, 2, 3)}
    files = {
        "paper/paper": {"source": "Someone (2020)", "tables": {"table9": paper_table}},
        "tables/some": {
            **{"paper": "paper", "table": "table9", "title": "A <i>title</i>", "baseline": "base"},
            "columns": {"valid": {"experiment": "lm/big", "mini": "lm/small", "evaluation": "valid"}},
        },
        "tables/over": {
            **{"title": "Over blocks", "experiment": "lm/blocks"},
            "columns": {**blocks, "other": {"experiment": "lm/big", "evaluation": "valid"}},
            "rows": [{"row": m, "attention": "softmax", "method": m} for m in ("base", "rope")],
        },
        "tables/broken": {"title": "Broken", "experiment": "lm/big", "columns": {}},
        "lm/big": {**flags, "seeds": [1, 2], "updates": 100, "evaluations": {"valid": {"split": "valid"}}},
        "lm/small": {"defaults": "lm/big", "updates": 50},
        "lm/blocks": {**flags, "updates": 100, "evaluations": {name: {"split": "valid"} for name in blocks}},
    }
    folder = write_configs(tmp_path / "configs", files)
    monkeypatch.setattr(experiments, "CONFIGS", folder)
    return folder


@pytest.fixture
def runs(configs, tmp_path):
    """Finished, stopped, failed and damaged runs, some of an experiment without a YAML file."""
    folder = tmp_path / "results"
    for method, value in METHODS.items():
        for seed in (1, 2):
            run = folder / f"lm/big/linear_{method}/seed-{seed}"
            write_run(run, {50: 2 * value, 100: value}, value + seed)
    (folder / "lm/big/linear_rope/seed-2/run.json").write_text('{"kind": "language_mod')
    (folder / "lm/big/linear_tmlr_type1/seed-2/evaluation.json").unlink()
    (folder / "lm/big/linear_tmlr_type1/seed-2/train.log").write_text(f"x\nRuntimeError: {HOSTILE}\n\n")
    for seed, valid in ((1, 9), (2, None)):
        write_run(folder / f"lm/{FOLDER}/linear_mine/train.x=%3Cb%3E/seed-{seed}", {20: 8.5}, valid)
    settings = folder / "lm/big/linear_base/seed-1/run.json"
    more = {"versions": VERSIONS, "git": {"revision": "a" * 40, "dirty": True}, "note": HOSTILE}
    more |= {"gpu_names": ["Toy", "Toy"], "precision": "fp16", "started": "2020-01-01T00:00:00+00:00"}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | more))
    return folder


def curve_figure(folder, experiment):
    """Returns the interactive plot of an experiment's curves."""
    return interactive_plots.curve_figure(plots.experiment_lines(report.scan(folder).experiments[experiment]))


def made(folder, *words):
    """Returns the report of a results folder as text."""
    out = folder.parent / "report.html"
    done = run_here(command.main, "--results", folder, "--out", out, *words)
    assert done.returncode == 0, done.stderr
    return out.read_text()


def test_report_contains_tables_and_runs(runs):
    with (runs / "lm/big/linear_tmlr_type1/seed-1/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (runs / "lm/big/linear_tmlr_type1/seed-1/evaluation.json").unlink()
        shown = Page(made(runs))
    text = shown.text()
    assert "A <i>title</i>" in text and "Someone (2020), table9" in text
    assert shown.table("attention", "method", "valid (paper)", "valid (measured)")[:3] == [
        ["linear", "base", "10.00", "101.50 ± 0.71 (2)"],
        ["linear", "rope", "9.50", "96.00 (1 of 2)"],
        ["linear", "tmlr_type1", "9.00", "running 100/100"],
    ]
    assert {"96.00 (1 of 2)", "9.00"} <= shown.bold
    ranks = [rows for rows in shown.tables if rows[-1][1] == "Spearman ρ"]
    assert [row[1:] for row in ranks[0][1:3]] == [["base", "2", "2"], ["rope", "1", "1"]]
    assert shown.table("attention", "method", "valid") == [["linear", "rope", "-5.00 (1 seed: no interval)"]]
    for words in ("contain published numbers", "one has trained for", "only some of the planned seeds"):
        assert words in text
    assert "Runs of this table: 3 finished, 1 running, 1 failed, 1 damaged." in text
    [[run, bar, updated, progress]] = shown.table("run", "updates", "last updated", "progress")
    assert run == "lm/big/linear_tmlr_type1/seed-1" and bar == "100 of 100" and updated.endswith("UTC")
    assert progress.startswith("100 of 100 updates, ppl 90")
    assert ("progress", {"max": "100", "value": "100"}) in shown.tags
    broken = {row[0]: row[1:3] for rows in shown.tables if rows[0][1] == "state" for row in rows[1:]}
    assert broken["lm/big/linear_rope/seed-2"][0].startswith("damaged: Unterminated string")
    assert broken["lm/big/linear_tmlr_type1/seed-2"] == [
        "not measured",
        f"train.log ends: RuntimeError: {HOSTILE}",
    ]
    assert list(broken.values())[-1] == ["stopped at 20 of 100", "-"]
    places = shown.table("versions", "machine", "commit", "runs")
    versions = f"python 3.11.7, torch 2.13.0+cpu, fairseq 0.12.3.1, fairseq_lrpe {HOSTILE}"
    assert [versions, "2 × Toy fp16", "aaaaaaaaaaaa with changes", "1"] in places
    settings = [row for rows in shown.tables if rows[0] == ["key", "value"] for row in rows]
    assert ["config.updates", "100"] in settings and ["evaluations.valid.perplexity", "101"] in settings
    assert Counter(tag for tag, _ in shown.tags)["details"] == 8
    assert "The table broken cannot be shown: " in text and "columns: dictionary should have" in text


def test_files_are_escaped_and_nothing_is_fetched(runs):
    text = made(runs)
    shown = Page(text)
    assert FOLDER in shown.text() and "train.x=<b>" in shown.text()
    tags = Counter(tag for tag, _ in shown.tags)
    assert not tags.keys() & {"img", "link", "iframe", "i", "object", "embed", "base", "form"}
    assert tags["script"] == 1 + sum("plotly-graph-div" in x.get("class", "") for _, x in shown.tags)
    targets = {given["id"] for _, given in shown.tags if "id" in given}
    for tag, given in shown.tags:
        assert not given.keys() & {"src", "srcset", "data", "poster", "action", "onerror", "background"}, tag
        if "href" in given:
            assert given["href"].startswith("#") and given["href"][1:] in targets
    [style] = shown.texts["style"]
    assert "url(" not in style and "@import" not in style
    for drawing in shown.texts["script"][1:]:
        assert "alert(" not in drawing.replace("\\u003cimg src=x onerror", "")
        assert '"showSendToCloud": false' in drawing and "<img" not in drawing and "<script" not in drawing


def test_damaged_runs(runs):
    (runs / "lm/big/linear_base/seed-2/log.jsonl").write_text("x\n{}\n")
    (runs / "lm/big/linear_rope/seed-1/run.json").write_text("3")
    shown = Page(made(runs))
    states = {row[0]: row[1] for rows in shown.tables if rows[0][1] == "state" for row in rows[1:]}
    assert states["lm/big/linear_base/seed-2"].startswith("damaged: ")
    assert "log.jsonl is damaged (line 1" in states["lm/big/linear_base/seed-2"]
    rows = shown.table("attention", "method", "valid (paper)", "valid (measured)")
    assert [row[3] for row in rows] == ["101.00 (1 of 2)", "damaged", "91.00 (1 of 2)"]
    assert "“damaged”: the files" in shown.text()
    for path in runs.rglob("run.json"):
        path.write_text("3")
    shown = Page(made(runs))
    rows = shown.table("attention", "method", "valid (paper)", "valid (measured)")
    assert [row[3] for row in rows] == ["damaged"] * 3 and "There are no curves" in shown.text()


def test_table_run_with_overrides(runs):
    for method in ("base", "rope"):
        write_run(runs / f"lm/big/linear_{method}/updates=50/seed-1", {50: 120}, 130, 50)
    write_run(runs / "lm/big/linear_base/train.x=1/seed-1", {100: 120}, 131)  # of one method: no table
    names = Page(made(runs)).texts["code"]
    assert "some" in names and "some updates=50" in names and not any("train.x=1" in x for x in names[:3])


def test_curves_have_the_styles_of_other_plots(runs):
    markers = {*style.MARKERS, *(marker for _, marker in style.METHOD_STYLES.values())}
    assert markers == set(interactive_plots.SYMBOLS)
    for symbol in interactive_plots.SYMBOLS.values():
        for fill in ("", "-open"):
            go.Scatter(marker={"symbol": symbol + fill})  # raises for an unknown symbol
    for method, softmax in (("base", "softmax"), ("rope", "softmax")):
        write_run(runs / f"lm/big/{softmax}_{method}/seed-1", {50: 300, 100: 50}, 50)
    figure = curve_figure(runs, "lm/big")
    lines = {trace.meta: trace for trace in figure.data}
    assert len(lines) == 7  # the damaged run has none
    rope, softmax = lines["linear rope, seed 1"], lines["softmax rope, seed 1"]
    assert rope.line.color == softmax.line.color == style.METHOD_STYLES["rope"][0]
    assert rope.line.dash == "solid" and softmax.line.dash == "7.5px,3.0px"
    assert list(rope.x) == [50, 100] and list(rope.y) == [190, 95]
    (left, right), (bottom, top) = figure.layout.xaxis.range, figure.layout.yaxis.range
    assert (left, right) == (49, 101) and figure.layout.yaxis.type == "log" and 10**bottom < 50 < 10**top
    write_run(runs / "lm/big/linear_per/seed-1", {2: 900, 3: 800, 4: 700})  # has just begun
    figure = curve_figure(runs, "lm/big")
    assert figure.layout.xaxis.range[0] < 2 and 700 < 10 ** figure.layout.yaxis.range[1] < 800
    both = [lines[f"linear base, seed {seed}"] for seed in (1, 2)]
    assert both[0].legendgroup == both[1].legendgroup and [x.showlegend for x in both] == [True, False]


def test_plot_of_columns_of_the_same_runs(runs):
    step = 400
    for method in ("base", "rope"):
        folder = runs / f"lm/blocks/softmax_{method}/seed-1"
        write_run(folder, {50: 300, 100: 50})
        measured = {f"m_{n}": {"perplexity": 10 + step * (n - 1)} for n in (1, 2, 3)}
        (folder / "evaluation.json").write_text(json.dumps({"evaluations": measured, "finished": "x"}))
        write_run(runs / f"lm/big/softmax_{method}/seed-1", {100: 50}, 50)
    found = report.scan(runs).tables
    drawn = {table.name: interactive_plots.column_figure(table, summary) for table, summary in found}
    assert drawn.keys() == {"some", "over"} and drawn["some"] is None
    assert [trace.meta for trace in drawn["over"].data] == ["softmax base", "softmax rope"]
    [trace, other], axis = drawn["over"].data, drawn["over"].layout.yaxis
    assert drawn["over"].layout.showlegend  # plotly hides the legend of a single line by default
    assert trace.line.color != other.line.color and trace.marker.symbol != other.marker.symbol
    assert list(trace.x) == ["m 1", "m 2", "m 3"] and list(trace.y) == [10, 10 + step, 10 + 2 * step]
    assert axis.type == "log"


def test_long_keys_are_wrapped():
    assert blocks.breakable("lm/a_b/train.x=1") == "lm/<wbr>a_b/<wbr>train.<wbr>x=1"
    assert blocks.breakable("<b>/&amp;") == "&lt;b&gt;/&amp;amp;"
    name = "softmax rope, train.memory=state, train.zipfian_validate_interval_updates=10"
    wrapped = ["    train.memory=state,", "    train.zipfian_validate_interval_updates=10"]
    assert interactive_plots.legend_text("1.00", name).split("<br>")[1:] == wrapped


@pytest.mark.parametrize(("words", "message"), [
    ("--results {nowhere}", "does not exist"),
    ("--results {empty}", "has no runs: give the folder"),
    ("--results {runs} --out {empty}/x.png", "argument --out: must be a file that ends in .html, not"),
    ("--results {runs} --out {runs}/lm/big/x.html/y.html", "is not a writable folder ("),
])  # fmt: skip
def test_invalid_arguments(words, message, runs, tmp_path):
    (tmp_path / "empty").mkdir()
    (runs / "lm/big/x.html").touch()
    places = {name: tmp_path / name for name in ("empty", "nowhere")}
    done = run_here(command.main, *words.format(runs=runs, **places).split())
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and message in last and "Traceback" not in done.stderr


def test_without_plotly(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    done = run_here(command.main, "--results", runs)
    message = "report: plotly is missing: run `pip install 'fairseq-lrpe[report]'`"
    assert done.stderr.splitlines()[-1] == message and not (runs / "report.html").exists()


def test_a_real_run(translating):
    folder, _ = translating
    results = folder.parents[len(folder.parts) - folder.parts.index("mt") - 1]
    done = run_command("python", "-m", "fairseq_lrpe", "report", "--results", results)
    assert done.returncode == 0, done.stderr
    shown = Page((results / "report.html").read_text())
    assert "mt/multi30k" in shown.text() and "validation perplexity" in "".join(shown.texts["script"][1:])
    [[versions, machine, _, n]] = shown.table("versions", "machine", "commit", "runs")
    settings = json.loads((folder / "run.json").read_text())
    assert f"torch {settings['versions']['torch']}" in versions and machine.startswith("CPU (") and n == "1"
    (results / "report.html").unlink()
