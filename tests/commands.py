"""fairseq's commands in tests: distributed training, checkpoints and error messages."""

import torch
from fairseq_cli import eval_lm, generate, interactive, validate
from tiny import PLUGIN, run_command, train_here

EVALUATIONS = {
    "fairseq-eval-lm": eval_lm.cli_main,
    "fairseq-validate": validate.cli_main,
    "fairseq-generate": generate.cli_main,
    "fairseq-interactive": interactive.cli_main,
}


def sizes(part, layers=1, width=16, heads=2, ffn=None):
    """Returns the flags of a small encoder or decoder."""
    values = {"layers": layers, "embed-dim": width, "ffn-embed-dim": ffn or width, "attention-heads": heads}
    return [word for name, value in values.items() for word in (f"--{part}-{name}", value)]


SHORT_TRAINING = (
    f"--user-dir {PLUGIN} --optimizer adam --lr 0.01 --batch-size 8 --cpu --num-workers 0 "
    "--data-buffer-size 0 --required-batch-size-multiple 1 --no-epoch-checkpoints"
).split()


def train(data, arch, save, *flags):
    """Runs fairseq-train in this process for a short training; later flags win."""
    return train_here(data, *SHORT_TRAINING, "--arch", arch, "--save-dir", save, *flags)


def train_in_two_processes(*flags):
    """Runs fairseq-train in two processes on the CPU.

    fairseq derives the device from torchrun's variables and the number of GPUs, which is 0 here: env:// and
    rank -1 leave both to torch.
    """
    start = ["torchrun", "--standalone", "--nproc_per_node", 2, "-m", "fairseq_cli.train", *flags]
    start += "--distributed-world-size 2 --distributed-init-method env:// --distributed-rank -1".split()
    start += "--distributed-no-spawn --distributed-backend gloo --ddp-backend legacy_ddp".split()
    done = run_command(*start)
    assert done.returncode == 0, done.stderr
    assert "training on 2 devices" in done.stdout


def state_of(folder):
    """Returns the last checkpoint of a training."""
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)


def assert_same_weights(one, two, rtol=0.0, atol=0.0):
    """Asserts that two trainings have the same parameters, exactly by default."""
    ours, theirs = (state_of(folder)["model"] for folder in (one, two))
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=rtol, atol=atol, msg=name)


def assert_resumes(train, folder, updates, *flags):
    """Asserts that an interrupted training has the same parameters as an uninterrupted one.

    Args:
        train: function of a folder and flags that trains.
        folder: an empty folder.
        updates: (updates of the first part, total).
        *flags: flags of both parts.
    """
    for name, last in (("whole", updates[-1:]), ("parts", updates)):
        for limit in last:
            done = train(folder / name, *flags, "--max-update", limit)
            assert done.returncode == 0, done.stderr
            assert state_of(folder / name)["optimizer_history"][-1]["num_updates"] == limit
    assert_same_weights(folder / "whole", folder / "parts")


def assert_error(done, message):
    """Asserts that a command failed with a one-line error that contains ``message``."""
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and message in last, done.stderr
    assert last.startswith("fairseq_lrpe: ") and "Traceback" not in done.stderr, done.stderr


def assert_rejected(done, message, save):
    """Asserts that a training failed with a one-line error before it wrote anything."""
    assert_error(done, message)
    assert not save.exists()


def outputs(done, kind):
    """Returns {number of the line: last column} of the lines of fairseq-generate that begin with ``kind``."""
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines() if line.startswith(f"{kind}-")]
    return {int(line[0].removeprefix(f"{kind}-")): line[-1] for line in lines}
