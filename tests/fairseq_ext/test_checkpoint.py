"""Truncated checkpoints of killed trainings."""

import os
import shutil
import zipfile

import pytest
import torch
from fairseq import checkpoint_utils
from omegaconf import DictConfig
from support.commands import assert_same_weights, load_last_checkpoint
from support.tiny import succeeded

from fairseq_lrpe.fairseq_ext.checkpoint import newest_readable, read_checkpoint

PLACES = (0.0, 0.001, 0.5, 0.999)


def cut(path, place):
    """Truncates a file to a part of its size, like a killed copy."""
    content = path.read_bytes()
    path.write_bytes(content[: int(place * len(content))])


def save(path, updates):
    torch.save({"model": {"w": torch.ones(999)}, "optimizer_history": [{"num_updates": updates}]}, path)


@pytest.mark.parametrize("place", PLACES)
def test_newest_readable(place, tmp_path):
    assert newest_readable(tmp_path) is None
    for name, updates in (("checkpoint9", 9), ("checkpoint_best", 5), ("checkpoint_last", 10)):
        save(tmp_path / f"{name}.pt", updates)
    save(tmp_path / "other.pt", 99)
    assert newest_readable(tmp_path) == tmp_path / "checkpoint_last.pt"
    cut(tmp_path / "checkpoint_last.pt", place)
    assert newest_readable(tmp_path) == tmp_path / "checkpoint9.pt"
    for path in tmp_path.glob("checkpoint*"):
        cut(path, place)
    assert newest_readable(tmp_path) is None


def test_reason_in_one_sentence(tmp_path):
    path, old = tmp_path / "checkpoint.pt", {"_use_new_zipfile_serialization": False}

    def reason():
        with pytest.raises(ValueError, match="is not a readable checkpoint of fairseq") as error:
            read_checkpoint(path, "")
        return str(error.value).removeprefix(f"{path} is not a readable checkpoint of fairseq ")

    save(path, 1)
    assert reason() == "(it has no cfg, no extra_state)"
    for place in (0.0, 0.1):
        torch.save({}, path, **old)
        cut(path, place)
        assert reason() == "(it is incomplete)"
    torch.save({"cfg": DictConfig({})}, path)
    assert "omegaconf.dictconfig.DictConfig was not an allowed global" in reason()


def shorten_storage(path, target, storage, size):
    """Copies a checkpoint; a storage, such as data/3, keeps its first bytes only."""
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as short:
        for info in whole.infolist():
            content = whole.read(info)
            short.writestr(info.filename, content[:size] if info.filename.endswith(storage) else content)


@pytest.mark.parametrize(("storage", "size"), [("/data/3", 4), ("/data/3", 0), ("/data/9", 8)])
def test_storages_that_are_too_short(storage, size, checkpoint, tmp_path):
    """A memory-mapped tensor would continue in the bytes of the next one."""
    read_checkpoint(checkpoint, "")
    shorten_storage(checkpoint, tmp_path / "short.pt", storage, size)
    with pytest.raises(ValueError, match="is not a readable checkpoint of fairseq"):
        read_checkpoint(tmp_path / "short.pt", "")
    shutil.copy(tmp_path / "short.pt", tmp_path / "checkpoint_last.pt")
    assert newest_readable(tmp_path) is None


def test_files_that_are_not_regular(tmp_path):
    os.mkfifo(tmp_path / "fifo.pt")
    (tmp_path / "device.pt").symlink_to("/dev/zero")
    for name in ("fifo.pt", "device.pt"):
        with pytest.raises(ValueError, match=f"{name} is not a regular file: remedy$"):
            read_checkpoint(tmp_path / name, "remedy")
    os.mkfifo(tmp_path / "checkpoint_last.pt")
    assert newest_readable(tmp_path) is None


UPDATES = ["--save-interval-updates", 2, "--disable-validation", "--dropout", 0.1]


@pytest.fixture(scope="module")
def four(train, tmp_path_factory):
    """A training with checkpoints of two and four updates; checkpoint_last.pt is a copy."""
    folder = tmp_path_factory.mktemp("four")
    succeeded(train("linear_lm_tmlr_type1", folder, *UPDATES, "--max-update", 4))
    assert {"checkpoint_1_2.pt", "checkpoint_1_4.pt", "checkpoint_last.pt"} <= set(_names(folder))
    return folder


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_training_continues_from_newest_readable(four, train, tmp_path):
    folder = tmp_path / "save"
    shutil.copytree(four, folder)
    cut(folder / "checkpoint_last.pt", 0.5)
    done = succeeded(train("linear_lm_tmlr_type1", folder, *UPDATES, "--max-update", 6))
    assert "checkpoint_last.pt is not a readable checkpoint of fairseq" in done.stderr
    assert f"continuing from {folder / 'checkpoint_1_4.pt'}" in done.stderr

    whole = tmp_path / "whole"
    shutil.copytree(four, whole)
    done = train("linear_lm_tmlr_type1", whole, *UPDATES, "--max-update", 6)
    assert done.returncode == 0 and "continuing" not in done.stderr
    assert_same_weights(folder, whole)
    assert load_last_checkpoint(folder)["optimizer_history"][-1]["num_updates"] == 6


def test_folder_without_readable_checkpoint(four, train, tmp_path):
    shutil.copytree(four, tmp_path / "save")
    for path in (tmp_path / "save").iterdir():
        cut(path, 0.999)
    before = _names(tmp_path / "save")
    done = train("linear_lm_tmlr_type1", tmp_path / "save", *UPDATES, "--max-update", 6)
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 1 and line.endswith("remove checkpoint_last.pt to train from scratch")
    assert _names(tmp_path / "save") == before


def test_kill_while_copying_leaves_no_truncated_checkpoint(train, monkeypatch, tmp_path):
    """fairseq writes the first file of a checkpoint atomically, and copies it to the others."""

    def killed(source, target):
        with open(source, "rb") as whole, open(target, "wb") as start:
            start.write(whole.read(999))
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfile", killed)
    with pytest.raises(KeyboardInterrupt):
        train("linear_lm_base", tmp_path, *UPDATES, "--max-update", 2)
    assert "checkpoint_1_2.pt" in _names(tmp_path) and "checkpoint_last.pt" not in _names(tmp_path)
    monkeypatch.undo()
    succeeded(train("linear_lm_base", tmp_path, *UPDATES, "--max-update", 4))
    for name in ("checkpoint_1_4.pt", "checkpoint_last.pt"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / name))
