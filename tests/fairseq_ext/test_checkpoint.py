"""Truncated checkpoints of killed trainings."""

import shutil

import pytest
import torch
from fairseq import checkpoint_utils
from omegaconf import DictConfig

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


UPDATES = ["--save-interval-updates", 2, "--disable-validation", "--dropout", 0.1]


def test_kill_while_copying_leaves_no_truncated_checkpoint(train, monkeypatch, tmp_path):
    """fairseq writes the first file of a checkpoint atomically, and copies it to the others."""

    def killed(source, target):
        with open(source, "rb") as whole, open(target, "wb") as start:
            start.write(whole.read(999))
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfile", killed)
    with pytest.raises(KeyboardInterrupt):
        train("linear_lm_base", tmp_path, *UPDATES, "--max-update", 2)
    names = {path.name for path in tmp_path.iterdir()}
    assert "checkpoint_1_2.pt" in names and "checkpoint_last.pt" not in names
    monkeypatch.undo()
    assert train("linear_lm_base", tmp_path, *UPDATES, "--max-update", 4).returncode == 0
    for name in ("checkpoint_1_4.pt", "checkpoint_last.pt"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / name))
