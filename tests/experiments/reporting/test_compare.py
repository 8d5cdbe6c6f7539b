import json

import pandas as pd
import pytest
from scipy.stats import ttest_1samp
from support.tiny import run_here

from fairseq_lrpe.cli import compare as command
from fairseq_lrpe.experiments.reporting import comparison

PERPLEXITIES = {"rope": {1: 20.0, 2: 23.0, 3: 21.0}, "tmlr_type1": {2: 22.0, 3: 18.5, 4: 19.0}}


@pytest.fixture
def results(tmp_path):
    for method, seeds in PERPLEXITIES.items():
        for seed, perplexity in seeds.items():
            folder = tmp_path / f"lm/mini/linear_{method}/seed-{seed}"
            folder.mkdir(parents=True)
            run = {"experiment": "lm/mini", "attention": "linear", "method": method, "seed": seed}
            config = {"updates": 4, "seeds": [seed]}
            config["train"] = {"lr": 0.1 if method == "rope" else 0.2, "x": 1}
            run |= {"kind": "lm", "updates": 4, "config": config, "started": f"day {seed}"}
            (folder / "run.json").write_text(json.dumps(run))
            evaluations = {"test": {"settings": {}, "perplexity": perplexity}}
            (folder / "evaluation.json").write_text(json.dumps({"evaluations": evaluations, "finished": ""}))
    return tmp_path


def folders(results):
    return [results / f"lm/mini/linear_{method}" for method in PERPLEXITIES]


def test_settings_and_differences_paired_by_seed(results):
    _, _, settings, measured = comparison.comparison_sections(*folders(results))
    expected = [("method", "rope", "tmlr_type1"), ("config.train.lr", "0.1", "0.2")]
    assert list(settings.frame.itertuples(index=False, name=None)) == expected
    [row] = measured.frame.to_numpy().tolist()
    pairs = [22.0 - 23.0, 18.5 - 21.0]
    low, high = ttest_1samp(pairs, 0).confidence_interval()
    assert row[-1] == f"-1.75 [{low:+.2f}, {high:+.2f}] (2)"
    means = [f"{of.mean():.2f} ± {of.std():.2f}" for of in (pd.Series(of) for of in PERPLEXITIES.values())]
    assert row[:4] == ["test", "perplexity", *means]


def test_runs_without_common_seeds(results):
    for seed in (2, 3):
        (results / f"lm/mini/linear_rope/seed-{seed}/evaluation.json").unlink()
    a, b = folders(results)
    assert "no common seed" in run_here(command.main, a, b).stdout
    done = run_here(command.main, a / "seed-1", b / "seed-2")
    assert done.returncode == 0 and "| config.train.lr | 0.1 | 0.2 |" in done.stdout


def test_wrong_folders(results):
    a, b = folders(results)
    assert "is not the folder of a run" in run_here(command.main, a, results / "lm").stderr
    (b / "seed-2/run.json").write_text("{")
    assert "cannot be read" in run_here(command.main, a, b).stderr
