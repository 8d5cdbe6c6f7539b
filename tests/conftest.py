import os
import signal
import sys
from contextlib import suppress
from unittest.mock import patch

import pytest
import torch
from support import tiny
from support.forks import Forks

# The import of submitit closes the streams of all log handlers. The handler of absl, which rouge-score
# imports, would then close the file to which pytest captures stderr.
with suppress(ImportError):
    import submitit  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def forks():
    """Runs the commands that tests start as forks of one server, unless they are given as ``BIN / name``."""
    if sys.platform != "linux":
        yield
        return
    forks = Forks()
    python = str(forks.bin / "python")
    with patch.object(sys, "executable", python), patch.dict(os.environ, PYTHON_EXEC=python):  # of torchrun
        yield
    forks.close()


def pytest_addoption(parser):
    parser.addoption("--encoding", metavar="NAME", help="run only the contract tests of this encoding")


def pytest_configure(config):
    # A shell ignores SIGINT in background jobs, and the commands that tests interrupt would inherit this.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if name := config.getoption("--encoding"):
        from fairseq_lrpe import extensions
        from fairseq_lrpe.encodings import ENCODINGS

        try:
            extensions.load()
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        if name not in ENCODINGS:
            raise pytest.UsageError(f"unknown encoding {name!r}: choose from {', '.join(ENCODINGS)}")


def pytest_ignore_collect(collection_path, config):
    contract = collection_path.is_dir() or collection_path.name == "test_contract.py"
    return True if config.getoption("--encoding") and not contract else None


def pytest_collection_modifyitems(config, items):
    # The jobs of SLURM wait, so that other tests run beside them.
    items.sort(key=lambda item: item.path.name != "test_slurm.py")
    if name := config.getoption("--encoding"):
        items[:] = [x for x in items if x.callspec.params["case"].encoding == name]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def set_threads():
    """Returns a function that sets the number of torch's threads, which is reset after the test."""
    number = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(number)


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    tiny.write_text(folder)
    return folder


@pytest.fixture(scope="session")
def data_bin(text_folder, tmp_path_factory):
    """Returns the binarized ``text_folder``, for the task language_modeling."""
    folder = tmp_path_factory.mktemp("data") / "bin"
    prefixes = [x for s in ("train", "valid", "test") for x in (f"--{s}pref", text_folder / f"{s}.txt")]
    tiny.preprocess("--only-source", *prefixes, "--destdir", folder)
    return folder


@pytest.fixture(scope="session")
def train(data_bin):
    """Returns ``train(arch, save_dir, *flags)``, which runs fairseq-train for a tiny language model."""

    def train(arch, save_dir, *flags, data=data_bin):
        return tiny.train_here(*tiny.train_flags(data, arch, save_dir, *flags))

    return train


@pytest.fixture(scope="session")
def checkpoint(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    tiny.succeeded(train("linear_lm_base", folder, "--max-update", 1, "--disable-validation"))
    return folder / "checkpoint_last.pt"
