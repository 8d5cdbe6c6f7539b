"""The HTML report: its contents, escaping, damaged runs, plots, and how a browser shows it."""

import json
import re
import sys
from collections import Counter
from datetime import UTC, datetime

import pandas as pd
import pytest
from support.html_page import Page
from support.tiny import run_here, write_configs, write_run

from fairseq_lrpe.cli import report as command
from fairseq_lrpe.experiments.execution.run_directory import locked
from fairseq_lrpe.experiments.reporting import interactive_plots, plots, report, style

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


def made(folder):
    """Returns the report of a results folder as text."""
    out = folder.parent / "report.html"
    done = run_here(command.main, "--results", folder, "--out", out)
    assert done.returncode == 0, done.stderr
    return out.read_text()


def test_report_contains_tables_and_runs(runs):
    with locked(runs / "lm/big/linear_tmlr_type1/seed-2"):
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
    counts = "8 finished, 1 running, 1 stopped, 1 failed, 1 damaged, 24 not started."
    assert f"Runs of this table: {counts}" in text
    [[run, bar, updated, progress]] = shown.table("run", "updates", "last updated", "progress")
    assert run == "lm/big/linear_tmlr_type1/seed-2" and bar == "100 of 100" and updated.endswith("UTC")
    assert progress.startswith("100 of 100 updates, ppl 96")
    broken = {row[0]: row[1:3] for rows in shown.tables if rows[0][1] == "state" for row in rows[1:]}
    assert broken["lm/big/linear_rope/seed-2"][0].startswith("damaged: run.json is damaged (it is not JSON: ")
    assert broken["lm/big/linear_base/seed-3"] == ["not measured", f"train.log ends: RuntimeError: {HOSTILE}"]
    assert broken["lm/big/linear_tmlr_type2/seed-1"] == ["stopped at 40 of 100", "-"]
    places = shown.table("number", "versions", "machine", "commit", "runs")
    versions = f"python 3.11.7, torch 2.13.0+cpu, fairseq 0.12.3.1, fairseq_lrpe {HOSTILE}"
    [number] = [
        row[0] for row in places if row[1:] == [versions, "2 × Toy fp16", "aaaaaaaaaaaa with changes", "1"]
    ]
    settings = [row for rows in shown.tables if rows[0] == ["key", "value"] for row in rows]
    assert ["config.updates", "100"] in settings
    lists = [rows for rows in shown.tables if rows[0][:2] == ["state", "run"]]
    rows = [dict(zip(rows[0], row, strict=True)) for rows in lists for row in rows[1:]]
    [row] = [row for row in rows if row["run"] == "linear_base/seed-1"]
    assert row["valid perplexity"] == "100" and row["environment"] == number
    assert f"note: {HOSTILE}" in row["other settings"] and "config.updates" not in row["other settings"]


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


def test_table_run_with_overrides(runs):
    for method in ("base", "rope"):
        write_run(runs / f"lm/big/linear_{method}/updates=50/seed-1", {50: 120}, 130, 50)
    write_run(runs / "lm/big/linear_base/train.x=1/seed-1", {100: 120}, 131)  # of one method: no table
    names = Page(made(runs)).texts["code"]
    assert {"some_table9", "some_table9 updates=50"} <= set(names) and "some_table9 train.x=1" not in names


def test_curves_have_the_styles_of_other_plots(runs):
    markers = {*style.MARKERS, *(marker for _, marker in style.METHOD_STYLES.values())}
    assert markers == set(interactive_plots.SYMBOLS)
    records = [record for record in report.scan(runs).records if record.run.experiment == "lm/big"]
    figure = interactive_plots.curve_figure(plots.experiment_lines(records))
    lines = {trace.meta: trace for trace in figure.data}
    assert len(lines) == 11  # the damaged run has none
    rope, softmax = lines["linear rope, seed 1"], lines["softmax rope, seed 1"]
    assert rope.line.color == softmax.line.color == style.METHOD_STYLES["rope"][0]
    assert rope.line.dash == "solid" and softmax.line.dash == "7.5px,3.0px"
    assert list(rope.x) == [50, 100] and list(rope.y) == [184, 92]
    in_legend = [trace.legendgroup for trace in figure.data if trace.showlegend is not False]
    assert sorted(in_legend) == sorted({trace.legendgroup for trace in figure.data})


def test_curves_of_one_point_are_not_plotted(runs):
    once = [record for record in report.scan(runs).records if "mine" in record.run.method]
    assert [len(record.curve) for record in once] == [1, 1]
    assert interactive_plots.curve_figure(plots.experiment_lines(once)) is None
    sentence = "There are no curves, since no run has been validated twice."
    before = made(runs).count(sentence)
    write_run(runs / f"lm/{FOLDER}/linear_mine/train.x=%3Cb%3E/seed-3", {20: 8.5, 40: 8.4}, 8)
    assert made(runs).count(sentence) == before - 1


def test_plot_of_columns_of_the_same_runs(runs, configs):
    columns = {f"m_{n}": {"evaluation": f"m_{n}"} for n in (1, 2, 3)}
    rows = [{"row": m, "attention": "softmax", "method": m} for m in ("rope", "base")]
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
    drawn = {table.name: interactive_plots.column_figure(table, summary) for table, _, summary in found}
    assert drawn.keys() == {"some_table9", "some_figure", "over"} and drawn["some_table9"] is None
    assert [trace.meta for trace in drawn["over"].data] == ["softmax rope", "softmax base"]
    trace = drawn["over"].data[0]
    assert list(trace.x) == ["m 1", "m 2", "m 3"] and list(trace.y) == [10, 410, 810]


def test_without_plotly(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    done = run_here(command.main, "--results", runs)
    message = "report: plotly is missing: run `pip install '.[report]'` in the checkout"
    assert done.stderr.splitlines()[-1] == message and not (runs / "report.html").exists()


def test_thinned_lines_have_the_same_shape():
    values = pd.Series([(n % 7) + 0.1 * n for n in range(1000)], index=range(0, 10_000, 10))
    values.iloc[[333, 500]] = [-50.0, 900.0]
    for count in (4, 5, 32, 501):
        thin = interactive_plots.thinned(values, count)
        assert count / 2 <= len(thin) <= count and thin.index.is_monotonic_increasing
        assert thin.equals(values[thin.index]) and {0, 3330, 5000, 9990} <= set(thin.index)
    assert interactive_plots.thinned(values, 1000).equals(values)
    assert len(interactive_plots.thinned(values, 0)) == 4


def test_size_of_a_report_of_many_runs(tmp_path, monkeypatch):
    def size(methods, seeds):
        folder = tmp_path / f"{methods}"
        for method in range(methods):
            for seed in range(1, seeds + 1):
                curve = {10 * n: round(50 + 100 / n + seed / 7, 2) for n in range(1, 101)}
                write_run(folder / f"lm/gone/linear_method{method}/seed-{seed}", curve, 40 + seed / 7)
        return report.render(report.scan(folder), datetime.now(UTC)), curve

    few, curve = size(1, 2)
    [points] = {tuple(x) for x in drawn_updates(few)}
    assert list(points) == list(curve)  # all of them
    monkeypatch.setattr(report, "MAX_POINTS", 24 * 200)  # as few points for each of 200 runs as of 5,000
    many, _ = size(20, 10)
    assert {len(x) for x in drawn_updates(many)} == {24} and many.count("<tr id=") == 200
    assert len(few.encode()) + 5000 * (len(many.encode()) - len(few.encode())) / 198 < 10e6


def drawn_updates(page):
    """Returns the numbers of updates of each line in the plots of a page."""
    return [json.loads(text) for text in re.findall(r'"x":(\[[\d,.]+\])', page)]
