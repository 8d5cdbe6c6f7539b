"""Tests of both generated corpora: reproducibility, repeated calls and interruptions."""

import pytest
from small_corpora import SPLITS, contents, prepare

from data_prep import labeled

SMALL = {
    "listops": ["--depth", 4, "--length", 20, 100, "--rows", 800, 100, 100],
    "pathfinder": ["--window", 16, "--contour-length", 4, "--rows", 24, 8, 8],
}


@pytest.mark.parametrize("name", SMALL)
def test_bytes_depend_on_the_seed_but_not_on_the_number_of_processes(name, tmp_path):
    def prepared(folder, workers, seed):
        options = [*SMALL[name], "--workers", workers, "--seed", seed]
        prepare(name, ["--out", tmp_path / folder, *options])
        return contents(tmp_path / folder / "bin")

    one, other = prepared("one process", 1, 1), prepared("other seed", 1, 2)
    assert one == prepared("three processes", 3, 1)
    for split in SPLITS:
        assert one[f"{split}.input0.bin"] != other[f"{split}.input0.bin"]


def test_an_interruption_leaves_nothing(tmp_path, interrupt):
    with interrupt(labeled, "write_dictionary"):
        prepare("listops", ["--out", tmp_path / "out", *SMALL["listops"]])
    assert not list(tmp_path.iterdir())
