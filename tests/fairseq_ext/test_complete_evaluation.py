"""fairseq's commands evaluate every sample of a split, or fail and report how many would be skipped."""

import io
import re

import commands
import pytest
from commands import assert_error, sizes
from fairseq_cli import eval_lm, generate, interactive, validate
from tiny import PLUGIN, preprocess, run_here, train_flags, train_here

SKIP = "--skip-invalid-size-inputs-valid-test"
LINES = ["--task", "language_modeling", "--sample-break-mode", "eos"]
SHORT = 12
"""Positions of the models; about half of the lines are longer."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Lines of 2 to 20 words, and the split "short" with those that the models accept."""
    folder = tmp_path_factory.mktemp("lines")
    lines = [" ".join(f"w{i * n % 7}" for i in range(n)) for n in range(2, 21)]
    short = [line for line in lines if len(line.split()) < SHORT]
    for name, rows in (("all", lines), ("short", short)):
        for language in ("", ".a", ".b"):
            (folder / f"{name}{language}").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def data(text):
    words = ["--trainpref", text / "all", "--validpref", text / "short", "--testpref", text / "all"]
    preprocess("--only-source", *words, "--destdir", text / "bin")
    return text / "bin"


@pytest.fixture(scope="module")
def pairs(text):
    words = ["--trainpref", text / "short", "--validpref", text / "short", "--testpref", text / "all"]
    preprocess("-s", "a", "-t", "b", *words, "--destdir", text / "pairs")
    return text / "pairs"


def train(data, arch, folder, *flags):
    """Trains on lines; skipping training samples that are too long is allowed."""
    words = [*LINES, "--max-target-positions", SHORT, "--max-update", 1, "--no-epoch-checkpoints", *flags]
    return train_here(*train_flags(data, arch, folder, *words))


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    done = train(data, "linear_lm_base", folder, SKIP)  # nothing is skipped in validation
    assert done.returncode == 0, done.stderr
    return folder / "checkpoint_last.pt"


def run(main, data, checkpoint, *words):
    shared = f"--user-dir {PLUGIN} --path {checkpoint} --cpu --num-workers 0 --data-buffer-size 0".split()
    return run_here(main, data, *shared, *words)


def test_blocks_longer_than_the_model_accepts(checkpoint, data):
    done = run(eval_lm.cli_main, data, checkpoint, "--tokens-per-sample", 100, "--gen-subset", "test")
    message = (
        "evaluating test would skip 3 of 3 samples (228 tokens), which are longer than the maximum of 12"
    )
    assert_error(done, message)
    assert f"pass --tokens-per-sample {SHORT}" in done.stderr


@pytest.mark.parametrize("main, split, skip", [
    (eval_lm.cli_main, "--gen-subset", [SKIP]),
    (validate.cli_main, "--valid-subset", [SKIP]),
    (generate.cli_main, "--gen-subset", []),
])  # fmt: skip
def test_lines_longer_than_the_model_accepts(main, split, skip, checkpoint, data):
    done = run(main, data, checkpoint, *LINES, split, "test", "--batch-size", 4, *skip)
    assert_error(done, "evaluating test would skip 9 of 19 samples (153 tokens), which are longer")
    assert "shorten these samples, or use a model that accepts more positions" in done.stderr


def test_input_longer_than_the_model_accepts(checkpoint, data, text, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO((text / "all").read_text()))
    done = run(interactive.cli_main, data, checkpoint, *LINES, "--buffer-size", 100, SKIP)
    assert_error(done, "evaluating the input would skip 9 of 19 samples")


def test_validation_of_a_training(data, tmp_path):
    done = train(data, "softmax_lm_rope", tmp_path, "--valid-subset", "test", SKIP)
    assert_error(done, "evaluating test would skip 9 of 19 samples (153 tokens)")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "main, split", [(validate.cli_main, "--valid-subset"), (eval_lm.cli_main, "--gen-subset")]
)
def test_shortened_lines(main, split, checkpoint, data):
    words = [*LINES, "--tokens-per-sample", 8, "--shorten-method", "truncate", "--batch-size", 4, split]
    done = run(main, data, checkpoint, *words, "test")
    assert_error(done, "evaluating test would skip 91 of 228 tokens, which --shorten-method truncate removes")
    done = run(main, data, checkpoint, *words, "valid", "--shorten-data-split-list", "train")
    assert done.returncode == 0, done.stderr


def test_incomplete_last_batch_is_evaluated(checkpoint, data):
    words = ["--batch-size", 4, "--required-batch-size-multiple", 8]
    done = run(generate.cli_main, data, checkpoint, *LINES, "--gen-subset", "valid", *words)
    assert len(re.findall("^H-", done.stdout, re.MULTILINE)) == 10, done.stderr
    done = run(validate.cli_main, data, checkpoint, "--valid-subset", "valid", *words)
    assert done.returncode == 0 and "wpb 75 | bsz 10\n" in done.stdout, done.stderr


def test_shards_of_an_evaluation(checkpoint, data, caplog):
    words = ["--tokens-per-sample", SHORT, "--batch-size", 1, "--num-shards", 2]
    for shard in range(2):
        with caplog.at_level("INFO"):
            done = run(eval_lm.cli_main, data, checkpoint, *words, "--shard-id", shard)
        assert done.returncode == 0, done.stderr
    assert sum(map(int, re.findall(r"Evaluated (\d+) tokens", caplog.text))) == 228


def train_encoder(data, arch, folder, *flags):
    done = commands.train(data, arch, folder, "--max-update", 1, *sizes("encoder"), *flags)
    assert done.returncode == 0, done.stderr


def test_translation(pairs, tmp_path):
    words = ["--max-source-positions", SHORT, "--max-target-positions", SHORT, *sizes("decoder")]
    train_encoder(pairs, "linear_transformer_base", tmp_path, *words)
    message = "evaluating test would skip 9 of 19 samples (306 tokens)"
    for main, *more in (
        (generate.cli_main, "--gen-subset"),
        (validate.cli_main, "--task", "translation", "--valid-subset"),
    ):
        done = run(main, pairs, tmp_path / "checkpoint_last.pt", "--batch-size", 4, SKIP, *more, "test")
        assert_error(done, message)


def test_masked_language_models(data, tmp_path):
    words = ["--task", "masked_lm", "--criterion", "masked_lm", "--sample-break-mode", "eos"]
    train_encoder(data, "linear_roberta_base", tmp_path, *words, "--max-positions", SHORT + 1)
    words = ["--task", "masked_lm", "--batch-size", 4, SKIP, "--valid-subset", "test"]
    done = run(validate.cli_main, data, tmp_path / "checkpoint_last.pt", *words)
    assert_error(done, "evaluating test would skip 9 of 19 samples")
