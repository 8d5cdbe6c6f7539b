"""scripts/gpu_check.sh, with programs that only record their arguments."""

import os
import shutil
import subprocess

import pytest
from support.tiny import REPOSITORY


@pytest.fixture
def gpu_check(tmp_path):
    """Returns ``gpu_check(*arguments)``, which runs a copy of the script in the folder "here".

    With ``interrupts=True``, the first Python program sends SIGINT to all processes, as Ctrl-C does, and
    handles it itself.
    """
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "root/scripts")
    (tmp_path / "root/scripts/setup_env.sh").write_text("")
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/.fairseq-lrpe-ready").write_text("ready")
    for name in ("lrpe", "nvidia-smi", "python"):
        (tmp_path / "env/bin" / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / "env/bin" / name).chmod(0o755)
    (tmp_path / "here").mkdir()

    def run(*arguments, interrupts=False):
        if interrupts:
            (tmp_path / "env/bin/python").write_text("#!/bin/sh\ntrap 'exit 1' INT\nkill -INT 0\nexit 1\n")
        return subprocess.run(
            ["bash", tmp_path / "root/scripts/gpu_check.sh", *arguments],
            cwd=tmp_path / "here",
            env={**os.environ, "VIRTUAL_ENV": str(tmp_path / "env")},
            capture_output=True,
            text=True,
            start_new_session=True,
        )

    return run


@pytest.mark.parametrize("arguments, code", [(["--help"], 0), (["-h"], 0), (["--cpu"], 1), (["a", "b"], 1)])
def test_usage(arguments, code, gpu_check, tmp_path):
    done = gpu_check(*arguments)
    assert done.stdout.startswith("usage: bash scripts/gpu_check.sh [FOLDER]\n") and done.returncode == code
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
    assert f"--results {logs}/results seeds=[1]\n" in (logs / "roper.log").read_text()
    assert "roper: finished before" in gpu_check(*arguments).stdout


def test_interrupt(gpu_check, tmp_path):
    assert gpu_check("logs", interrupts=True).returncode == 130
    assert {path.name for path in (tmp_path / "here/logs").iterdir()} <= {"machine.log", "tests.log.part"}
