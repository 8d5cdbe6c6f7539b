"""lrpe env: what it prints here, without other packages, and without torch."""

import platform

import pytest
import torch
from support.tiny import BIN, run_command, run_here, succeeded
from test_dependencies import files, packages, run_without

import fairseq_lrpe
from fairseq_lrpe.cli import main

PROGRAM = "from fairseq_lrpe.cli import main; main(['env'])"


def lines(output):
    return dict(line.split(": ", 1) for line in output.splitlines())


def test_versions_and_devices(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    shown = lines(succeeded(run_here(main, "env")).stdout)
    assert shown["fairseq_lrpe"].startswith(fairseq_lrpe.__version__)
    assert shown["Python"].startswith(platform.python_version()) and platform.system() in shown["OS"]
    assert shown["torch"].startswith(torch.__version__) and shown["threads"] == str(torch.get_num_threads())
    assert (shown["GPUs"] == "none") == (torch.cuda.device_count() == 0)
    assert {"backend fla", "backend triton", "MPS"} <= set(shown)
    assert "TRITON_INTERPRET=1" in shown["variables"]


@pytest.mark.parametrize("kept", [{"torch"}, set()], ids=["torch only", "nothing"])
def test_missing_packages(kept):
    missing = packages(files("fairseq_lrpe", "data_prep")) - kept
    shown = lines(succeeded(run_without(missing, PROGRAM)).stdout)
    if kept:
        assert shown["torch"].startswith(torch.__version__)
    else:
        assert shown["torch"] == "cannot be imported (torch is not installed)"
        assert "threads" not in shown and "packages" in shown


def test_packages_without_metadata_are_listed_as_missing():
    program = f"import sys; sys.path[:] = [p for p in sys.path if 'site-' not in p]; {PROGRAM}"
    shown = lines(succeeded(run_command(BIN / "python", "-c", program)).stdout)
    assert "numpy" in shown["not installed"] and "cannot be imported" in shown["torch"]


def test_other_versions_of_python(monkeypatch):
    monkeypatch.setattr("sys.version_info", (3, 10))
    assert "lrpe needs Python 3.11" in run_here(main, "methods").stderr
    assert lines(succeeded(run_here(main, "env")).stdout)["torch"]
