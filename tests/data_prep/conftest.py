import hashlib
import os
import sys
from pathlib import Path

import pytest
from tiny import REPOSITORY, preprocess, write_byte_pairs

sys.path[:0] = [
    str(REPOSITORY),
    str(Path(__file__).parent),
    str(Path(__file__).parent / "corpora"),
]  # data_prep is not installed; local_server and small_corpora are here


@pytest.fixture(scope="session")
def published():
    """The folder of published data that LRPE_DATA names."""
    return Path(os.environ["LRPE_DATA"])


@pytest.fixture
def tiny_bpe(tmp_path, monkeypatch):
    """A folder with tiny byte pairs, taken for the published files."""
    from data_prep import gpt2_bpe

    folder = tmp_path / "tiny_bpe"
    folder.mkdir()
    write_byte_pairs(folder)
    for name in gpt2_bpe.FILES:
        content = (folder / name).read_bytes()
        facts = {"mirrors": [], "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        monkeypatch.setitem(gpt2_bpe.FILES, name, facts)
    return folder


@pytest.fixture
def at_once(monkeypatch):
    """fairseq-preprocess in this process: its start takes seconds, and there are many."""
    from data_prep import binarize

    def run_command(command, log, show):
        assert command[:3] == ["python", "-m", "data_prep.preprocess"]
        preprocess(*command[3:])

    monkeypatch.setattr(binarize, "run_command", run_command)


@pytest.fixture
def hub_rows(tmp_path, monkeypatch):
    """A function that makes rows of texts a package ``datasets``, read seven rows at a time."""
    from data_prep import hub

    def give(texts):
        folder = tmp_path / "packages"
        folder.mkdir()
        (folder / "datasets.py").write_text(
            "class Rows(list):\n"
            "    def __getitem__(self, span):\n"
            "        return {'text': list.__getitem__(self, span)}\n"
            "def load_dataset(path, name=None, *, revision, split):\n"
            "    if path == 'gone': raise ConnectionError('no hub\\nmore')\n"
            f"    return Rows({texts!r})\n"
        )
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "datasets", raising=False)

    monkeypatch.setattr(hub, "BATCH", 7)
    return give
