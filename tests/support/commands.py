"""Helpers that run fairseq's commands and check their checkpoints, output and error messages."""

import math
import re
from unittest.mock import patch

import torch
from fairseq.logging.progress_bar import JsonProgressBar
from fairseq_cli import eval_lm, generate, interactive, validate

from support.tiny import PLUGIN, run_command, run_here, succeeded, train_here

EVALUATIONS = {
    "fairseq-eval-lm": eval_lm.cli_main,
    "fairseq-validate": validate.cli_main,
    "fairseq-generate": generate.cli_main,
    "fairseq-interactive": interactive.cli_main,
}


def sizes(part, layers=1, width=16, heads=2, ffn=None):
    """Returns the flags of the sizes of a small model, for ``part`` "encoder" or "decoder"."""
    values = {"layers": layers, "embed-dim": width, "ffn-embed-dim": ffn or width, "attention-heads": heads}
    return [word for name, value in values.items() for word in (f"--{part}-{name}", value)]


SHORT_TRAINING = (
    f"--user-dir {PLUGIN} --optimizer adam --lr 0.01 --batch-size 8 --cpu --num-workers 0 "
    "--data-buffer-size 0 --required-batch-size-multiple 1 --no-epoch-checkpoints"
).split()


def train(data, arch, save, *flags):
    """Runs a short fairseq-train in this process; ``flags`` override SHORT_TRAINING."""
    return train_here(data, *SHORT_TRAINING, "--arch", arch, "--save-dir", save, *flags)


def evaluation_flags(command, data, checkpoint):
    """Returns arguments of a command of EVALUATIONS for the tiny language model."""
    words = [data, "--path", checkpoint, "--cpu", "--tokens-per-sample", 32, "--num-workers", 0]
    if command != "fairseq-eval-lm":
        words += ["--task", "language_modeling", "--sample-break-mode", "eos"]
        words += ["--required-batch-size-multiple", 1]
    return words if command == "fairseq-interactive" else [*words, "--batch-size", 4]


def train_in_two_processes(*flags):
    """Runs fairseq-train in two processes on the CPU, and asserts that it succeeds.

    An explicit init method keeps fairseq from dividing the rank by the number of GPUs, which is 0 here. With
    rank -1, torch reads the rank from torchrun's environment variables.
    """
    start = ["torchrun", "--standalone", "--nproc_per_node", 2, "-m", "fairseq_cli.train", *flags]
    start += "--distributed-world-size 2 --distributed-init-method env:// --distributed-rank -1".split()
    start += "--distributed-no-spawn --distributed-backend gloo --ddp-backend legacy_ddp".split()
    done = succeeded(run_command(*start))
    assert "training on 2 devices" in done.stdout


def validated(data, checkpoint, *flags):
    logged = []
    words = ["--user-dir", PLUGIN, "--path", checkpoint, "--cpu", "--num-workers", 0, "--log-format", "json"]
    words += ["--required-batch-size-multiple", 1, "--batch-size", 7]
    with patch.object(JsonProgressBar, "print", lambda self, stats, tag, step: logged.append(stats)):
        succeeded(run_here(validate.cli_main, data, *words, *flags))
    return logged[0]


def evaluated_loss(caplog, data, checkpoint, *flags):
    """Returns the loss in bits that fairseq-eval-lm logs for the test set."""
    caplog.clear()
    words = [data, "--user-dir", PLUGIN, "--path", checkpoint, "--cpu", "--num-workers", 0]
    with caplog.at_level("INFO"):
        succeeded(run_here(eval_lm.cli_main, *words, *flags))
    return float(re.findall(r"Loss \(base 2\): ([\d.]+)", caplog.text)[-1])


def loss_of_samples(model, task):
    """Returns the loss in bits of a language model for the test set, one sample at a time."""
    model.eval()
    task.load_dataset("test")
    total, tokens = 0.0, 0
    with torch.no_grad():
        for item in task.dataset("test"):
            scores = model(item["source"][None])[0].log_softmax(-1)
            total -= scores[0].gather(-1, item["target"][:, None]).sum().item()
            tokens += len(item["target"])
    return total / tokens / math.log(2)


def load_last_checkpoint(folder):
    """Returns the content of checkpoint_last.pt in a folder."""
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)


def assert_same_weights(one, two, rtol=0.0, atol=0.0):
    ours, theirs = (load_last_checkpoint(folder)["model"] for folder in (one, two))
    assert ours.keys() == theirs.keys()
    for name in ours:
        if name.endswith("_float_tensor"):  # fairseq does not initialize it
            continue
        torch.testing.assert_close(ours[name], theirs[name], rtol=rtol, atol=atol, msg=name)


def assert_resumes(train, folder, updates, *flags):
    """Asserts that a resumed training has the same parameters as an uninterrupted one.

    Args:
        train: function ``train(folder, *flags)`` that runs fairseq-train and returns the completed process.
        folder: folder for the checkpoints of both trainings.
        updates: values of --max-update of the first and of the resumed training.
        *flags: further flags of all trainings.
    """
    for name, limits in (("uninterrupted", updates[-1:]), ("resumed", updates)):
        for limit in limits:
            succeeded(train(folder / name, *flags, "--max-update", limit))
            checkpoint = load_last_checkpoint(folder / name)
            assert checkpoint["optimizer_history"][-1]["num_updates"] == limit
    assert_same_weights(folder / "uninterrupted", folder / "resumed")


def assert_error(done, message):
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and message in last, done.stderr
    assert last.startswith("fairseq_lrpe: ") and "Traceback" not in done.stderr, done.stderr


def assert_rejected(done, message, save):
    assert_error(done, message)
    assert not save.exists()


def generated_lines(done, kind):
    """Returns {sentence number: last field} of the lines of fairseq-generate's output of one kind.

    Args:
        done: completed process of fairseq-generate or fairseq-interactive.
        kind: letter at the start of the lines, such as "H" for hypotheses.
    """
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines() if line.startswith(f"{kind}-")]
    return {int(line[0].removeprefix(f"{kind}-")): line[-1] for line in lines}
