"""The task memory_lm: its streams, its updates however they are shared, and fairseq's commands with it."""

import io
import re

import numpy as np
import pytest
import torch
from fairseq_cli import eval_lm, generate, interactive, train
from tiny import PLUGIN, run_command, run_here, train_flags, train_here

from fairseq_lrpe.tasks.memory_lm import Segments, read_tokens

MEMORY = (
    "--task memory_lm --streams 4 --tokens-per-sample 16 --memory-length 16 --token-positions none".split()
)
ARCH = "softmax_lm_rope"


def segments(count=50, streams=3, length=5):
    return Segments(np.arange(count, dtype=np.uint16), streams, length, "train")


@pytest.mark.parametrize("count, streams, length", [(50, 3, 5), (64, 4, 5), (23, 1, 22), (23, 2, 1)])
def test_streams_are_the_text(count, streams, length):
    """From begin to end; every token but a stream's first is predicted once, from those before."""
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


@pytest.mark.parametrize("size, processes", [(1, 1), (2, 1), (4, 1), (2, 3), (5, 2), (None, 4)])
def test_a_batch_has_the_same_streams_in_every_segment(size, processes):
    dataset = segments(500, 12, 5)
    batches = dataset.batches(size, processes)
    assert sorted(i for batch in batches for i in batch) == list(range(len(dataset)))
    for process in range(processes):
        mine = batches[process::processes]
        streams = [tuple(i % 12 for i in batch) for batch in mine]
        per_segment = len(streams) // dataset.in_each
        assert len({len(x) for x in streams}) == 1 and len(streams[0]) <= (size or 12)
        assert streams == streams[:per_segment] * dataset.in_each


def flags(folder, data, *more, arch=ARCH):
    save = ["--save-dir", folder, "--no-epoch-checkpoints", "--dropout", 0]
    return train_flags(data, arch, folder, *MEMORY, *save, *more)


def parameters(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]


def assert_equal(one, two, tolerance=0.0):
    for name, parameter in parameters(one).items():
        torch.testing.assert_close(parameters(two)[name], parameter, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def trained(data_bin, tmp_path_factory):
    """Six updates of all streams in one batch."""
    folder = tmp_path_factory.mktemp("trained")
    done = train_here(*flags(folder, data_bin, "--max-update", 6, "--disable-validation"))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("size", [1, 2])
def test_an_update_in_parts_is_the_same(size, trained, data_bin, tmp_path):
    more = ["--max-update", 6, "--disable-validation", "--batch-size", size, "--update-freq", 4 // size]
    done = train_here(*flags(tmp_path, data_bin, *more))
    assert done.returncode == 0, done.stderr
    assert_equal(trained, tmp_path, 1e-5)


def test_an_update_by_two_processes_is_the_same(trained, data_bin, tmp_path):
    more = ["--max-update", 6, "--disable-validation", "--batch-size", 2, "--distributed-world-size", 2]
    more += ["--distributed-init-method", "env://", "--distributed-rank", -1, "--distributed-no-spawn"]
    more += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    start = ["torchrun", "--standalone", "--nproc_per_node", 2, "-m", "fairseq_cli.train"]
    done = run_command(*start, *flags(tmp_path, data_bin, *more))
    assert done.returncode == 0, done.stderr
    assert_equal(trained, tmp_path, 1e-5)


def test_validation_changes_nothing(trained, data_bin, tmp_path):
    more = ["--max-update", 6, "--validate-interval-updates", 1]
    done = train_here(*flags(tmp_path, data_bin, *more))
    assert done.returncode == 0, done.stderr
    assert_equal(trained, tmp_path)


def test_a_training_that_is_continued_says_that_its_memory_is_empty(trained, data_bin, tmp_path):
    for updates in (3, 6):
        done = run_command("fairseq-train", *flags(tmp_path, data_bin, "--max-update", updates))
        assert done.returncode == 0, done.stderr
        told = "the memory starts empty at segment 3" in done.stdout + done.stderr
        assert told == (updates == 6)
    with pytest.raises(AssertionError):
        assert_equal(trained, tmp_path)


def test_a_training_goes_on_bit_for_bit_at_the_start_of_an_epoch(data_bin, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, epochs in ((whole, [2]), (parts, [1, 2])):
        for last in epochs:
            more = ["--max-epoch", last, "--tokens-per-sample", 64]
            done = train_here(*flags(folder, data_bin, *more))
            assert done.returncode == 0, done.stderr
    assert_equal(whole, parts)


def evaluated(checkpoint, data, *more):
    words = [
        data,
        "--user-dir",
        PLUGIN,
        "--path",
        checkpoint,
        "--cpu",
        "--gen-subset",
        "test",
        "--num-workers",
        0,
    ]
    done = run_here(eval_lm.cli_main, *words, *more)
    assert done.returncode == 0, done.stderr
    return done


def test_evaluation_sees_more_of_a_longer_memory(trained, data_bin, caplog):
    """And all of a text in one stream, with a memory of all of it, as one block is read."""
    checkpoint, tokens = trained / "checkpoint_last.pt", len(read_tokens(data_bin / "test"))
    one = ["--task", "memory_lm", "--streams", 1, "--batch-size", 1]
    calls = {
        "none": [*one, "--tokens-per-sample", 7],
        "some": [*one, "--tokens-per-sample", 7, "--memory-length", 9],
        "same": [*one, "--tokens-per-sample", 7, "--memory-length", 9, "--same-length"],
        "all": [*one, "--tokens-per-sample", 7, "--memory-length", tokens],
        "whole": [*one, "--tokens-per-sample", tokens - 1],
    }
    found = {}
    for name, words in calls.items():
        caplog.clear()
        with caplog.at_level("INFO"):
            evaluated(checkpoint, data_bin, *words)
        assert f"Evaluated {tokens - 1:,} tokens" in caplog.text.replace(str(tokens - 1), f"{tokens - 1:,}")
        found[name] = float(re.search(r"Loss \(base 2\): ([\d.]+)", caplog.text)[1])
    assert found["all"] == found["whole"]
    assert len({found[name] for name in ("none", "some", "same", "all")}) == 4


def test_generate_and_interactive_go_on_alike(trained, data_bin, text_folder, monkeypatch):
    """From the first words of lines, over segments and beyond what the memory keeps."""
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
        done = run_here(main, data_bin, *words, *more)
        assert done.returncode == 0, done.stderr
        lines = (line.split("\t") for line in done.stdout.splitlines() if line.startswith("H-"))
        found.append({int(x[0][2:]): x[2] for x in lines})
    for number in range(5):
        assert found[0][number] == found[1][number] and len(found[0][number].split()) >= 20
        assert found[0][number].startswith(prompts[number])


@pytest.mark.parametrize("more, message", [
    ("--streams 0", "--streams must be at least 1, not 0"),
    ("--memory-length -1", "--memory-length must be at least 0, not -1"),
    ("--arch softmax_lm_xl --clamp-length -1", "--clamp-length must be at least 0, not -1"),
    ("--memory x", "unknown memory 'x': choose from hidden, state"),
    ("--arch linear_lm_rope --memory state", "--memory state keeps all there was: leave --memory-length out"),
    ("--memory state --memory-length 0", "--memory state is of linear attention's running sums"),
    ("--arch linear_lm_spe --memory state --memory-length 0", "spe mixes positions into noise"),
    ("--arch linear_lm_rope --same-length", "--same-length hides what running sums have added up"),
    ("--same-length --memory-length 0", "--same-length is for a memory"),
    ("--arch softmax_lm_xl --clamp-length 9 --memory-length 0", "--clamp-length is for a memory"),
    ("--clamp-length 5", "--clamp-length is for encodings that look distances up, which rope does not"),
    ("--arch softmax_lm_tupe_r", "tupe counts positions from the start of what is read, and a memory would"),
    ("--arch softmax_lm_fire", "fire counts positions from the start of what is read, and a memory would"),
    ("--token-positions learned", "learned token positions start anew with each segment"),
    ("--token-positions hierarchical", "hierarchical token positions start anew with each segment"),
    ("--token-positions convolution", "convolution token positions start anew with each segment"),
    ("--token-positions sinusoidal", "sinusoidal token positions start anew with each segment"),
    ("--checkpoint-activations", "--checkpoint-activations reads a segment twice"),
    ("--batch-size 2", "an update has all 4 streams, and 2 (--batch-size) × 1 (processes) × 1"),
    ("--streams 1 --distributed-world-size 2", "--streams 1 cannot be shared evenly by 2 processes"),
    ("--sample-break-mode eos", "--sample-break-mode eos: the text needs none: it is read in streams"),
    ("--tokens-per-sample 100000", "a segment of 100,000 needs 100,001"),
    ("--streams 3000 --batch-size 3000", "3,000 streams, and a segment of 16 needs 17"),
])  # fmt: skip
def test_refused_before_anything_is_written(more, message, data_bin, tmp_path):
    done = run_here(train.cli_main, *flags(tmp_path / "save", data_bin), *more.split())
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and message in last and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "save").exists()


def test_fairseqs_own_model_is_refused(data_bin, tmp_path):
    words = flags(tmp_path / "save", data_bin, arch="transformer_lm")
    place = words.index("--token-positions")  # which it has not
    del words[place : place + 2]
    done = run_here(train.cli_main, *words)
    message = "memory_lm is for --arch linear_lm_... and softmax_lm_..., not for transformer_lm"
    assert done.returncode != 0 and message in done.stderr.strip().splitlines()[-1], done.stderr
    assert not (tmp_path / "save").exists()
