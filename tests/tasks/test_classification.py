"""The task classification: inputs, batches and fairseq's commands."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support import commands
from support.commands import assert_error, assert_resumes, validated
from support.labeled_data import write_gray_image_dataset, write_text_dataset
from support.tiny import run_here

from fairseq_lrpe import load_model
from fairseq_lrpe.cli import classify
from fairseq_lrpe.experiments.execution.evaluators import predictions
from fairseq_lrpe.tasks.classification import (
    ClassificationConfig,
    ClassificationTask,
    TextDataset,
    truncated_lengths,
)

BOS, PAD, EOS, UNK = range(4)


def task_of(folder, **cfg):
    return ClassificationTask(ClassificationConfig(data=str(folder), **cfg))


def dataset_of(folder, split="valid", **cfg):
    task = task_of(folder, **cfg)
    task.load_dataset(split)
    return task.dataset(split)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("labeled")
    write_text_dataset(root / "one")
    write_text_dataset(root / "two", inputs=2, labels=3)
    write_gray_image_dataset(root / "pictures")
    return root


@given(st.integers(0, 30), st.integers(0, 30), st.integers(2, 30))
def test_longer_text_of_a_pair_is_truncated_first(first, second, most):
    a, b = truncated_lengths(first, second, most)
    assert a <= first and b <= second and a + b == min(first + second, most)
    if a < first and b < second:
        assert abs(a - b) <= 1
    elif a < first:
        assert a >= b - 1
    elif b < second:
        assert b >= a - 1


def test_inputs_of_a_text(folders):
    plain, begun = dataset_of(folders / "one"), dataset_of(folders / "one", pooling="first")
    for i in range(len(plain)):
        _, [text], label = plain[i]
        assert label == int((text == 4).sum()) % 2 and text.min() >= 4
        assert begun[i][1][0].tolist() == [BOS, *text.tolist()]
        assert plain.size(i) == len(text) and begun.size(i) == len(text) + 1
    cut = dataset_of(folders / "one", max_positions=3)
    assert all(torch.equal(cut[i][1][0], plain[i][1][0][:3]) for i in range(len(cut)))


def test_inputs_of_a_pair(folders):
    apart, joined = (dataset_of(folders / "two", pairs=pairs) for pairs in ("apart", "joined"))
    for i in range(len(apart)):
        _, [a, b], label = apart[i]
        [both] = joined[i][1]
        assert both.tolist() == [BOS, *a.tolist(), EOS, *b.tolist(), EOS] and joined[i][2] == label
        assert apart.size(i) == max(len(a), len(b)) and joined.size(i) == len(both)
    cut = dataset_of(folders / "two", max_positions=6)
    for i in range(len(cut)):
        [both] = cut[i][1]
        assert len(both) <= 6 and both.tolist().count(EOS) == 2 and both[-1] == EOS


def test_epochs_have_every_row_once_in_different_batches(folders):
    task = task_of(folders / "one")
    task.load_dataset("train")
    found = []
    for epoch in (1, 2, 1):
        iterator = task.get_batch_iterator(
            task.dataset("train"), max_sentences=5, seed=3, epoch=epoch, disable_iterator_cache=True
        )
        batches = [batch["id"].tolist() for batch in iterator.next_epoch_itr(shuffle=True)]
        assert sorted(row for batch in batches for row in batch) == list(range(24))
        found.append(batches)
    assert found[0] == found[2] and {*map(frozenset, found[0])} != {*map(frozenset, found[1])}


def test_rows_of_a_pool_are_sorted_by_length():
    """10,000 rows have three pools, each sorted by length, and their order is random otherwise."""
    lengths = np.random.default_rng(0).integers(1, 100, 10_000)
    dataset = TextDataset.__new__(TextDataset)
    dataset.sizes, dataset.labels, dataset.shuffle = lengths, lengths, True
    np.random.seed(0)
    order = dataset.ordered_indices()
    assert sorted(order) == list(range(10_000))
    assert (np.diff(lengths[order]) < 0).sum() == 2
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05


def test_a_batch(folders):
    dataset = dataset_of(folders / "two", pairs="apart")
    batch = dataset.collater([dataset[i] for i in range(4)])
    for name, number in (("src", 0), ("second", 1)):
        texts = [dataset[i][1][number] for i in range(4)]
        tokens, lengths = (batch["net_input"][f"{name}_{what}"] for what in ("tokens", "lengths"))
        assert lengths.tolist() == list(map(len, texts)) and tokens.size(1) == lengths.max()
        for row, text in zip(tokens, texts, strict=True):
            assert row.tolist() == [*text.tolist(), *[PAD] * (tokens.size(1) - len(text))]
    assert batch["target"].tolist() == [dataset[i][2] for i in range(4)]
    assert batch["nsentences"] == batch["ntokens"] == 4
    dataset.labels = np.array([0, -1, 0, 0])
    assert "target" not in dataset.collater([dataset[i] for i in range(4)])


TASK = "--task classification --criterion label_smoothed_cross_entropy --report-accuracy --max-update 6"


def train(data, save, arch="linear_classifier_rope", *more):
    return commands.train(data, arch, save, *TASK.split(), *commands.sizes("encoder"), *more)


def inputs_of(dataset, dictionary):
    """The rows of a dataset as texts, pairs of texts, or images."""
    if "pixels" in dataset.task.about:
        return [Image.fromarray((text - 4).view(4, 4).byte().numpy()) for text in dataset.texts[0]]
    texts = [[" ".join(dictionary[t] for t in row) for row in column] for column in dataset.texts]
    return [*zip(*texts, strict=True)] if len(texts) > 1 else texts[0]


@pytest.mark.parametrize("kind, flags", [
    ("one", "--pooling max --encoder-norm layer"),
    ("two", "--pairs apart"),
    ("pictures", "--pixels embedding --token-positions learned"),
])  # fmt: skip
def test_commands(kind, flags, folders, tmp_path):
    """fairseq-validate reports the accuracy of the predictions, which are those of load_model."""
    done = train(
        folders / kind, tmp_path / "save", "softmax_classifier_xl", *flags.split(), "--max-update", 40
    )
    assert done.returncode == 0, done.stderr
    checkpoint = tmp_path / "save/checkpoint_last.pt"
    logged = validated(folders / kind, checkpoint, "--task", "classification", "--valid-subset", "test")
    done = run_here(classify.main, checkpoint, folders / kind, f"test={tmp_path / 'p.tsv'}", "--cpu")
    assert done.returncode == 0, done.stderr
    predicted, target = predictions.read_predictions(tmp_path / "p.tsv")
    labels = json.loads((folders / kind / "about.json").read_text())["labels"]
    assert target == [labels[i] for i in np.load(folders / kind / "test.label.npy")]
    right = sum(p == t for p, t in zip(predicted, target, strict=True))
    assert len(target) == 24 and len(set(predicted)) > 1
    assert predictions.label_metrics(predicted, target)["accuracy"] == pytest.approx(100 * right / 24)
    assert float(logged["accuracy"]) == pytest.approx(100 * right / 24, abs=1e-3)

    model = load_model(checkpoint, cpu=True)
    model.task.load_dataset("test")
    dataset = model.task.dataset("test")
    inputs = inputs_of(dataset, model.task.dictionary)
    assert [x.label for x in model.classify(inputs)] == predicted
    if kind == "pictures":
        inputs[0].save(tmp_path / "one.png")
        assert model.classify([tmp_path / "one.png"]) == model.classify(inputs[:1])
    if kind == "one":
        with pytest.raises(ValueError, match="classifies single"):
            model.classify([("w1", "w2")])


def test_resumed_training_is_identical(folders, tmp_path):
    """In the middle of an epoch."""

    def run(save, *flags):
        return train(folders / "one", save, "linear_classifier_tmlr_type1", *flags)

    assert_resumes(run, tmp_path, (4, 8))


@pytest.mark.parametrize("kind, flags, message", [
    ("two", "--max-positions 4 --pairs joined", "--max-positions must be at least 5, not 4"),
    ("pictures", "--pooling first", "--pixels linear does not support the special tokens"),
])  # fmt: skip
def test_invalid_flags(kind, flags, message, folders, tmp_path):
    done = train(folders / kind, tmp_path / "save", "linear_classifier_rope", *flags.split())
    assert_error(done, message)


def test_damaged_labels_and_predictions_without_labels(folders, tmp_path):
    data = shutil.copytree(folders / "one", tmp_path / "data")
    assert train(data, tmp_path).returncode == 0
    np.save(data / "train.label.npy", np.full(23, 0))
    assert_error(train(data, tmp_path), "24 rows, but 23 labels")
    checkpoint = tmp_path / "checkpoint_last.pt"
    np.save(data / "test.label.npy", np.full(24, -1))
    assert run_here(classify.main, checkpoint, data, f"test={tmp_path / 'p.tsv'}", "--cpu").returncode == 0
    lines = (tmp_path / "p.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and len(lines) == 25
