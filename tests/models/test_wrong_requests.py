"""Wrong calls of fairseq's commands with the plugin get one sentence, and leave nothing behind.

A row is what is wrong, the command, the flags that are added to a good call, and a part of the sentence.
"""

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

TRAINING = [
    ("--decoder-attention-heads 0", "--decoder-attention-heads must be at least 1, not 0"),
    ("--decoder-attention-heads -4", "--decoder-attention-heads must be at least 1, not -4"),
    ("--decoder-embed-dim 0", "--decoder-embed-dim must be at least 1, not 0"),
    ("--decoder-embed-dim -32", "--decoder-embed-dim must be at least 1, not -32"),
    ("--decoder-ffn-embed-dim 0", "--decoder-ffn-embed-dim must be at least 1, not 0"),
    ("--decoder-input-dim 0", "--decoder-input-dim must be at least 1, not 0"),
    ("--decoder-output-dim -1", "--decoder-output-dim must be at least 1, not -1"),
    ("--decoder-layers 0", "--decoder-layers must be at least 1, not 0"),
    ("--dropout 2", "--dropout must be from 0 to 1, not 2.0"),
    ("--attention-dropout -1", "--attention-dropout must be from 0 to 1, not -1.0"),
    ("--decoder-layerdrop 2", "--decoder-layerdrop must be from 0 to 1, not 2.0"),
    ("--max-target-positions 0", "--max-target-positions must be at least 1, not 0"),
    ("--tokens-per-sample 0", "--tokens-per-sample must be at least 1, not 0"),
    ("--tokens-per-sample -5", "--tokens-per-sample must be at least 1, not -5"),
    (
        "--max-target-positions 16",
        "blocks of --tokens-per-sample 32 are longer than --max-target-positions 16",
    ),
    (
        "--arch softmax_lm_tupe_a --max-target-positions 31",
        "--tokens-per-sample 32 are longer than --max-target-positions 31: give the same number, or leave",
    ),
    ("--batch-size 0", "--batch-size must be at least 1, not 0"),
    ("--batch-size -1", "--batch-size must be at least 1, not -1"),
    ("--max-tokens 0", "--max-tokens must be at least 1, not 0"),
    ("--batch-size-valid 0", "--batch-size-valid must be at least 1, not 0"),
    ("--update-freq 0", "--update-freq must be at least 1, not 0"),
    ("--update-freq 1,-1", "--update-freq must be at least 1, not -1"),
    ("--required-batch-size-multiple 0", "--required-batch-size-multiple must be at least 1, not 0"),
    ("--log-interval 0", "--log-interval must be at least 1, not 0"),
    ("--num-workers -1", "--num-workers must be at least 0, not -1"),
    ("--max-update -1", "--max-update must be at least 0, not -1"),
    ("--lr-scheduler inverse_sqrt --warmup-updates -1", "--warmup-updates must be at least 0, not -1"),
    ("--lr x", "argument --lr: invalid"),
    ("--attention softmax --encoding cope --cope-positions 1", "cope tells apart at least 2 positions"),
    ("--task masked_lm", "the task masked_lm is for the roberta architectures"),
    ("--task nosuch", "invalid choice: 'nosuch'"),
    ("--fp16", "--fp16 needs a GPU: leave it out"),
    ("--optimizer-overrides {", "the setting '{' is neither"),
    ("--optimizer-overrides 5", "--optimizer-overrides must be a dict like"),
    ("--train-subset nosuch", "nosuch.bin, nosuch.idx missing"),
    ("--valid-subset nosuch", "nosuch.bin, nosuch.idx missing"),
    ("--restore-file nowhere.pt", "the checkpoint nowhere.pt does not exist"),
    ("--restore-file tests", "the checkpoint tests is a folder"),
    ("--finetune-from-model nowhere.pt", "the checkpoint nowhere.pt does not exist"),
    ("--save-dir README.md", "README.md/dummy cannot be read or written (Not a directory)"),
    ("--save-dir README.md/save", "README.md/save cannot be read or written (Not a directory)"),
]

EVALUATING = [
    ("--tokens-per-sample 0", "--tokens-per-sample must be at least 1, not 0"),
    ("--batch-size 0", "--batch-size must be at least 1, not 0"),
    ("--max-tokens -1", "--max-tokens must be at least 1, not -1"),
    ("--num-workers -1", "--num-workers must be at least 0, not -1"),
    ("--path nowhere.pt", "the checkpoint nowhere.pt does not exist"),
    ("--path tests", "the checkpoint tests is a folder"),
    ("--path README.md", "README.md is no checkpoint of fairseq that can be read"),
    ("--model-overrides {", "the setting '{' is neither"),
    ("--model-overrides [1", "the setting '[1' is neither"),
    ("--model-overrides ???", "the setting '???' is neither"),
    ("--model-overrides null", "the setting 'null' is neither"),
    ("--model-overrides !!python/object:os.system", "the setting '!!python/object:os.system' is neither"),
    ("--model-overrides 5", "--model-overrides must be a dict like"),
]


@pytest.fixture(scope="module")
def checkpoint(train, data_bin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    done = train("linear_lm_base", folder, "--max-update", 1, "--disable-validation")
    assert done.returncode == 0, done.stderr
    return folder / "checkpoint_last.pt"


def good(command, data, checkpoint, save):
    """A call that works."""
    if command == "fairseq-train":
        return train_flags(data, "linear_lm_base", save, "--max-update", 1)
    words = [data, "--path", checkpoint, "--cpu", "--tokens-per-sample", 32]
    words += ["--task", "language_modeling"] if command != "fairseq-eval-lm" else []
    return words + (["--batch-size", 4] if command != "fairseq-interactive" else [])


def assert_refused(done, message, save):
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and message in last, done.stderr
    assert last.startswith("fairseq_lrpe: ") or "error: argument" in last
    assert "Traceback" not in done.stderr and not save.exists()


@pytest.mark.parametrize(("flags", "message"), TRAINING)
def test_training(flags, message, data_bin, tmp_path):
    words = good("fairseq-train", data_bin, None, tmp_path / "save")
    assert_refused(run_here(train.cli_main, *words, *flags.split()), message, tmp_path / "save")


@pytest.mark.parametrize(("flags", "message"), EVALUATING)
@pytest.mark.parametrize("command", EVALUATIONS)
def test_evaluations(command, flags, message, checkpoint, data_bin, tmp_path):
    words = good(command, data_bin, checkpoint, None)
    assert_refused(run_here(COMMANDS[command], *words, *flags.split()), message, tmp_path / "save")


@pytest.mark.parametrize(
    ("command", "flag", "message"),
    [
        ("fairseq-train", "--batch-size", "give --batch-size or --max-tokens"),
        ("fairseq-validate", "--batch-size", "give --batch-size or --max-tokens"),
        *((command, "--path", "give --path CHECKPOINT") for command in EVALUATIONS),
    ],
)
def test_a_flag_that_is_missing(command, flag, message, checkpoint, data_bin, tmp_path):
    words = good(command, data_bin, checkpoint, tmp_path / "save")
    at = words.index(flag)
    assert_refused(run_here(COMMANDS[command], *words[:at], *words[at + 2 :]), message, tmp_path / "save")


def cut(content):
    return content[: len(content) // 2]


DATA = {
    "a cut train.bin": ("train.bin", cut, "bytes and its index says"),
    "an empty train.bin": ("train.bin", lambda content: b"", "has 0 bytes and its index says"),
    "a foreign train.bin": ("train.bin", lambda content: b"foreign", "has 7 bytes and its index says"),
    "a longer train.bin": ("train.bin", lambda content: content * 2, "it is cut off, or of another text"),
    "a cut train.idx": ("train.idx", cut, "train.idx is cut off or damaged"),
    "a train.idx cut in its head": ("train.idx", lambda content: content[:12], "is cut off or damaged"),
    "an empty train.idx": ("train.idx", lambda content: b"", "train.idx is no index of fairseq's"),
    "a foreign train.idx": ("train.idx", lambda content: b"x" * 999, "train.idx is no index of fairseq's"),
    "a cut valid.bin": ("valid.bin", cut, "bytes and its index says"),
    "UTF-16": ("dict.txt", lambda content: content.decode().encode("utf-16"), "dict.txt is no dictionary"),
    "Latin-1": ("dict.txt", lambda content: "ä 1\n".encode("latin-1"), "dict.txt is no dictionary"),
    "a binary dict.txt": ("dict.txt", lambda content: bytes(range(256)), "dict.txt is no dictionary"),
    "one column": ("dict.txt", lambda content: b"a\nb\n", "dict.txt is no dictionary"),
    "an empty dict.txt": ("dict.txt", lambda content: b"", "dict.txt has no types"),
    "few types": ("dict.txt", lambda content: b"a 1\nb 1\n", "and its dictionary 6 types"),
}


@pytest.fixture
def damaged(data_bin, tmp_path):
    """damaged(what): a data folder that is damaged so."""

    def damaged(what):
        shutil.copytree(data_bin, tmp_path / "bin")
        name, change, _ = DATA[what]
        path = tmp_path / "bin" / name
        path.write_bytes(change(path.read_bytes()))
        return tmp_path / "bin"

    return damaged


@pytest.mark.parametrize("what", DATA)
def test_damaged_data(what, damaged, tmp_path):
    words = good("fairseq-train", damaged(what), None, tmp_path / "save")
    assert_refused(run_here(train.cli_main, *words), DATA[what][-1], tmp_path / "save")


@pytest.mark.parametrize("command", EVALUATIONS)
def test_damaged_data_of_an_evaluation(command, damaged, checkpoint, tmp_path):
    folder = damaged("UTF-16")
    done = run_here(COMMANDS[command], *good(command, folder, checkpoint, None))
    assert_refused(done, "dict.txt is no dictionary", tmp_path / "save")
    gone = run_here(COMMANDS[command], *good(command, tmp_path / "nowhere", checkpoint, None))
    assert_refused(gone, "nowhere' does not exist", tmp_path / "save")


def zipped(state, path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", "b")


def without(part):
    def save(state, path):
        torch.save({name: value for name, value in state.items() if name != part}, path)

    return save


CHECKPOINTS = {
    "a list": (lambda state, path: torch.save([1, 2], path), "(it holds a list)"),
    "another zip": (zipped, "is no checkpoint of fairseq that can be read"),
    "an empty file": (
        lambda state, path: path.write_bytes(b""),
        "is no checkpoint of fairseq that can be read",
    ),
    "a text": (lambda state, path: path.write_text("text"), "is no checkpoint of fairseq that can be read"),
    "a folder": (lambda state, path: path.mkdir(), "is a folder"),
    "no cfg": (without("cfg"), "(it has no cfg)"),
    "no model": (without("model"), "(it has no model)"),
    "no extra_state": (without("extra_state"), "(it has no extra_state)"),
    "no history": (without("optimizer_history"), "(it has no optimizer_history)"),
}


@pytest.mark.parametrize("what", CHECKPOINTS)
def test_foreign_checkpoints(what, checkpoint, data_bin, tmp_path):
    save, message = CHECKPOINTS[what]
    path = tmp_path / "foreign.pt"
    save(torch.load(checkpoint, weights_only=True), path)
    for command in EVALUATIONS:
        done = run_here(COMMANDS[command], *good(command, data_bin, path, None))
        assert_refused(done, message, tmp_path / "save")
    for flag in ("--restore-file", "--finetune-from-model"):
        words = good("fairseq-train", data_bin, None, tmp_path / "save")
        assert_refused(run_here(train.cli_main, *words, flag, path), message, tmp_path / "save")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_process_of_its_own(command, checkpoint, data_bin, tmp_path):
    words = good(command, data_bin, checkpoint, tmp_path / "save")
    words = [*words, "--user-dir", fairseq_lrpe.__path__[0], "--tokens-per-sample", 0]
    done = run_command(command, *words)
    assert_refused(done, "--tokens-per-sample must be at least 1, not 0", tmp_path / "save")
