"""The notebook docs/compare_encodings.ipynb: its stored outputs, and a quick run."""

import re
import shutil

import nbformat
import pytest
from nbclient import NotebookClient
from support.tiny import REPOSITORY

PATH = REPOSITORY / "docs/compare_encodings.ipynb"
NO_LIMIT = 10**6  # seconds until the kernel has started
MAX_BYTES = 600_000


@pytest.fixture
def notebook():
    return nbformat.read(PATH, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def check(notebook):
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"display_data", "execute_result", "stream"}
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    assert len([output for output in outputs if "image/png" in output.get("data", {})]) == 5


def test_stored_outputs(notebook):
    nbformat.validate(notebook)
    check(notebook)
    text = PATH.read_text()
    assert len(code_cells(notebook)) <= 12 and len(text) < MAX_BYTES
    assert not re.search(r"/(home|root|Users|tmp|work)/|site-packages", text)


@pytest.mark.slow
def test_quick_run(notebook, monkeypatch, tmp_path):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    [constants] = [cell for cell in code_cells(notebook) if "UPDATES = " in cell.source]
    constants.source += "\nUPDATES, LENGTH, LONGEST, WIDTH, HEADS, LAYERS, REACH = 2, 8, 32, 8, 2, 1, 4"
    shutil.copytree(REPOSITORY / "docs/results", tmp_path / "results")
    folder = {"metadata": {"path": tmp_path}}
    NotebookClient(notebook, timeout=None, startup_timeout=NO_LIMIT, resources=folder).execute()
    check(notebook)
