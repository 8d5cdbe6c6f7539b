"""scripts/gpu_check.sh, with programs that only record their arguments."""

import os
import shutil
import subprocess

import pytest
from support.tiny import REPOSITORY


@pytest.fixture
def gpu_check(tmp_path):
    """Returns ``gpu_check(*arguments)``, which runs a copy of the script in the folder "here".

    Programs record their arguments, and the variables by which pip finds wheels.
    With ``interrupts=True``, the first Python program sends SIGINT to all processes, as Ctrl-C does, and
    handles it itself.
    """
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "root/scripts")
    (tmp_path / "root/scripts/setup_env.sh").write_text("")
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/.fairseq-lrpe-ready").write_text("ready")
    for name in ("lrpe", "nvidia-smi", "python"):
        (tmp_path / "env/bin" / name).write_text(
            f'#!/bin/sh\necho {name} "$@" $PIP_NO_INDEX $PIP_FIND_LINKS\n'
        )
        (tmp_path / "env/bin" / name).chmod(0o755)
    (tmp_path / "here").mkdir()

    outside = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}

    def run(*arguments, interrupts=False):
        if interrupts:
            (tmp_path / "env/bin/python").write_text("#!/bin/sh\ntrap 'exit 1' INT\nkill -INT 0\nexit 1\n")
        return subprocess.run(
            ["bash", tmp_path / "root/scripts/gpu_check.sh", *arguments],
            cwd=tmp_path / "here",
            env={**outside, "VIRTUAL_ENV": str(tmp_path / "env")},
            capture_output=True,
            text=True,
            start_new_session=True,
        )

    return run


@pytest.mark.parametrize(
    "arguments, code", [(["--help"], 0), (["-h"], 0), (["--gpu"], 1), (["a", "b"], 1), (["--wheels", "b"], 1)]
)
def test_usage(arguments, code, gpu_check, tmp_path):
    done = gpu_check(*arguments)
    assert done.stdout.startswith("usage: bash scripts/gpu_check.sh [--dry-run]") and done.returncode == code
    assert not list((tmp_path / "here").iterdir()) and not (tmp_path / "root/results").exists()


@pytest.mark.parametrize("arguments, folder", [
    ([], "root/results/gpu_check"),
    (["my logs"], "here/my logs"),
    (["{}/logs"], "logs"),
])  # fmt: skip
def test_folder(arguments, folder, gpu_check, tmp_path):
    arguments = [argument.format(tmp_path) for argument in arguments]
    done = gpu_check(*arguments)
    assert done.returncode == 0, done.stderr
    logs = tmp_path / folder
    assert "--length 4096 --batch-size 1 -- --fp16\n" in (logs / "train-fp16-4096.log").read_text()
    assert f"--results {logs}/results seeds=[1]" in (logs / "roper.log").read_text()
    assert done.stdout.endswith("all steps are finished\n")
    assert "roper: finished before" in gpu_check(*arguments).stdout


def steps(done):
    """Returns {step: its command}, in order."""
    lines = (line.partition(": ") for line in done.stdout.splitlines())
    return {name: command for name, _, command in lines if " " not in name}


def test_dry_run(gpu_check, tmp_path):
    done = gpu_check("--dry-run", "logs")
    assert done.returncode == 0 and not list((tmp_path / "here").iterdir())
    *start, last = steps(done)
    assert start[:3] == ["machine", "tests", "launches"] and last == "tmlr_table5"
    assert start.index("lra-text") < start.index("lra-image") < start.index("roper-addition")
    assert start.index("roper-index") < start.index("iclr_table2")
    assert not any("updates=2" in command for command in steps(done).values())


def test_on_a_cpu_trainings_have_two_updates(gpu_check, tmp_path):
    assert gpu_check("--cpu", "logs").returncode == 0
    logs = {path.stem: path.read_text() for path in (tmp_path / "here/logs").glob("*.log")}
    trainings = [name for name in logs if name.startswith(("lra", "roper", "iclr", "tmlr"))]
    assert len(trainings) == 8
    for name, log in logs.items():
        lines = log.splitlines()
        assert len(lines) == (4 if "lra" in name else 2 if "roper-" in name else 1)
        assert all(("updates=2 --cpu" in line) == (name in trainings) for line in lines)
        assert name == "tests" or "--cpu" in log


def test_wheels(gpu_check, tmp_path):
    (tmp_path / "here/my wheels").mkdir()
    assert gpu_check("--wheels", "my wheels", "logs").returncode == 0
    assert f"1 {tmp_path}/here/my wheels\n" in (tmp_path / "here/logs/generate.log").read_text()


@pytest.fixture
def time_over(tmp_path):
    """Returns ``time_over(words)``: then the time of a call is over in commands that contain the words."""
    program = tmp_path / "env/bin/timeout"

    def replace(words):
        words = f'case "$*" in *"{words}"*) exit 124 ;; esac'
        program.write_text(f'#!/bin/sh\nshift 4\n{words}\nexec "$@"\n')
        program.chmod(0o755)

    return replace


def test_a_call_ends_after_its_limit_and_the_next_one_continues(gpu_check, time_over, tmp_path):
    logs = tmp_path / "here/logs"
    time_over("lrpe train lra/text")
    done = gpu_check("logs")
    assert done.returncode == 3 and "lra-text: nine minutes are over" in done.stdout
    assert (logs / "generate.log").exists() and (logs / "bring_back/generate.log").exists()
    assert not (logs / "lra-listops.log").exists()
    time_over("nothing")
    again = gpu_check("logs")
    assert again.returncode == 0 and "generate: finished before" in again.stdout
    assert (logs / "lra-text.log").read_text().count("lrpe train lra/text") == 4


def test_a_benchmark_that_takes_longer_than_a_call_does_not_stop_the_others(gpu_check, time_over, tmp_path):
    time_over("lrpe bench launches")
    assert gpu_check("logs").returncode == 3
    again = gpu_check("logs")
    assert again.returncode == 1 and "failed: launches;" in again.stderr
    assert (tmp_path / "here/logs/tmlr_table5.log").exists()


def test_what_is_taken_away_is_small_and_has_no_checkpoints(gpu_check, tmp_path):
    results = tmp_path / "here/logs/results/run"
    (results / "checkpoints").mkdir(parents=True)
    (results / "evaluation.json").write_text("{}")
    (results / "checkpoints/model.bin").write_text("weights")
    (results / "last.pt").write_text("weights")
    (results / "large.log").write_bytes(b"x" * (16 << 20))
    assert gpu_check("logs").returncode == 0
    copied = tmp_path / "here/logs/bring_back"
    found = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()}
    assert {"results/run/evaluation.json", "generate.log"} <= found
    assert not {"results/run/checkpoints/model.bin", "results/run/last.pt", "results/run/large.log"} & found
    assert gpu_check("logs").returncode == 0
    assert not (copied / "bring_back").exists()


def test_interrupt(gpu_check, tmp_path):
    assert gpu_check("logs", interrupts=True).returncode == 130
    assert {path.name for path in (tmp_path / "here/logs").iterdir()} <= {"machine.log", "tests.log.part"}
