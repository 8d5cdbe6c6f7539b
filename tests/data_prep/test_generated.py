"""Tests of both generated corpora: reproducibility, repeated calls and interruptions."""

import pytest
from small_corpora import SPLITS, contents, prepare

from data_prep import labelled

SMALL = {
    "listops": ["--depth", 4, "--length", 20, 100, "--rows", 80, 10, 10],
    "pathfinder": ["--window", 16, "--contour-length", 4, "--rows", 8, 2, 2],
}


# Files that do not depend on the seed. All Pathfinder images have the same size, and their labels alternate.
METADATA = {"dict.txt", "about.json"}
FIXED = {f"{split}.{file}" for split in SPLITS for file in ("input0.idx", "label.npy")}


@pytest.mark.parametrize(
    ("name", "rows", "same"),
    [("listops", (800, 100, 100), METADATA), ("pathfinder", (24, 8, 8), METADATA | FIXED)],
)
def test_bytes_depend_on_the_seed_but_not_on_the_number_of_processes(name, rows, same, tmp_path):
    def prepared(folder, workers, seed):
        options = [*SMALL[name], "--rows", *rows, "--workers", workers, "--seed", seed]
        prepare(name, ["--out", tmp_path / folder, *options])
        return contents(tmp_path / folder / "bin")

    one = prepared("one process", 1, 1)
    assert one == prepared("three processes", 3, 1) == prepared("three processes again", 3, 1)
    other = prepared("other seed", 1, 2)
    assert {file for file, content in one.items() if other[file] == content} == same


@pytest.mark.parametrize("name", SMALL)
def test_an_interruption_leaves_nothing(name, tmp_path, interrupt):
    with interrupt(labelled, "write_dictionary"):
        prepare(name, ["--out", tmp_path / "out", *SMALL[name]])
    assert not list(tmp_path.iterdir())
