"""Runs the tests of sharded models in a process of their own."""

import re
from pathlib import Path

import pytest
from support.tiny import BIN, run_command

CASES = Path(__file__).with_name("sharded_cases.py")


@pytest.mark.slow
def test_sharded_models():
    words = ["-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", CASES]
    done = run_command(BIN / "python", *words, PYTEST_ADDOPTS="")
    failed = re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
    assert done.returncode == 0, "\n".join([*failed, done.stdout, done.stderr])
    assert " passed" in done.stdout
