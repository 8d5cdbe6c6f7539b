"""fairseq's commands evaluate every sample of a split, or report how many would be skipped."""

import io
import re

import pytest
from support import commands
from support.commands import EVALUATIONS, assert_error, sizes
from support.tiny import PLUGIN, preprocess, run_here, succeeded, train_flags, train_here

SKIP = "--skip-invalid-size-inputs-valid-test"
LINES = "--task language_modeling --sample-break-mode eos"
SHORT = 12
"""Positions of the models; about half of the lines are longer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Lines of 2 to 20 words, and pairs of them; the models accept those of the valid set."""
    folder = tmp_path_factory.mktemp("lines")
    lines = [" ".join(f"w{i * n % 7}" for i in range(n)) for n in range(2, 21)]
    short = [line for line in lines if len(line.split()) < SHORT]
    for name, rows in (("train", lines), ("valid", short), ("test", lines)):
        for language in ("", ".a", ".b"):
            (folder / f"{name}{language}").write_text("\n".join(rows) + "\n")
    words = [x for name in ("train", "valid", "test") for x in (f"--{name}pref", folder / name)]
    preprocess("--only-source", *words, "--destdir", folder / "bin")
    words[1] = folder / "valid"  # because a training may not skip samples of the training set
    preprocess("-s", "a", "-t", "b", *words, "--destdir", folder / "pairs")
    return folder


def train(folder, arch, save, *flags):
    """Trains on lines; skipping training samples that are too long is allowed."""
    words = [*LINES.split(), "--max-target-positions", SHORT, "--max-update", 1, "--no-epoch-checkpoints"]
    return train_here(*train_flags(folder / "bin", arch, save, *words, *flags))


@pytest.fixture(scope="module")
def checkpoint(folder, tmp_path_factory):
    save = tmp_path_factory.mktemp("trained")
    succeeded(train(folder, "linear_lm_base", save, SKIP))  # nothing is skipped in validation
    return save / "checkpoint_last.pt"


def run(command, data, checkpoint, *words):
    shared = f"--user-dir {PLUGIN} --path {checkpoint} --cpu --num-workers 0 --data-buffer-size 0".split()
    return run_here(EVALUATIONS[command], data, *shared, *words)


@pytest.mark.parametrize("command, words, message", [
    ("fairseq-eval-lm", "--gen-subset test --tokens-per-sample 100", "3 of 3 samples (228 tokens), which are "
     "longer than the maximum of 12 positions: pass --tokens-per-sample 12,"),
    ("fairseq-eval-lm", f"--gen-subset test {LINES} {SKIP}", "9 of 19 samples (153 tokens), which are"),
    ("fairseq-validate", f"--valid-subset test --batch-size 8 {LINES} {SKIP}", "9 of 19 samples"),
    ("fairseq-generate", f"--gen-subset test {LINES}", "9 of 19 samples (153 tokens)"),
    ("fairseq-interactive", f"--buffer-size 100 {LINES} {SKIP}", "9 of 19 samples"),
])  # fmt: skip
def test_skipped_samples(command, words, message, checkpoint, folder, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO((folder / "test").read_text()))
    done = run(command, folder / "bin", checkpoint, *words.split())
    assert_error(done, f"the evaluation would skip {message}")


def test_validation_of_a_training(folder, tmp_path):
    done = train(folder, "softmax_lm_rope", tmp_path, "--valid-subset", "test", SKIP)
    assert_error(done, "the evaluation would skip 9 of 19 samples (153 tokens)")
    assert not list(tmp_path.iterdir())


def test_incomplete_last_batch_is_evaluated(checkpoint, folder):
    words = ["--batch-size", 4, "--required-batch-size-multiple", 8]
    done = run(
        "fairseq-generate", folder / "bin", checkpoint, *LINES.split(), "--gen-subset", "valid", *words
    )
    assert len(re.findall("^H-", done.stdout, re.MULTILINE)) == 10, done.stderr
    done = run("fairseq-validate", folder / "bin", checkpoint, "--valid-subset", "valid", *words)
    assert done.returncode == 0 and "wpb 75 | bsz 10\n" in done.stdout, done.stderr


def test_shards_of_an_evaluation(checkpoint, folder, caplog):
    words = ["--tokens-per-sample", SHORT, "--batch-size", 1, "--num-shards", 2, "--shard-id"]
    for shard in range(2):
        with caplog.at_level("INFO"):
            succeeded(run("fairseq-eval-lm", folder / "bin", checkpoint, *words, shard))
    assert sum(map(int, re.findall(r"Evaluated (\d+) tokens", caplog.text))) == 228


@pytest.mark.parametrize("arch, data, training, evaluations", [
    ("linear_transformer_base", "pairs", f"--max-source-positions {SHORT} --max-target-positions {SHORT}",
     {"fairseq-generate": "--gen-subset", "fairseq-validate": "--task translation --valid-subset"}),
    ("linear_roberta_base", "bin", "--task masked_lm --criterion masked_lm --sample-break-mode eos "
     f"--max-positions {SHORT + 1}", {"fairseq-validate": "--task masked_lm --valid-subset"}),
])  # fmt: skip
def test_other_tasks(arch, data, training, evaluations, folder, tmp_path):
    words = [*training.split(), *sizes("encoder"), *(sizes("decoder") if data == "pairs" else [])]
    succeeded(commands.train(folder / data, arch, tmp_path, "--max-update", 1, *words))
    for command, flags in evaluations.items():
        words = ["--batch-size", 4, SKIP, *flags.split(), "test"]
        done = run(command, folder / data, tmp_path / "checkpoint_last.pt", *words)
        assert_error(done, "the evaluation would skip 9 of 19 samples")
