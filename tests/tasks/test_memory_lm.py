"""The task memory_lm: streams, distributed updates and fairseq's commands."""

import io
import re

import numpy as np
import pytest
from fairseq_cli import eval_lm, generate, interactive
from support.commands import assert_error, assert_same_weights, generated_lines, validated
from support.tiny import PLUGIN, run_here, train_flags, train_here

from fairseq_lrpe.tasks.memory_lm import SegmentDataset, read_tokens

MEMORY = (
    "--task memory_lm --streams 4 --tokens-per-sample 16 --memory-length 16 --token-positions none".split()
)
ARCH = "softmax_lm_rope"
PAD = 1000


def segments(count=50, streams=3, length=5, split="train"):
    return SegmentDataset(np.arange(count, dtype=np.uint16), streams, length, split, PAD)


@pytest.mark.parametrize("count, streams, length", [(50, 3, 5), (64, 4, 5), (23, 1, 22)])
def test_training_streams_cover_the_text(count, streams, length):
    """Every token except the first of a stream is predicted once."""
    dataset, each = segments(count, streams, length), count // streams
    inputs, targets = ([[] for _ in range(streams)] for _ in range(2))
    for batch in dataset.batches(None, 1):
        found = dataset.collater([dataset[i] for i in batch])
        about = found["net_input"]["segment"]
        assert about.stream == 0 and found["net_input"]["src_tokens"].size(1) <= length
        for stream, (x, y) in enumerate(zip(found["net_input"]["src_tokens"], found["target"], strict=True)):
            assert len(inputs[stream]) == about.number * length
            inputs[stream] += x.tolist()
            targets[stream] += y.tolist()
        assert found["ntokens"] == found["target"].numel()
    for stream in range(streams):
        text = list(range(stream * each, (stream + 1) * each))
        assert inputs[stream] == text[:-1] and targets[stream] == text[1:]


@pytest.mark.parametrize("count, streams, length", [(50, 3, 5), (67, 4, 5), (24, 1, 22)])
def test_evaluation_predicts_every_token_but_the_first(count, streams, length):
    dataset, pairs, tokens = segments(count, streams, length, "test"), [], 0
    for batch in dataset.batches(None, 1):
        found = dataset.collater([dataset[i] for i in batch])
        inputs, targets = found["net_input"]["src_tokens"].ravel(), found["target"].ravel()
        assert inputs.ne(PAD).all()
        pairs += [(i, j) for i, j in zip(inputs.tolist(), targets.tolist(), strict=True) if j != PAD]
        tokens += found["ntokens"]
    assert sorted(pairs) == [(i, i + 1) for i in range(count - 1)] and tokens == count - 1


@pytest.mark.parametrize("size, processes", [(1, 1), (5, 2), (None, 4)])
def test_batches_have_the_same_streams_in_every_segment(size, processes):
    dataset = segments(500, 12, 5)
    batches = dataset.batches(size, processes)
    assert sorted(i for batch in batches for i in batch) == list(range(len(dataset)))
    for process in range(processes):
        mine = batches[process::processes]
        streams = [tuple(i % 12 for i in batch) for batch in mine]
        per_segment = len(streams) // dataset.segments
        assert len({len(x) for x in streams}) == 1 and len(streams[0]) <= (size or 12)
        assert streams == streams[:per_segment] * dataset.segments


def flags(folder, data, *more, arch=ARCH):
    return train_flags(data, arch, folder, *MEMORY, "--no-epoch-checkpoints", "--dropout", 0, *more)


def train(folder, data, *more, arch=ARCH):
    done = train_here(*flags(folder, data, *more, arch=arch))
    assert done.returncode == 0, done.stderr


SIX = ["--max-update", 6, "--disable-validation"]


@pytest.fixture(scope="module")
def trained(data_bin, tmp_path_factory):
    """A training of six updates with all streams in one batch."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, data_bin, *SIX)
    return folder


def test_accumulated_update_is_the_same(trained, data_bin, tmp_path):
    train(tmp_path, data_bin, *SIX, "--batch-size", 2, "--update-freq", 2)
    assert_same_weights(trained, tmp_path, 1e-5, 1e-5)


def test_validation_does_not_change_training(trained, data_bin, tmp_path):
    train(tmp_path, data_bin, "--max-update", 6, "--validate-interval-updates", 1)
    assert_same_weights(trained, tmp_path)


def test_resumed_training_logs_its_empty_memory(trained, data_bin, tmp_path, caplog):
    for updates in (3, 6):
        with caplog.at_level("INFO"):
            train(tmp_path, data_bin, "--max-update", updates)
        assert ("the memory starts empty at segment 3" in caplog.text) == (updates == 6)
    with pytest.raises(AssertionError):
        assert_same_weights(trained, tmp_path)


def loss(checkpoint, data, caplog, *words):
    """Returns the loss of fairseq-eval-lm, which evaluates every token except the first."""
    caplog.clear()
    with caplog.at_level("INFO"):
        shared = f"--user-dir {PLUGIN} --path {checkpoint} --cpu --gen-subset test --num-workers 0".split()
        done = run_here(eval_lm.cli_main, data, *shared, *words)
    assert done.returncode == 0, done.stderr
    tokens = len(read_tokens(data / "test")) - 1
    assert re.search(r"Evaluated ([\d,]+) tokens", caplog.text)[1] == f"{tokens:,}"
    return float(re.search(r"Loss \(base 2\): ([\d.]+)", caplog.text)[1])


def test_evaluation_with_longer_memory(trained, data_bin, caplog):
    """One stream with a memory of the whole text equals one block."""
    checkpoint, tokens = trained / "checkpoint_last.pt", len(read_tokens(data_bin / "test"))
    one = ["--task", "memory_lm", "--streams", 1, "--batch-size", 1]
    calls = {
        "none": [*one, "--tokens-per-sample", 7, "--memory-length", 0],
        "some": [*one, "--tokens-per-sample", 7, "--memory-length", 9],
        "same": [*one, "--tokens-per-sample", 7, "--memory-length", 9, "--same-length"],
        "all": [*one, "--tokens-per-sample", 7, "--memory-length", tokens],
        "whole": [*one, "--tokens-per-sample", tokens - 1, "--memory-length", 0],
    }
    found = {name: loss(checkpoint, data_bin, caplog, *words) for name, words in calls.items()}
    assert found["all"] == found["whole"]
    assert len({found[name] for name in ("none", "some", "same", "all")}) == 4


def test_task_and_memory_are_restored(trained, data_bin, caplog):
    checkpoint = trained / "checkpoint_last.pt"
    restored = loss(checkpoint, data_bin, caplog)
    words = ["--task", "memory_lm", "--streams", 4, "--tokens-per-sample", 16]
    by_length = {n: loss(checkpoint, data_bin, caplog, *words, "--memory-length", n) for n in (0, 8, 16)}
    assert restored == by_length[16] == loss(checkpoint, data_bin, caplog, "--task", "memory_lm")
    assert by_length[8] == loss(checkpoint, data_bin, caplog, "--memory-length", 8)
    assert len({*by_length.values()}) == 3

    words = ["--valid-subset", "test", "--batch-size", 4]
    for more in ([], ["--task", "memory_lm"]):
        logged = validated(data_bin, checkpoint, *words, *more)
        assert logged["loss"] == pytest.approx(restored, abs=1e-3)


def test_generate_and_interactive_give_the_same_text(trained, data_bin, text_folder, monkeypatch):
    """The generated texts are longer than segments and memory."""
    words = ["--user-dir", PLUGIN, "--path", trained / "checkpoint_last.pt", "--cpu", "--num-workers", 0]
    words += ["--task", "memory_lm", "--tokens-per-sample", 4, "--memory-length", 6, "--beam", 3]
    words += ["--sample-break-mode", "eos", "--max-len-a", 0, "--max-len-b", 30, "--min-len", 20]
    words += ["--batch-size", 5, "--required-batch-size-multiple", 1]
    prompts = [" ".join(line.split()[:6]) for line in (text_folder / "test.txt").read_text().splitlines()]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(prompts[:5])))
    found = []
    for main, *more in (
        (generate.cli_main, "--gen-subset", "test", "--prefix-size", 6),
        (interactive.cli_main, "--buffer-size", 5),
    ):
        found.append(generated_lines(run_here(main, data_bin, *words, *more), "H"))
    for number in range(5):
        assert found[0][number] == found[1][number] and len(found[0][number].split()) >= 20
        assert found[0][number].startswith(prompts[number])


@pytest.mark.parametrize("more, message", [
    ("--arch linear_lm_rope --memory state", "includes all previous positions"),
    ("--memory state --memory-length 0", "--memory state requires linear attention"),
    ("--arch linear_lm_spe --memory state --memory-length 0", "spe cannot shift the positions"),
    ("--arch linear_lm_selective_rope --memory state --memory-length 0", "selective_rope cannot shift"),
    ("--arch linear_lm_rope --same-length", "--same-length requires softmax attention"),
    ("--memory state --memory-length 0 --same-length", "--same-length requires a hidden memory: omit it"),
    ("--clamp-length 5", "--clamp-length is not supported by rope"),
    ("--arch softmax_lm_tupe_r", "tupe uses absolute positions"),
    ("--token-positions learned", "learned token positions restart in each segment"),
    ("--checkpoint-activations", "a memory supports no --checkpoint-activations and"),
    ("--batch-size 2", "an update must have all 4 streams"),
    ("--streams 3000 --batch-size 3000", "3,000 streams, but a segment of 16 needs 17"),
])  # fmt: skip
def test_invalid_arguments(more, message, data_bin, tmp_path):
    assert_error(train_here(*flags(tmp_path / "save", data_bin), *more.split()), message)
    assert not list(tmp_path.glob("save/*.pt"))


def test_training_resumed_between_epochs_is_identical(data_bin, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, epochs in ((whole, [2]), (parts, [1, 2])):
        for last in epochs:
            train(folder, data_bin, "--max-epoch", last, "--tokens-per-sample", 64)
    assert_same_weights(whole, parts)
