"""Ways to damage a prepared data folder, which commands must then reject."""

import shutil

import numpy as np


def broken(folder, root, change):
    """Returns a copy of a folder after applying ``change``, or the folder itself if ``change`` is None."""
    if change is None:
        return folder
    copy = root / "broken"
    shutil.copytree(folder, copy)
    change(copy)
    return copy


def drop(name):
    """Returns a function that removes a file."""
    return lambda folder: (folder / name).unlink()


def cut(name):
    """Returns a function that truncates a file to its first half."""

    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return change


def relabel(values):
    """Returns a function that replaces the labels of the training set."""
    return lambda folder: np.save(folder / "train.label.npy", np.array(values))
