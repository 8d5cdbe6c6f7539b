"""Interrupted and distributed training equals that of one uninterrupted process."""

import os
import signal
import subprocess
import time

import torch
from tiny import BIN, REPOSITORY, run_command, train_flags


def parameters(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]


def test_resuming_after_kill_gives_same_parameters(train, data_bin, tmp_path):
    arch, whole, killed = "linear_lm_tmlr_type1", tmp_path / "whole", tmp_path / "killed"
    flags = ["--max-update", 40, "--save-interval-updates", 3, "--dropout", 0.1, "--disable-validation"]
    assert train(arch, whole, *flags).returncode == 0

    process = subprocess.Popen(
        list(map(str, [BIN / "fairseq-train", *train_flags(data_bin, arch, killed, *flags)])),
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not list(killed.glob("checkpoint_*_6.pt")):
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    reached = torch.load(killed / "checkpoint_last.pt", weights_only=True)
    assert 3 <= reached["optimizer_history"][-1]["num_updates"] < 40

    assert train(arch, killed, *flags).returncode == 0
    whole, resumed = parameters(whole), parameters(killed)
    assert whole.keys() == resumed.keys()
    for name in whole:
        assert torch.equal(whole[name], resumed[name]), name


def test_two_processes_equal_one_with_summed_batch(train, data_bin, tmp_path):
    arch, flags = ("linear_lm_tmlr_type2", ["--dropout", 0, "--disable-validation", "--no-epoch-checkpoints"])
    for updates in (1, 3):
        one = train(arch, tmp_path / f"one{updates}", *flags, "--update-freq", 2, "--max-update", updates)
        assert one.returncode == 0, one.stderr
    # fairseq derives the device from torchrun's variables by the number of GPUs, which is 0 here:
    # env:// and rank -1 leave both to torch.
    flags += ["--max-update", 3, "--distributed-world-size", 2, "--distributed-init-method", "env://"]
    flags += ["--distributed-rank", -1, "--distributed-no-spawn"]
    flags += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    two = run_command(
        "torchrun",
        *("--standalone", "--nproc_per_node", 2, BIN / "fairseq-train"),
        *train_flags(data_bin, arch, tmp_path / "two", *flags),
    )
    assert two.returncode == 0, two.stderr
    assert "training on 2 devices" in two.stdout
    start, one, two = (parameters(tmp_path / name) for name in ("one1", "one3", "two"))
    moved = {
        name: (one[name] - start[name]).abs().max().item() for name in one if one[name].is_floating_point()
    }
    assert moved["decoder.layers.0.self_attn.encoding.theta"] > 1e-4
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-6, msg=name)
