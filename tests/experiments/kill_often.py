"""Kill trainings at random points of saving, resume them, and compare the results with uninterrupted ones.

This takes minutes and is not part of the test suite: python tests/experiments/kill_often.py --runs 30. The
runner starts fairseq's training in a fork of a process that has imported both, since imports take seconds. A
kill point is a line logged by fairseq, a part of a checkpoint being written or copied, or a file being
renamed, replaced or removed, in the training or the runner. At a random kill point or a random time, the
runner, the training or both get SIGKILL.
"""

import argparse
import collections
import contextlib
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import fairseq_cli.train
import torch

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.cli import train
from fairseq_lrpe.experiments.execution.run_directory import read_lines
from fairseq_lrpe.tasks import synthetic_lm
from fairseq_lrpe.utils import subprocesses

COMMON = "--attention softmax --cpu train.decoder_layers=1 train.decoder_embed_dim=16 evaluations.test=null"
COMMON += " train.decoder_ffn_embed_dim=32 train.first=8 train.copied=8 train.tokens_per_sample=40"
COMMON += " train.log_interval=4 batch.total=4 batch.per_gpu=4"
CASES = {
    # The last update is saved as the best one and copied to the last one.
    "best": "updates=20 train.validate_interval_updates=3 train.save_interval_updates=3",
    # Every checkpoint is kept, and the last update has its own.
    "kept": "updates=18 train.validate_interval_updates=6 train.save_interval_updates=3 "
    "train.keep_interval_updates=-1",
    # Epochs' ends are saved too, as the last checkpoint and perhaps the best one.
    "epochs": "updates=20 train.save_interval=1 train.validate_interval=1 train.save_interval_updates=5 "
    "train.validate_interval_updates=5",
}
SEQUENCES = {"train": 32, "valid": 8}  # epochs of eight updates
TIMES = {"wps", "ups", "wall", "train_wall", "gb_free"}
PARTS = 6  # of a copy
KILLS = 8  # of a run at most


class KillPoints:
    """Counts the kill points of this process and kills ``victim`` at number ``at``."""

    def __init__(self, at, victim):
        self.left, self.victim = at, victim

    def __call__(self):
        self.left -= 1
        if self.left == 0:
            if self.victim in ("runner", "both"):
                os.kill(RUNNER or os.getpid(), signal.SIGKILL)
            if self.victim in ("training", "both") and RUNNER:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, function):
        def call(*args, **more):
            self()
            result = function(*args, **more)
            self()
            return result

        return call

    def copyfile(self, source, target, **_):
        """Copies a file in parts, with kill points in between."""
        data = Path(source).read_bytes()
        with open(target, "wb") as file:
            size = len(data) // PARTS + 1
            for start in range(0, len(data), size):
                self()
                file.write(data[start : start + size])
                file.flush()
        self()
        return target

    def install(self):
        for name in ("rename", "replace", "remove", "unlink"):
            setattr(os, name, self.around(getattr(os, name)))
        shutil.copyfile = self.copyfile
        logging.StreamHandler.emit = around_method(self, logging.StreamHandler.emit)
        torch.save = self.around(torch.save)


def around_method(points, method):
    return lambda *args: points.around(method)(*args)


def printers():
    """Returns line-buffered files for standard output and error."""
    return (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))


RUNNER = None  # in a training: the process id of the runner


class Forked:
    """Replaces subprocess.Popen in the runner: fairseq-train in a fork of this process."""

    plan = (0, "none")

    def __init__(self, command, stdout, preexec_fn, pass_fds=(), **_):
        global RUNNER
        assert command[0].endswith("fairseq-train")
        runner = os.getpid()
        self.returncode, self.pid = None, os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            preexec_fn()
            RUNNER = runner
            for number in subprocesses.TERMINATION_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.dup2(stdout.fileno(), 1)
            os.dup2(stdout.fileno(), 2)
            kept = {0, 1, 2, *pass_fds}
            for fd in map(int, os.listdir("/proc/self/fd")):
                if fd not in kept:
                    with contextlib.suppress(OSError):
                        os.close(fd)
            sys.stdout, sys.stderr = printers()
            sys.argv = command
            for handler in logging.root.handlers:
                handler.setStream(sys.stdout)
            KillPoints(*self.plan).install()
            fairseq_cli.train.cli_main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code if isinstance(code, int) else 1)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=None):
        until = time.monotonic() + (timeout or 1e9)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("fairseq-train", timeout)
            time.sleep(0.005)
        return self.returncode


def run(words, training=(0, "none"), runner=0, delay=None):
    """Runs the runner in a fork; returns (exit code, output)."""
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.stdout, sys.stderr = printers()
            names = {name: getattr(subprocess, name) for name in ("STDOUT", "TimeoutExpired")}
            subprocesses.subprocess, Forked.plan = SimpleNamespace(**names, Popen=Forked), training
            subprocesses.POLL_INTERVAL = 0.01
            if runner:
                KillPoints(runner, "runner").install()
            train.main(words)
            code = 0
        except SystemExit as end:
            code = 1 if isinstance(end.code, str) else end.code or 0
            print(end.code)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    if delay is not None:
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            victim = random.choice(["runner", "training", "both"])
            if victim in ("training", "both"):
                for child in map(int, children):
                    os.kill(child, signal.SIGKILL)
            if victim in ("runner", "both"):
                os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    output.seek(0)
    return os.waitstatus_to_exitcode(status), output.read()


def run_folder(results):
    [path] = results.rglob("run.json")
    return path.parent


def final_state(folder):
    """Returns the tensors of the checkpoints and the log without times, which must not depend on kills."""
    states = {}
    for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
        state = torch.load(folder / "checkpoints" / name, weights_only=True)
        optimizer = state["last_optimizer_state"]["state"]
        states[name] = {
            **state["model"],
            **{f"{key}.{k}": v for key, found in optimizer.items() for k, v in found.items()},
            "updates": state["optimizer_history"][-1]["num_updates"],
            "best": state["extra_state"]["best"],
            "iterator": state["extra_state"]["train_iterator"]["iterations_in_epoch"],
        }
    log = [without_times(entry) for entry in read_lines(folder / "log.jsonl")]
    return states, log


def without_times(entry):
    return {key: x for key, x in entry.items() if re.sub("^(train|valid)_", "", key) not in TIMES}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return one == other


def difference(expected, found):
    """Describes the first difference of two final states; empty if there is none."""
    for name, state in expected[0].items():
        for key, value in state.items():
            if not same(value, found[0][name][key]):
                return f"{name}: {key} differs"
    for one, other in zip(expected[1], found[1], strict=False):
        if one != other:
            return f"log: {one} became {other}"
    if len(expected[1]) != len(found[1]):
        return f"log: {len(expected[1])} entries became {len(found[1])}"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=30, help="number of runs per case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folders of runs with differences")
    args = parser.parse_args()
    random.seed(args.seed)
    torch.set_num_threads(1)
    synthetic_lm.SEQUENCES |= SEQUENCES
    counts, bad = collections.Counter(), []
    with tempfile.TemporaryDirectory() as scratch:
        for case, words in CASES.items():
            words = ["roper/search_mini", "rope", *COMMON.split(), *words.split()]
            whole = Path(scratch) / case / "whole"
            code, output = run([*words, "--results", str(whole)])
            assert code == 0, output
            expected = final_state(run_folder(whole))
            for number in range(args.runs):
                results = Path(scratch) / case / str(number)
                history, code = [], None
                while code != 0:
                    plan = {}
                    kind = random.choice(["training", "training", "training", "runner", "time"])
                    victim = random.choice(["runner", "training", "both"])
                    if len(history) >= KILLS:
                        kind = "end"
                    if kind == "training":
                        plan["training"] = (random.randint(1, 200), victim)
                    elif kind == "runner":
                        plan["runner"] = random.randint(1, 30)
                    elif kind == "time":
                        plan["delay"] = random.uniform(0, 1.5)
                    code, output = run([*words, "--results", str(results)], **plan)
                    history.append((kind, plan, code))
                    was_killed = "failed with exit code -9" in output
                    if code == -signal.SIGKILL:
                        counts[f"{kind}: " + (victim if kind == "training" else "runner")] += 1
                    elif code and was_killed:
                        counts[f"{kind}: training"] += 1
                    elif code:
                        bad.append((case, number, history, output[-3000:]))
                        break
                else:
                    found = final_state(run_folder(results))
                    if message := difference(expected, found):
                        bad.append((case, number, history, message))
                counts["runs"] += 1
                if args.keep and bad and bad[-1][:2] == (case, number):
                    shutil.copytree(results, f"/tmp/kept_{case}_{number}", dirs_exist_ok=True)
                shutil.rmtree(results)
                print(case, json.dumps(counts), f"{len(bad)} bad", flush=True)
    for one in bad:
        print(*one, sep="\n  ")
    kills = sum(count for name, count in counts.items() if name != "runs")
    print(f"{kills} kills in {counts['runs']} runs: {len(bad)} did not end like an uninterrupted one")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
