"""GLUE's measures against their formulas, and what is known of its tasks."""

import math
import random
import statistics

import pytest

from fairseq_lrpe.experiments import glue


def write(path, predicted, target):
    rows = (f"{i}\t{p}\t{t}" for i, (p, t) in enumerate(zip(predicted, target, strict=True)))
    path.write_text("\n".join(["index\tprediction\ttarget", *rows]) + "\n")
    return path


@pytest.fixture
def draw():
    return random.Random(0)


@pytest.mark.parametrize("name", ["CoLA", "MRPC"])
def test_measures_of_labels(name, draw, tmp_path):
    target = [draw.randrange(2) for _ in range(200)]
    predicted = [t if draw.random() < 0.7 else 1 - t for t in target]
    found = glue.measure(glue.TASKS[name], write(tmp_path / "p.tsv", predicted, target))
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


def test_measures_of_scores(draw, tmp_path):
    target = [round(draw.uniform(0, 5), 6) for _ in range(100)]
    predicted = [round(t + draw.gauss(0, 1), 6) for t in target]
    found = glue.measure(glue.TASKS["STS-B"], write(tmp_path / "p.tsv", predicted, target))
    ranks = [[sorted(values).index(x) for x in values] for values in (predicted, target)]
    assert (
        found["score"] == found["pearson"] == pytest.approx(100 * statistics.correlation(predicted, target))
    )
    assert found["spearman"] == pytest.approx(100 * statistics.correlation(*ranks))


def test_three_labels_have_no_f1(tmp_path):
    names = ["neutral", "entailment", "contradiction"]
    found = glue.measure(glue.TASKS["MNLI"], write(tmp_path / "p.tsv", names, [names[0], names[0], names[2]]))
    assert found["accuracy"] == pytest.approx(200 / 3) and "f1" not in found


def test_the_tasks_are_those_of_the_data():
    from data_prep import glue as data

    assert set(glue.TASKS) == set(data.TASKS)
    for name, task in glue.TASKS.items():
        assert task.classes == (len(data.TASKS[name].labels) or 1)
        assert set(task.splits.values()) | set(task.tests.values()) == set(data.TASKS[name].files) - {"train"}
    assert glue.task_of("MNLI-mm").name == "MNLI" and glue.task_of("RTE").name == "RTE"
    assert glue.REGRESSION_SCALE == data.HIGHEST
