"""The plots of the encodings and of input lengths, and the values that they show."""

import math
from collections import Counter

import pytest
import torch
from support.labeled_data import random_texts, write_text_dataset
from support.tiny import REPOSITORY, run_here

from fairseq_lrpe.benchmarks import figures
from fairseq_lrpe.benchmarks.figures import scores_by_distance, weights_by_distance
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.methods import METHODS

DATASETS = ("imdb", "sst2", "snli", "qnli", "qqp", "mnli")


def bars(ax):
    """Returns {center of a bar: its height} of the bars that are not empty."""
    return {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in ax.patches if bar.get_height()}


@pytest.mark.slow
def test_command(tmp_path):
    folders = write_text_dataset(tmp_path / "one"), write_text_dataset(tmp_path / "two", inputs=2)
    out = tmp_path / "figures"
    words = ["--out", out, "--data", *folders]
    done = run_here(figures.main, *words)
    assert done.returncode == 0, done.stderr
    names = "prior_matrices position_frequencies prior_distances score_curves length_distributions".split()
    assert {path.stem for path in out.iterdir()} == set(names)
    for name in names:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("inputs", "more"), [(1, 0), (2, 3)])
def test_input_lengths(inputs, more, tmp_path):
    folder = write_text_dataset(tmp_path / "data", inputs=inputs, longest=900)
    rows = random_texts(24, 0, inputs=inputs, longest=900)
    expected = [sum(map(len, texts)) + more for *texts, _ in rows]
    assert figures.input_lengths(folder).tolist() == expected and max(expected) > figures.MAX_POSITIONS
    task = figures.ClassificationTask(figures.ClassificationConfig(data=str(folder), max_positions=9999))
    task.load_dataset("train")
    given = [task.dataset("train")[i][1][0] for i in range(24)]
    assert list(map(len, given)) == expected


def test_length_distributions(monkeypatch, tmp_path):
    saved = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path, **options: saved.append(figure))
    folders = [write_text_dataset(tmp_path / name, longest=900) for name in "ab"]
    folders += [write_text_dataset(tmp_path / name) for name in "cd"]
    lengths = {folder: figures.input_lengths(folder) for folder in folders}
    figures.length_distributions(None, lengths)
    shown = saved[0].axes
    for ax, tokens in zip(shown, lengths.values(), strict=True):
        assert sum(bars(ax).values()) == len(tokens)
        assert f"longest {max(tokens)} tokens" in ax.get_title()
        long = [legend.get_text() for legend in ax.get_legend().texts] if ax.get_legend() else []
        share = 100 * sum(x > 512 for x in tokens) / len(tokens)
        assert long == ([f"{share:.1f}% exceed 512"] if share else [])
    assert bars(shown[2]) == pytest.approx(Counter(lengths[folders[2]].tolist()))


def test_rounding_does_not_fill_a_panel(monkeypatch):
    """Scores that are equal up to rounding, as those of Huang et al. before training, are a level line."""
    saved = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path, **options: saved.append(figure))
    figures.score_curves(None)
    level = []
    for ax in saved[0].axes:
        bottom, top = ax.get_ylim()
        values = torch.tensor([line.get_ydata().tolist() for line in ax.lines])
        largest = values.abs().max()
        assert bottom <= values.min() and values.max() <= top
        assert top - bottom > 10 * figures.ROUNDING * largest, ax.get_title()
        if values.max() - values.min() <= figures.ROUNDING * largest:
            level.append(ax.get_title())
    assert {"huang_1", "huang_2", "huang_3"} <= set(level)


def test_default_data_is_that_of_the_experiments():
    experiments = [Experiment.load(f"classifier/{name}") for name in DATASETS]
    assert [REPOSITORY / experiment.cfg.data for experiment in experiments] == figures.DATA
    for name, experiment in zip(DATASETS, experiments, strict=True):
        train = experiment.cfg.train
        assert train.max_positions == figures.MAX_POSITIONS and "pairs" not in train
        assert train.pooling == ("max" if name in ("imdb", "sst2") else "first")  # first adds <s> to a text


def test_curves_match_the_formulas():
    distance = torch.arange(257)
    cosine = torch.cos(math.pi * distance / 2 / 512) / 8  # cosFormer, M = 512, a vector of length 1, d = 64
    torch.testing.assert_close(scores_by_distance(METHODS["cosformer"]), cosine.expand(4, -1))

    per = scores_by_distance(METHODS["per"])
    rates = torch.sigmoid(3 * torch.arange(4) / 4 + 2)
    assert (per[:, 1:] <= rates[:, None] ** distance[1:] / 8 + 1e-6).all()
    assert scores_by_distance(METHODS["gcdf"]).shape == (4, 257)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_weights_match_the_formulas(attention):
    distance = torch.arange(33)
    torch.testing.assert_close(weights_by_distance(METHODS["base"], attention, 32), torch.ones(4, 33))

    slopes = 2.0 ** (-2 * torch.arange(1, 5))  # ALiBi with four heads
    expected = torch.exp(-slopes[:, None] * distance)
    if attention == "softmax":
        expected *= 33 / expected.sum(1, keepdim=True)
    torch.testing.assert_close(weights_by_distance(METHODS["alibi"], attention, 32), expected)

    torch.manual_seed(0)
    x = torch.rand(64)
    x = x / x.norm()
    if attention == "linear":
        x = x + 1  # the feature map of positive features
    angles = distance[:, None] * 10000.0 ** (-torch.arange(0, 64, 2) / 64)  # RoPE: squared length times cos
    expected = angles.cos() @ x.square().view(32, 2).sum(1)
    expected = (expected / 8).softmax(0) * 33 if attention == "softmax" else expected / x.square().sum()
    rope = weights_by_distance(METHODS["rope"], attention, 32)
    torch.testing.assert_close(rope, expected.expand(4, -1), rtol=1e-4, atol=1e-5)


def test_weights_of_every_method_are_finite():
    for name, method in METHODS.items():
        for attention in method.attentions():
            assert weights_by_distance(method, attention, 4).isfinite().all(), name
