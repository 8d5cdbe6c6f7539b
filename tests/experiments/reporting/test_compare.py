import json
import math
import re
import shutil
import statistics
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t, ttest_ind
from support.tiny import run_here

from fairseq_lrpe.cli import compare as command
from fairseq_lrpe.cli.results import RECORDED
from fairseq_lrpe.config import PositionConfig
from fairseq_lrpe.experiments.reporting import comparison
from fairseq_lrpe.methods import METHODS

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


def write_third_common_seed(results):
    """Gives both runs the seeds 2 and 3, and a fourth seed."""
    for method, perplexity in (("rope", 22.0), ("tmlr_type1", 18.0)):
        source = results / f"lm/mini/linear_{method}/seed-3"
        folder = shutil.copytree(source, source.with_name("seed-4"), dirs_exist_ok=True)
        for name, old in (("run.json", '"seed": 3'), ("evaluation.json", '"perplexity": ')):
            text = (folder / name).read_text()
            new = text.replace(old, '"seed": 4') if name == "run.json" else None
            if new is None:
                evaluations = {"test": {"settings": {}, "perplexity": perplexity}}
                new = json.dumps({"evaluations": evaluations, "finished": ""})
            (folder / name).write_text(new)


def test_settings_and_differences(results):
    write_third_common_seed(results)
    *_, settings, measured = comparison.comparison_sections(*folders(results))
    expected = {("method", "rope", "tmlr_type1"), ("config.train.lr", "0.1", "0.2")}
    expected.add(("method.encoding", "rope", "lrpe"))
    expected.add(("method.linear_norm", "denominator", "layernorm"))
    rows = list(settings.frame.itertuples(index=False, name=None))
    assert expected == {row for row in rows if not row[0].startswith(("method.rope_", "method.lrpe_"))}
    [row] = measured.frame.to_numpy().tolist()
    assert row[:2] == ["test", "perplexity"] and row[-1].endswith(" (3)")
    logs = [[math.log(x) for x in of] for of in ((22.0, 18.5, 18.0), (23.0, 21.0, 22.0))]
    base = math.exp(statistics.fmean(logs[1]))
    student, welch = (ttest_ind(*logs, equal_var=x) for x in (True, False))
    freedom = math.floor(10 * welch.df) / 10
    half = t.ppf(0.975, freedom) * statistics.fmean(map(np.subtract, *logs)) / welch.statistic
    mean = statistics.fmean(map(np.subtract, *logs))
    assert half > mean - student.confidence_interval().low
    shown = [float(x) for x in re.search(r"\[(.+), (.+)\]", row[-1]).groups()]
    assert shown == pytest.approx([base * math.expm1(mean + x) for x in (-half, half)], abs=0.011)
    assert shown[0] < 0 < shown[1]


def test_two_common_seeds_have_no_interval(results):
    *_, measured = comparison.comparison_sections(*folders(results))
    [row] = measured.frame.to_numpy().tolist()
    assert row[-1].endswith(" (2 seeds: no interval)")
    means = [f"{of.mean():.2f} ± {of.std():.2f}" for of in (pd.Series(of) for of in PERPLEXITIES.values())]
    assert row[:4] == ["test", "perplexity", *means]


def test_values_that_only_some_seeds_have(results):
    """Another machine of one seed is listed, too."""
    path = results / "lm/mini/linear_rope/seed-2/run.json"
    path.write_text(path.read_text().replace('"kind"', '"precision": "fp16", "kind"'))
    settings = comparison.different_settings(*map(comparison.read_seeds, folders(results)))
    assert ["precision", "fp16", "-"] in settings.to_numpy().tolist()


def test_every_flag_of_all_pairs_of_methods_is_listed():
    def flags(method):
        run = SimpleNamespace(method=method)
        return comparison.method_flags(SimpleNamespace(run=run, settings={"config": {}}))

    listed = {name: flags(name) for name in METHODS}
    for (a, ours), (b, theirs) in combinations(listed.items(), 2):
        for flag in METHODS[a].flags.keys() | METHODS[b].flags.keys():
            rows = METHODS[a].flags.get(flag), METHODS[b].flags.get(flag)
            is_default = ours.get(flag) == theirs.get(flag) == vars(PositionConfig())[flag]
            if rows[0] != rows[1] and not is_default:
                assert ours.get(flag) != theirs.get(flag), (a, b, flag)


def test_flags_of_a_run_replace_those_of_its_method():
    """``by_method`` of the experiment wins over its training's flags, and these over the method's."""
    config = {"train": {"linear_norm": "denominator"}, "by_method": {"rope": {"linear_norm": "content"}}}
    found = [
        comparison.method_flags(SimpleNamespace(run=SimpleNamespace(method=x), settings={"config": config}))
        for x in ("rope", "tmlr_type1")
    ]
    assert [flags["linear_norm"] for flags in found] == ["content", "denominator"]


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
    assert "seed-2 cannot be read: run.json is damaged (" in run_here(command.main, a, b).stdout
    for folder in b.iterdir():
        (folder / "run.json").write_text("{")
    assert "cannot be read: run.json is damaged (" in run_here(command.main, a, b).stderr


def test_recorded_runs():
    """They have no folders of their own, and are compared like others."""
    folder = RECORDED / "lm/mini"
    done = run_here(command.main, folder / "linear_base", folder / "linear_rope/seed-1")
    assert done.returncode == 0 and "| method | base | rope |" in done.stdout
    assert re.search(r"\| test \| perplexity \| .* \[.*\] \(3\) \|", done.stdout)
    done = run_here(command.main, folder / "linear_base", folder / "linear_nothing")
    assert f"{RECORDED} has no record of lm/mini/linear_nothing: " in done.stderr


def test_runs_below_a_folder_that_looks_like_records(results):
    """A folder "measurements" above the results does not make them recorded ones."""
    (results.parent / "measurements").mkdir()
    done = run_here(command.main, *folders(results))
    assert done.returncode == 0 and "| method | rope | tmlr_type1 |" in done.stdout
