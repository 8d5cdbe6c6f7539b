"""What tests do to a prepared folder that commands then have to refuse."""

import shutil

import numpy as np


def broken(folder, root, change):
    """A copy of a folder in which ``change`` has done something to it; the folder itself if that is None."""
    if change is None:
        return folder
    copy = root / "broken"
    shutil.copytree(folder, copy)
    change(copy)
    return copy


def drop(name):
    """Removes a file."""
    return lambda folder: (folder / name).unlink()


def cut(name):
    """Leaves the first half of a file."""

    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return change


def relabel(values):
    """Gives the training set other labels."""
    return lambda folder: np.save(folder / "train.label.npy", np.array(values))
