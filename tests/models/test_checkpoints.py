"""A checkpoint that a kill left cut off."""

import pytest
import torch

from fairseq_lrpe.checkpoint import newest_whole

PLACES = (0.0, 0.001, 0.5, 0.999)


def cut(path, place):
    """Leaves the start of a file alone, as a copy that was killed does; at 0 an empty file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(place * len(content))])


def save(path, updates):
    torch.save({"model": {"w": torch.ones(999)}, "optimizer_history": [{"num_updates": updates}]}, path)


@pytest.mark.parametrize("place", PLACES)
def test_newest_whole(place, tmp_path):
    assert newest_whole(tmp_path) is None
    for name, updates in (("checkpoint9", 9), ("checkpoint_best", 5), ("checkpoint_last", 10)):
        save(tmp_path / f"{name}.pt", updates)
    save(tmp_path / "other.pt", 99)
    assert newest_whole(tmp_path) == tmp_path / "checkpoint_last.pt"
    cut(tmp_path / "checkpoint_last.pt", place)
    assert newest_whole(tmp_path) == tmp_path / "checkpoint9.pt"
    for path in tmp_path.glob("checkpoint*"):
        cut(path, place)
    assert newest_whole(tmp_path) is None
