"""Plots of a search over the values of a setting."""

import pytest
from support.tiny import write_run

from fairseq_lrpe.cli import results
from fairseq_lrpe.experiments.reporting.experiment_runs import read_experiment_runs
from fairseq_lrpe.experiments.reporting.sweep_plot import plot_sweep, sweep_values
from fairseq_lrpe.utils.errors import UserError

RATES = {"0.001": {1: 30.0, 2: 32.0}, "0.01": {1: 20.0, 2: 26.0}, "0.1": {1: 90.0}}


@pytest.fixture
def search(configs, tmp_path):
    """A results folder with runs of RoPE at three learning rates, and one with another change, too."""
    for rate, seeds in RATES.items():
        for seed, perplexity in seeds.items():
            folder = tmp_path / f"lm/big/linear_rope/train.lr={rate}/seed-{seed}"
            write_run(folder, {100: perplexity}, perplexity)
    other = tmp_path / "lm/big/linear_rope/train.dropout=0.2/train.lr=0.01/seed-1"
    write_run(other, {100: 15.0}, 15.0)
    unfinished = tmp_path / "lm/big/linear_nope/train.lr=0.01/seed-1"
    write_run(unfinished, {50: 15.0})
    return tmp_path


def test_lines_of_a_search(search, tmp_path):
    """Other changes are lines of their own, and unfinished runs are left out."""
    records = read_experiment_runs("lm/big", search)
    values = sweep_values(records, "train.lr")
    found = {}
    for line in values.itertuples():
        found.setdefault(line.row, {}).setdefault(line.x, {})[line.seed] = line.y
    rates = {float(rate): seeds for rate, seeds in RATES.items()}
    assert found == {"rope": rates, "rope, train.dropout=0.2": {0.01: {1: 15.0}}}
    figure = plot_sweep("A search", records, "train.lr", tmp_path / "sweep.png")
    [axes] = figure.axes
    assert axes.get_xscale() == "log" and axes.get_xlabel() == "train.lr"
    assert axes.get_ylabel() == "perplexity (valid)"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.001", "0.01", "0.1"]
    drawn = {container.get_label(): list(container[0].get_ydata()) for container in axes.containers}
    assert drawn == {"rope": [31.0, 23.0, 90.0], "rope, train.dropout=0.2": [15.0]}


@pytest.mark.parametrize("key, message", [
    ("train.dropout", "train.dropout is None in a run, not a number: choose another setting"),
    ("updates", "all runs have the same updates: train runs with other values, such as updates=VALUE"),
    ("kind", "kind is 'lm' in a run, not a number"),
])  # fmt: skip
def test_settings_without_a_search(key, message, search):
    with pytest.raises(UserError) as error:
        sweep_values(read_experiment_runs("lm/big", search), key)
    assert message in str(error.value)


def test_plot_of_the_command(search, tmp_path, capsys):
    path = tmp_path / "search.png"
    words = ["--results", search, "--experiment", "lm/big", "--over", "train.lr", "--plot", path]
    results.main([str(word) for word in words])
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "shows the runs over train.lr" in capsys.readouterr().err
