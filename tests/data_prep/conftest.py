import hashlib
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.tiny import REPOSITORY, preprocess, write_byte_pairs

# data_prep is not installed; local_server and small_corpora are in this folder.
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).parent), str(Path(__file__).parent / "corpora")]


@pytest.fixture(scope="session")
def published():
    """Returns the folder of published data, LRPE_DATA; a folder that does not exist is an error."""
    if not (folder := os.environ.get("LRPE_DATA")):
        pytest.skip("LRPE_DATA is not set")  # the published data is not part of the repository
    return Path(folder).resolve(strict=True)


@pytest.fixture
def tiny_bpe(tmp_path, monkeypatch):
    """Returns a folder with a tiny GPT-2 BPE that is accepted as the published one."""
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
def in_process(monkeypatch):
    """Runs fairseq-preprocess in this process because starting it takes seconds."""
    import data_prep.preprocess  # noqa: F401  its fairseq-preprocess reads text in its own way
    from data_prep import binarize

    def run_command(command, log):
        assert command[:3] == ["python", "-m", "data_prep.preprocess"]
        preprocess(*command[3:])

    monkeypatch.setattr(binarize, "run_command", run_command)


@pytest.fixture
def publish(monkeypatch):
    """Returns ``publish(facts, content)``, which serves a file and changes its facts in sources.yaml.

    The attribute ``requests`` lists the downloads.
    """
    from local_server import Server

    with Server() as server:

        def publish(facts, content):
            kind = f"file{len(server.files)}"
            server.files[kind] = content
            values = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for key, value in {**values, "mirrors": [server.url("missing"), server.url(kind)]}.items():
                monkeypatch.setitem(facts, key, value)

        publish.requests = server.requests
        yield publish


@pytest.fixture
def interrupt(monkeypatch):
    """Returns ``interrupt(object, name)``, a context in which Ctrl-C interrupts a function of an object."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    @contextmanager
    def interrupt(target, name):
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_info:
            patch.setattr(target, name, stop)
            yield
        assert exit_info.value.code == 130

    return interrupt


@pytest.fixture
def datasets_package(monkeypatch):
    """Returns ``install(texts)``, which installs a package ``datasets`` with one dataset of these texts."""
    from data_prep import text_corpus

    class Rows(list):
        def __getitem__(self, span):
            return {"text": list.__getitem__(self, span)}

    def install(texts):
        package = SimpleNamespace(load_dataset=lambda *_, revision, split: Rows(texts))
        monkeypatch.setitem(sys.modules, "datasets", package)

    monkeypatch.setattr(text_corpus, "BATCH", 7)
    return install
