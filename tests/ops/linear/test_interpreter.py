"""Runs the backends fla and triton without a GPU, in Triton's interpreter."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.tiny import BIN, run_command

pytestmark = pytest.mark.slow


@pytest.mark.skipif(
    not (find_spec("fla") and find_spec("triton")), reason="needs triton and flash-linear-attention"
)
@pytest.mark.parametrize("cases", ["interpreted_cases.py", "interpreted_triton_cases.py"])
def test_kernels_agree_with_the_definition(cases):
    path = Path(__file__).with_name(cases)
    words = ["-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", path]
    environment = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "PYTEST_ADDOPTS": ""}
    done = run_command(BIN / "python", *words, **environment)
    failed = re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
    assert done.returncode == 0, "\n".join([*failed, done.stdout, done.stderr])
