"""GLUE's metrics against their formulas, and the evaluations and data of each task."""

import math
import random
import statistics

import pytest

from fairseq_lrpe.data.glue_tasks import PAPER_TASKS
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.kinds import glue
from fairseq_lrpe.experiments.execution.evaluators.glue import task_metrics


def measure(name, predicted, target):
    return task_metrics(name, list(map(str, predicted)), list(map(str, target)))


@pytest.fixture
def draw():
    return random.Random(0)


@pytest.mark.parametrize("name", ["CoLA", "MRPC"])
def test_metrics_of_labels(name, draw):
    target = [draw.randrange(2) for _ in range(200)]
    predicted = [t if draw.random() < 0.7 else 1 - t for t in target]
    found = measure(name, predicted, target)
    counts = {pair: 0 for pair in ((0, 0), (0, 1), (1, 0), (1, 1))}
    for pair in zip(predicted, target, strict=True):
        counts[pair] += 1
    tn, fn, fp, tp = counts.values()
    accuracy, f1 = (tp + tn) / 200, 2 * tp / (2 * tp + fp + fn)
    matthews = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert found["accuracy"] == pytest.approx(100 * accuracy)
    assert found["f1"] == pytest.approx(100 * f1)
    assert found["matthews"] == pytest.approx(100 * matthews)
    assert found["score"] == found["matthews" if name == "CoLA" else "accuracy"]
    assert found["rows"] == 200
    ones = sum(target)
    assert found["majority"] == (0 if name == "CoLA" else 100 * max(ones, 200 - ones) / 200)


def test_metrics_of_scores(draw):
    target = [round(draw.uniform(0, 5), 6) for _ in range(100)]
    predicted = [round(t + draw.gauss(0, 1), 6) for t in target]
    found = measure("STS-B", predicted, target)
    ranks = [[sorted(values).index(x) for x in values] for values in (predicted, target)]
    pearson = 100 * statistics.correlation(predicted, target)
    assert found["score"] == found["pearson"] == pytest.approx(pearson)
    assert found["spearman"] == pytest.approx(100 * statistics.correlation(*ranks))
    assert "majority" not in found  # a constant has no correlation


def of_tasks(*overrides):
    experiment = Experiment.load("glue/wikibook", overrides)
    settings = map(experiment.settings, experiment.runs("linear", "rope", [1]))
    return {cfg.task: cfg for cfg in settings}


def test_only_mnli_has_a_second_evaluation():
    found = of_tasks()
    assert set(found) == set(PAPER_TASKS)
    for name, cfg in found.items():
        second = {"mismatched": {"split": "valid1"}} if name == "MNLI" else {}
        assert glue.KIND.evaluations(cfg) == {"valid": {"split": "valid"}, **second}


def test_updates_depend_on_the_size_of_the_task(tmp_path):
    [cfg] = of_tasks(f"data={tmp_path}", "task=RTE", "batch.total=32").values()
    with pytest.raises(ValueError) as error:
        glue.KIND.updates(cfg)
    assert "`bash data_prep/prepare.sh glue RTE` prepares" in str(error.value)
    (tmp_path / "RTE/bin").mkdir(parents=True)
    (tmp_path / "RTE/bin/rows.json").write_text('{"train": 65}')
    assert glue.KIND.updates(cfg) == 3 * 3
    (tmp_path / "RTE/bin/rows.json").write_text('{"train":')
    with pytest.raises(ValueError, match=r"rows\.json is missing, damaged"):
        glue.KIND.updates(cfg)
