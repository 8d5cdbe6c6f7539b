"""Invalid calls of fairseq's commands with the plugin end with a one-line error and leave no files.

A row has flags that are added to a valid call, and a part of the error message.
"""

import io
import shutil
import zipfile

import pytest
import torch
from fairseq_cli import eval_lm, generate, interactive, train, validate
from tiny import run_command, run_here, train_flags

import fairseq_lrpe.models

COMMANDS = {
    "fairseq-train": train.cli_main,
    "fairseq-eval-lm": eval_lm.cli_main,
    "fairseq-validate": validate.cli_main,
    "fairseq-generate": generate.cli_main,
    "fairseq-interactive": interactive.cli_main,
}
EVALUATIONS = [name for name in COMMANDS if name != "fairseq-train"]


@pytest.fixture(scope="module")
def checkpoint(train, data_bin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    done = train("linear_lm_base", folder, "--max-update", 1, "--disable-validation")
    assert done.returncode == 0, done.stderr
    return folder / "checkpoint_last.pt"


def valid_call(command, data, checkpoint, save):
    """Arguments that a command accepts."""
    if command == "fairseq-train":
        return train_flags(data, "linear_lm_base", save, "--max-update", 1)
    words = [data, "--path", checkpoint, "--cpu", "--tokens-per-sample", 32]
    words += ["--task", "language_modeling"] if command != "fairseq-eval-lm" else []
    return words + (["--batch-size", 4] if command != "fairseq-interactive" else [])


def assert_rejected(done, message, save):
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and message in last, done.stderr
    assert last.startswith("fairseq_lrpe: ") and "Traceback" not in done.stderr and not save.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--decoder-attention-heads 0", "--decoder-attention-heads must be at least 1, not 0"),
        ("--decoder-layers 0", "--decoder-layers must be at least 1, not 0"),
        ("--attention-dropout -1", "--attention-dropout must be from 0 to 1, not -1.0"),
        ("--decoder-layerdrop 2", "--decoder-layerdrop must be from 0 to 1, not 2.0"),
        ("--init-std -1", "--init-std must be at least 0, not -1"),
        (
            "--max-target-positions 16",
            "blocks of --tokens-per-sample 32 are longer than --max-target-positions 16",
        ),
        (
            "--arch softmax_lm_tupe_a --max-target-positions 31",
            "--tokens-per-sample 32 are longer than --max-target-positions 31: pass the same number, or omit",
        ),
        ("--attention softmax --encoding cope --cope-positions 1", "cope needs at least 2 positions"),
        ("--task masked_lm", "the task masked_lm is for the roberta architectures"),
        ("--train-subset nosuch", "nosuch.bin, nosuch.idx missing"),
        ("--valid-subset nosuch", "nosuch.bin, nosuch.idx missing"),
        ("--restore-file nowhere.pt", "the checkpoint nowhere.pt does not exist"),
        ("--restore-file tests", "the checkpoint tests is a folder"),
        ("--finetune-from-model nowhere.pt", "the checkpoint nowhere.pt does not exist"),
    ],
)
def test_training(flags, message, data_bin, tmp_path):
    words = valid_call("fairseq-train", data_bin, None, tmp_path / "save")
    assert_rejected(run_here(train.cli_main, *words, *flags.split()), message, tmp_path / "save")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--path nowhere.pt", "the checkpoint nowhere.pt does not exist"),
        ("--path tests", "the checkpoint tests is a folder"),
        ("--path README.md", "README.md is not a readable checkpoint of fairseq"),
        ("--task masked_lm", "is of the task language_modeling, not of masked_lm: pass --task"),
    ],
)
@pytest.mark.parametrize("command", EVALUATIONS)
def test_evaluation(command, flags, message, checkpoint, data_bin, tmp_path):
    words = valid_call(command, data_bin, checkpoint, None)
    assert_rejected(run_here(COMMANDS[command], *words, *flags.split()), message, tmp_path / "save")


def cut(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train.bin", cut, "bytes instead of the"),
        ("train.bin", lambda content: b"", "has 0 bytes instead of the"),
        ("train.bin", lambda content: b"foreign", "has 7 bytes instead of the"),
        ("train.bin", lambda content: content * 2, "of its index: it is truncated, or of another text"),
        ("train.idx", cut, "train.idx is damaged"),
        ("train.idx", lambda content: content[:12], "train.idx is damaged"),
        ("train.idx", lambda content: b"", "train.idx is not an index of fairseq's"),
        ("train.idx", lambda content: b"x" * 999, "train.idx is not an index of fairseq's"),
        ("valid.bin", cut, "bytes instead of the"),
    ],
)
def test_damaged_data(name, change, message, data_bin, tmp_path):
    shutil.copytree(data_bin, tmp_path / "bin")
    path = tmp_path / "bin" / name
    path.write_bytes(change(path.read_bytes()))
    words = valid_call("fairseq-train", tmp_path / "bin", None, tmp_path / "save")
    assert_rejected(run_here(train.cli_main, *words), message, tmp_path / "save")


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_data(command, checkpoint, tmp_path):
    words = valid_call(command, tmp_path / "nowhere", checkpoint, tmp_path / "save")
    assert_rejected(run_here(COMMANDS[command], *words), "nowhere' does not exist", tmp_path / "save")


def write_zip(state, path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", "b")


def without(part):
    def save(state, path):
        torch.save({name: value for name, value in state.items() if name != part}, path)

    return save


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (lambda state, path: torch.save([1, 2], path), "(it contains a list)"),
        (write_zip, "is not a readable checkpoint of fairseq"),
        (lambda state, path: path.write_bytes(b""), "is not a readable checkpoint of fairseq"),
        (lambda state, path: path.write_text("text"), "is not a readable checkpoint of fairseq"),
        (lambda state, path: path.mkdir(), "is a folder"),
        (without("cfg"), "(it has no cfg)"),
        (without("model"), "(it has no model)"),
        (without("extra_state"), "(it has no extra_state)"),
        (without("optimizer_history"), "(it has no optimizer_history)"),
    ],
)
def test_invalid_checkpoints(save, message, checkpoint, data_bin, tmp_path):
    path = tmp_path / "invalid.pt"
    save(torch.load(checkpoint, weights_only=True), path)
    calls = [(name, valid_call(name, data_bin, path, None)) for name in EVALUATIONS]
    words = valid_call("fairseq-train", data_bin, None, tmp_path / "save")
    calls += [("fairseq-train", [*words, f, path]) for f in ("--restore-file", "--finetune-from-model")]
    for command, words in calls:
        assert_rejected(run_here(COMMANDS[command], *words), message, tmp_path / "save")


def test_interactive_input_that_is_not_utf8(checkpoint, data_bin, tmp_path, monkeypatch):
    words = valid_call("fairseq-interactive", data_bin, checkpoint, None)
    content = io.BytesIO("w1 caf\u00e9\n".encode("latin-1"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(content, "utf-8", "surrogateescape"))  # as in C.UTF-8
    done = run_here(interactive.cli_main, *words)
    assert_rejected(done, "the text is not UTF-8 ('utf-8' codec can't decode byte 0xe9", tmp_path / "save")


@pytest.mark.parametrize("command", COMMANDS)
def test_new_process(command, checkpoint, tmp_path):
    words = valid_call(command, tmp_path / "nowhere", checkpoint, tmp_path / "save")
    done = run_command(command, *words, "--user-dir", fairseq_lrpe.__path__[0])
    assert_rejected(done, "nowhere' does not exist", tmp_path / "save")
