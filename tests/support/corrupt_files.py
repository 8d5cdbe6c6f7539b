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
    return lambda folder: (folder / name).unlink()


def replace_labels(values):
    return lambda folder: np.save(folder / "train.label.npy", np.array(values))
