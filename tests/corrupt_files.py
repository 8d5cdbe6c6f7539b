"""Damaged copies of a prepared data folder, for tests that commands reject them."""

import shutil

import numpy as np


def corrupted_copy(folder, root, damage):
    """Copies ``folder`` into ``root``, applies ``damage`` to the copy, and returns the copy.

    If ``damage`` is None, returns the original folder.
    """
    if damage is None:
        return folder
    copy = root / "corrupted"
    shutil.copytree(folder, copy)
    damage(copy)
    return copy


def remove_file(name):
    """Returns a function that removes the file ``name`` from a folder."""
    return lambda folder: (folder / name).unlink()


def truncate_file(name):
    """Returns a function that truncates the file ``name`` of a folder to its first half."""

    def truncate(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return truncate


def replace_labels(values):
    """Returns a function that replaces the labels of a folder's training split."""
    return lambda folder: np.save(folder / "train.label.npy", np.array(values))
