"""The atlas of encodings: its cards, its numbers, and the weights that it draws."""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from support.html_page import Page
from support.tiny import run_here

from fairseq_lrpe.attention import SoftmaxAttention
from fairseq_lrpe.attention.weights import attention_weights, relative_weights
from fairseq_lrpe.cli import report, results
from fairseq_lrpe.cli.results import RECORDED
from fairseq_lrpe.encodings import START
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.inference import attention as inference
from fairseq_lrpe.experiments.reporting import atlas, recorded_files, recording
from fairseq_lrpe.experiments.reporting.answers import QUESTIONS, answers
from fairseq_lrpe.experiments.reporting.differences import quantile
from fairseq_lrpe.experiments.reporting.recorded_results import read_weights
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.experiments.reporting.settings import configured_settings
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.positions import POSITIONS

PERPLEXITIES = {("linear", "rope"): 20.25, ("softmax", "rope"): 9.5, ("linear", "alibi"): 11.75}
PERPLEXITIES[("linear", "hierarchical")] = 14.25
HIERARCHICAL = {"train.token_positions": "hierarchical", "train.max_target_positions": None}


def write_records(folder, measured, kind):
    """Writes {run: {(evaluation, metric): value}} as recorded results of one experiment."""
    (folder / "settings").mkdir(exist_ok=True)
    lines, numbers = [], []
    for run, settings in configured_settings(measured).items():
        line = {"experiment": run.experiment, "attention": run.attention, "method": run.method}
        line |= {"seed": run.seed, "changes": dict(run.changes), "kind": kind, "updates": 800, "seconds": 1}
        lines.append(line | {"config": settings[""], "evaluations": {}, "finished": "2020-01-01"})
        numbers += [(*recording.row_key(run), *key, value, "") for key, value in measured[run].items()]
    name = lines[0]["experiment"].replace("/", "-")
    (folder / "settings" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    recorded_files.merge_rows(
        folder / "measurements" / f"{name}.csv", recording.MEASUREMENTS, numbers, measured
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recorded results: perplexities of four models with two seeds, and one speed."""
    path, measured = tmp_path_factory.mktemp("records"), {}
    experiment = Experiment.load("lm/extrapolation_mini")
    for (attention, method), perplexity in PERPLEXITIES.items():
        of = ("nope", [1, 2], HIERARCHICAL) if method == "hierarchical" else (method, [1, 2])
        for run in experiment.runs(attention, *of):
            values = {2**n: perplexity + 2 * n + run.seed for n in range(5)}
            measured[run] = {(f"test_x{n}", "perplexity"): value for n, value in values.items()}
    write_records(path, measured, "lm")
    [run] = Experiment.load("speed/lm_mini").runs("linear", "rope", [1])
    write_records(
        path, {run: {("steps", "relative_speed"): 0.75, ("steps", "relative_memory"): 1.25}}, "speed"
    )
    return path


@pytest.fixture(scope="module")
def path(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("atlas") / "atlas.html"
    done = run_here(report.main, "--results", folder, "--atlas", out)
    assert done.returncode == 0 and done.stderr == f"{out} shows the atlas\n"
    return out


def test_every_method_has_a_card(path):
    text = path.read_text()
    page = Page(text)
    cards = [attributes for tag, attributes in page.tags if attributes.get("class") == "card"]
    names = sorted(name for card in cards for name in card["data-name"].split())
    assert names == sorted([*METHODS, "learned", "randomized", *POSITIONS])
    positions = [card for card in cards if card["data-kind"] == "token positions"]
    assert text.count("<svg") == len(cards) - len(positions) + 1 and len(text) < 3e6
    assert "&lt;code" not in text and "``" not in text and ":class:" not in text


def test_numbers(path):
    """All numbers that are shown as measured, and only these, are those of the records."""
    text = path.read_text()
    head, cards = text.replace("\u00a0", " ").split("<h2>Encodings</h2>")
    values = re.findall(r'<td data-value="(.+?)">(\S+ ± \S+|\S+) \((.+?)\)</td>', head)
    means = {key: [x + 1.5 + 2 * n for n in (0, 2, 4)] for key, x in PERPLEXITIES.items()}
    expected = [(f"{x}", f"{x:.2f} ± 0.71", "2 of 3") for found in means.values() for x in found]
    expected.append(("0.75", "0.75", "1"))
    assert sorted(values) == sorted(expected)
    rows = re.findall(r'<a href="#card-(\w+)">\w+</a></td>\s*<td class="text">(\w+)</td>', head)
    measured = [("rope", "softmax"), ("alibi", "linear"), ("hierarchical", "linear"), ("rope", "linear")]
    assert rows[:4] == measured  # by 16 ×
    points = re.findall(r"<title>(\w+), (\w+) attention, .*?: (.+?) at 1 ×, (.+?) at 16 ×", head)
    assert sorted(points) == sorted((name, x, f"{v[0]:.2f}", f"{v[2]:.2f}") for (x, name), v in means.items())
    card = cards.split('id="card-rope"')[1].split("</section>")[0]
    assert [float(x) for x in re.findall('data-value="(.+?)"', card)] == [
        *(x for n in range(5) for x in (21.75 + 2 * n, 11 + 2 * n)),
        0.75,
        1.25,
    ]
    assert card.count("not measured") == 2  # speed and memory in softmax attention
    assert cards.split('id="card-learned"')[1].split("</section>")[0].count(">–<") == 2 * 4


@pytest.mark.slow
def test_needles_by_depth(tmp_path):
    measured = {}
    for run in Experiment.load("synthetic_lm/needle_mini").runs("softmax", "rope", [1, 2]):
        rates = {("test_x1", f"quarter_{n}"): 10 * n + run.seed for n in range(1, 5)}
        measured[run] = {**rates, ("test_x1", "exact"): 26.5, ("test_x2", "exact"): 1.5}
    write_records(tmp_path, measured, "synthetic_lm")
    text = atlas.render(tmp_path)
    assert text.count('class="heat"') == 1
    card = text.split('id="card-rope"')[1].split("</section>")[0].split('class="heat"')[1]
    cells = re.findall('quarter (.)</th>\\s*<td style="--rate: (.+?)">(.+?)</td>\\s*</tr>', card)
    assert cells == [("1", "11.5", "12"), ("2", "21.5", "22"), ("3", "31.5", "32"), ("4", "41.5", "42")]


@pytest.mark.slow
def test_answers():
    """The answers are those that the recorded numbers give, computed anew."""
    frame = pd.concat(pd.read_csv(path) for path in (RECORDED / "measurements").glob("*.csv"))
    recorded = read_runs(RECORDED)
    found = {answer.question: answer for answer in answers({record.run: record for record in recorded})}
    assert list(found) == [about[0] for about in QUESTIONS]
    assert found["Linear attention"].best and found["Images, linear attention"].best
    assert not found["Images, softmax attention"].best
    frame = frame[frame.changes.isna()].rename(columns={"value": "x"})
    for question, basis, name, column, attention in QUESTIONS:
        answer, table = found[question], Table(name, "mini")
        cells = [x for x in table.cells if (x.column, x.attention) == (column, attention) and x.runs]
        if question.startswith(("Smallest cost", "Classification of pairs")) or not cells:
            continue  # with a choice of trials, or only some of the methods
        cell = cells[0]
        planned = {x.runs[0].method for x in cells if not x.runs[0].changes and x.runs[0].method in METHODS}
        kept = frame[(frame.experiment == cell.experiment) & (frame.attention == attention)]
        kept = kept[(kept.evaluation == cell.evaluation) & (kept.metric == cell.metric)]
        seeds = kept.pivot(index="method", columns="seed", values="x")
        seeds = seeds.loc[sorted(planned & {*seeds.index})].dropna(axis="columns")
        means = seeds.mean(axis=1)
        best = means.idxmax() if cell.better == "higher" else means.idxmin()
        assert answer.best.method == best and answer.best.mean == pytest.approx(means[best])
        assert ("lowest" in basis) == (cell.better == "lower")
        assert answer.seeds == len(seeds.columns)
        values = np.log(seeds) if cell.metric == "perplexity" else seeds
        different = {method for method in values.index if is_different(values, method, best)}
        equal = {x.method for x in answer.equal}
        assert equal == {*seeds.index} - different - {best}, question


def is_different(values, method, best):
    (k, n), ours, base = values.shape, values.loc[method], values.loc[best]
    if n < 3 or method == best:
        return False
    apart = abs(ours.mean() - base.mean())
    pooled = quantile(k, k * (n - 1)) * (values.var(axis=1).mean() / n) ** 0.5
    one, other = ours.var() / n, base.var() / n
    freedom = (one + other) ** 2 / (one**2 + other**2) * (n - 1) if one + other else n - 1
    own = quantile(k, int(freedom * 10 + 1e-9) / 10) * ((one + other) / 2) ** 0.5
    return bool(apart > max(pooled, own))


@pytest.mark.slow
def test_answers_state_their_basis():
    """The first line has the seeds, the size, the length of the training, and "causal only"."""
    text = atlas.render(RECORDED).replace("\u00a0", " ")
    lines = re.findall(
        r"<li><b>(.+?)</b>(.+?)</li>", text.split('<ul class="answers">')[1].split("</ul>")[0], re.S
    )
    assert len(lines) == len(QUESTIONS)
    for question, line in lines:
        is_measured = "not measured" not in line
        stated = re.match(r" \(\d seeds; [\d +]+ layers of width \d+, [\d,]+ updates\): ", line)
        assert bool(stated) == is_measured, (question, line)
        for name, rest in re.findall(r'href="#card-(\w+)">\w+</a>( \([^)]*\))?', line):
            assert ("causal only" in rest) == (not METHODS[name].bidirectional), (question, name)
    two_seeds = dict(lines)["Images, linear attention"]
    assert "(2 seeds; " in two_seeds and "no encoding can be told apart" in two_seeds
    cards = text.split("<h2>Encodings</h2>")[1]
    for name in ("fox", "rope", "alibi"):
        card = cards.split(f'id="card-{name}"')[1].split("</section>")[0]
        assert ("<dd>causal only</dd>" in card) == (not METHODS[name].bidirectional)


@pytest.mark.slow
def test_recorded_weights(folder, tmp_path, monkeypatch):
    """Weights are recorded for the first seed, and shown unless the settings have changed since."""
    experiment = Experiment.load("lm/extrapolation_mini")
    runs = [run for seed in ([2], [1]) for run in experiment.runs("softmax", "rope", seed)]
    monkeypatch.setattr(inference, "trained_weights", lambda path: torch.arange(128) / 7)
    found = {run: SimpleNamespace(folder=tmp_path) for run in runs}
    monkeypatch.setattr(recording, "finished_runs", lambda results: (found, []))
    copy = shutil.copytree(folder, tmp_path / "records")
    for _ in range(2):  # a second record replaces the first one
        done = run_here(results.main, "--results", tmp_path, "--record-weights", copy)
        assert done.returncode == 0 and "weights of 1 model recorded" in done.stdout
    [(run, points)] = read_weights(copy, runs).items()
    assert run == runs[1] and points[0] == (0, 0.0) and points[-1][0] == 125 and len(points) == 64
    assert all(value == pytest.approx(distance / 7, rel=1e-3) for distance, value in points)
    assert atlas.render(copy).count("weights after training</figcaption>") == 1
    file = copy / "settings/lm-extrapolation_mini.jsonl"
    file.write_text(file.read_text().replace('"train.lr": ', '"train.lr": 1'))
    assert atlas.render(copy).count("weights after training</figcaption>") == 0


@pytest.mark.parametrize("name", ["xl", "cope"])
def test_weights_of_softmax_attention(name):
    """The module sums the values with these weights."""
    attention = SoftmaxAttention(16, 2, name, causal=True).double().eval()
    q, k, v = torch.randn(3, 2, 2, 9, 8, dtype=torch.float64)
    out, _ = attention.attend(q, k, v, START, None, False)
    assert torch.allclose(attention_weights(attention, q, k) @ v, out)


def test_uniform_weights_are_one():
    weights = torch.ones(3, 8, 8).tril()
    weights = weights / weights.sum(-1, keepdim=True)
    assert torch.allclose(relative_weights(weights), torch.ones(8))
    weights[..., 7, :] = 0
    weights[..., 7, 7] = 1  # of the queries 4 to 7, the last one attends only to itself
    assert torch.allclose(relative_weights(weights)[[0, 1, 7]], torch.tensor([11 / 4, 3 / 4, 0]))
