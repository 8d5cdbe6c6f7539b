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
from fairseq_lrpe.experiments.reporting import blocks, interactive_plots, plots, report, style

HOSTILE = '<img src="x" onerror="alert(1)">&amp;</script><script>alert(2)</script>'
FOLDER = "<img src=x onerror=alert(3)>%"  # a folder name
VERSIONS = {"python": "3.11.7", "torch": "2.13.0+cpu", "fairseq": "0.12.3.1", "fairseq_lrpe": HOSTILE}
COLUMNS = ["a valid (paper)", "a valid (measured)", "b test (paper)", "b test (measured)"]


@pytest.fixture
def runs(configs, runs):
    """Also failed and damaged runs, and some of an experiment without a YAML file."""
    (runs / "lm/big/linear_rope/seed-2/run.json").write_text('{"kind": "language_mod')
    (runs / "lm/big/linear_base/seed-3/evaluation.json").unlink()
    (runs / "lm/big/linear_base/seed-3/train.log").write_text(f"x\nRuntimeError: {HOSTILE}\n\n")
    for seed, valid in ((1, 9), (2, None)):
        write_run(runs / f"lm/{FOLDER}/linear_mine/train.x=%3Cb%3E/seed-{seed}", {20: 8.5}, valid)
    settings = runs / "lm/big/linear_base/seed-1/run.json"
    more = {"versions": VERSIONS, "git": {"revision": "a" * 40, "dirty": True}, "note": HOSTILE}
    more |= {"gpu_names": ["Toy", "Toy"], "precision": "fp16", "started": "2020-01-01T00:00:00+00:00"}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | more))
    return runs


def curve_figure(folder, experiment):
    """Returns the interactive plot of an experiment's curves."""
    records = [record for record in report.scan(folder).records if record.run.experiment == experiment]
    return interactive_plots.curve_figure(plots.experiment_lines(records))


def made(folder, *words):
    """Returns the report of a results folder as text."""
    out = folder.parent / "report.html"
    done = run_here(command.main, "--results", folder, "--out", out, *words)
    assert done.returncode == 0, done.stderr
    return out.read_text()


def states(page):
    """Returns {run: (state, end of its log)} of the runs with problems."""
    return {row[0]: row[1:3] for rows in page.tables if rows[0][1] == "state" for row in rows[1:]}


def test_report_contains_tables_and_runs(runs):
    with (runs / "lm/big/linear_tmlr_type1/seed-2/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (runs / "lm/big/linear_tmlr_type1/seed-2/evaluation.json").unlink()
        shown = Page(made(runs))
    text = shown.text()
    assert "A <i>title</i>" in text and "Someone (2020), table9" in text
    assert [row[:4] for row in shown.table("attention", "method", *COLUMNS)[:4]] == [
        ["linear", "Base", "10.00", "101.00 ± 1.41 (2 of 3)"],
        ["linear", "RoPE", "9.00", "95.00 ± 4.24 (2 of 3)"],
        ["linear", "Type1", "8.00 ± 0.10", "running 100/100"],
        ["linear", "Type2", "8.50", "stopped at 40 of 100"],
    ]
    assert {"95.00 ± 4.24 (2 of 3)", "8.00 ± 0.10"} <= shown.bold
    ranks = next(rows for rows in shown.tables if rows[-1][1] == "Spearman ρ")
    assert [row[1:] for row in ranks[1:3]] == [["Base", "2", "2"], ["RoPE", "1", "1"]]
    assert any(["linear", "RoPE", "-8.00 (1 seed: no interval)"] in rows for rows in shown.tables)
    for words in ("contain published numbers", "one has trained for", "only some of the planned seeds"):
        assert words in text
    counts = "8 finished, 1 running, 1 stopped, 1 failed, 1 damaged, 24 not started."
    assert f"Runs of this table: {counts}" in text
    [[run, bar, updated, progress]] = shown.table("run", "updates", "last updated", "progress")
    assert run == "lm/big/linear_tmlr_type1/seed-2" and bar == "100 of 100" and updated.endswith("UTC")
    assert progress.startswith("100 of 100 updates, ppl 96")
    assert ("progress", {"max": "100", "value": "100"}) in shown.tags
    broken = states(shown)
    assert broken["lm/big/linear_rope/seed-2"][0].startswith("damaged: Unterminated string")
    assert broken["lm/big/linear_base/seed-3"] == ["not measured", f"train.log ends: RuntimeError: {HOSTILE}"]
    assert broken["lm/big/linear_tmlr_type2/seed-1"] == ["stopped at 40 of 100", "-"]
    places = shown.table("versions", "machine", "commit", "runs")
    versions = f"python 3.11.7, torch 2.13.0+cpu, fairseq 0.12.3.1, fairseq_lrpe {HOSTILE}"
    assert [versions, "2 × Toy fp16", "aaaaaaaaaaaa with changes", "1"] in places
    settings = [row for rows in shown.tables if rows[0] == ["key", "value"] for row in rows]
    assert ["config.updates", "100"] in settings and ["evaluations.valid.perplexity", "100"] in settings
    assert Counter(tag for tag, _ in shown.tags)["details"] == 14


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
    for seed in (1, 3):
        (runs / f"lm/big/linear_rope/seed-{seed}/run.json").write_text("3")
    shown = Page(made(runs))
    assert "log.jsonl is damaged (line 1" in states(shown)["lm/big/linear_base/seed-2"][0]
    measured = [row[3] for row in shown.table("attention", "method", *COLUMNS)]
    assert measured[:2] == ["100.00 (1 of 3)", "damaged"]
    assert "“damaged”: the files" in shown.text()
    for path in runs.rglob("run.json"):
        path.write_text("3")
    shown = Page(made(runs))
    assert [row[3] for row in shown.table("attention", "method", *COLUMNS)][:4] == ["damaged"] * 4
    assert "There are no curves" in shown.text()


def test_table_run_with_overrides(runs):
    for method in ("base", "rope"):
        write_run(runs / f"lm/big/linear_{method}/updates=50/seed-1", {50: 120}, 130, 50)
    write_run(runs / "lm/big/linear_base/train.x=1/seed-1", {100: 120}, 131)  # of one method: no table
    names = Page(made(runs)).texts["code"]
    assert {"some_table9", "some_table9 updates=50"} <= set(names) and "some_table9 train.x=1" not in names


def test_curves_have_the_styles_of_other_plots(runs):
    markers = {*style.MARKERS, *(marker for _, marker in style.METHOD_STYLES.values())}
    assert markers == set(interactive_plots.SYMBOLS)
    for symbol in interactive_plots.SYMBOLS.values():
        for fill in ("", "-open"):
            go.Scatter(marker={"symbol": symbol + fill})  # raises for an unknown symbol
    figure = curve_figure(runs, "lm/big")
    lines = {trace.meta: trace for trace in figure.data}
    assert len(lines) == 11  # the damaged run has none
    rope, softmax = lines["linear rope, seed 1"], lines["softmax rope, seed 1"]
    assert rope.line.color == softmax.line.color == style.METHOD_STYLES["rope"][0]
    assert rope.line.dash == "solid" and softmax.line.dash == "7.5px,3.0px"
    assert list(rope.x) == [50, 100] and list(rope.y) == [184, 92]
    (left, right), (bottom, top) = figure.layout.xaxis.range, figure.layout.yaxis.range
    assert left < 50 and right > 100 and figure.layout.yaxis.type == "log" and 10**bottom < 47 < 10**top
    write_run(runs / "lm/big/linear_per/seed-1", {2: 900, 3: 800, 4: 700})  # has just begun
    figure = curve_figure(runs, "lm/big")
    assert figure.layout.xaxis.range[0] < 2 and 700 < 10 ** figure.layout.yaxis.range[1] < 800
    both = [lines[f"linear base, seed {seed}"] for seed in (1, 2)]
    assert both[0].legendgroup == both[1].legendgroup and [x.showlegend for x in both] == [True, False]


def test_plot_of_columns_of_the_same_runs(runs, configs):
    columns = {f"m_{n}": {"evaluation": f"m_{n}"} for n in (1, 2, 3)}
    rows = [{"row": m, "attention": "softmax", "method": m} for m in ("base", "rope")]
    over = {"title": "Over blocks", "experiment": "lm/blocks", "rows": rows}
    over["columns"] = {**columns, "other": {"experiment": "lm/big", "evaluation": "valid"}}
    blocks = {
        "defaults": "lm/big",
        "seeds": [1],
        "evaluations": {name: {"split": "valid"} for name in columns},
    }
    write_configs(configs, {"tables/over": over, "lm/blocks": blocks})
    for method in ("base", "rope"):
        folder = runs / f"lm/blocks/softmax_{method}/seed-1"
        write_run(folder, {50: 300, 100: 50})
        measured = {f"m_{n}": {"perplexity": 400 * n - 390} for n in (1, 2, 3)}
        (folder / "evaluation.json").write_text(json.dumps({"evaluations": measured, "finished": "x"}))
    found = report.scan(runs).tables
    drawn = {table.name: interactive_plots.column_figure(table, summary) for table, summary in found}
    assert drawn.keys() == {"some_table9", "some_figure", "over"} and drawn["some_table9"] is None
    assert [trace.meta for trace in drawn["over"].data] == ["softmax base", "softmax rope"]
    [trace, other], axis = drawn["over"].data, drawn["over"].layout.yaxis
    assert drawn["over"].layout.showlegend  # plotly hides the legend of a single line by default
    assert trace.line.color != other.line.color and trace.marker.symbol != other.marker.symbol
    assert list(trace.x) == ["m 1", "m 2", "m 3"] and list(trace.y) == [10, 410, 810]
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
])  # fmt: skip
def test_invalid_arguments(words, message, runs, tmp_path):
    (tmp_path / "empty").mkdir()
    places = {name: tmp_path / name for name in ("empty", "nowhere")}
    done = run_here(command.main, *words.format(runs=runs, **places).split())
    assert done.returncode != 0 and message in done.stderr.strip().splitlines()[-1]


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
    assert "transformer/multi30k" in shown.text() and "validation perplexity" in "".join(
        shown.texts["script"][1:]
    )
    [[versions, machine, _, n]] = shown.table("versions", "machine", "commit", "runs")
    settings = json.loads((folder / "run.json").read_text())
    assert f"torch {settings['versions']['torch']}" in versions and machine.startswith("CPU (") and n == "1"
    (results / "report.html").unlink()
