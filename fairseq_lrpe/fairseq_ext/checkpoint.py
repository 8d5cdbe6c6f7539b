"""Functions that read fairseq's checkpoints.

Importing this module allows torch.load with weights_only=True to load two harmless types that checkpoints
contain: numpy scalars, which are metrics, and argparse.Namespace, which has the flags of some models.
"""

import argparse
import zipfile
from pathlib import Path

import numpy as np
import torch

from fairseq_lrpe.utils.errors import UserError


def _scalar_function(module):
    """Returns numpy's function that restores a scalar, with the ``module`` by which torch identifies it."""

    def scalar(*args):
        return np.float64(0).__reduce__()[0](*args)

    scalar.__module__ = module
    scalar.__qualname__ = scalar.__name__
    return scalar


torch.serialization.add_safe_globals([argparse.Namespace, np.dtype, type(np.dtype(np.float64))])
# numpy 2 renamed the module; checkpoints contain the name of the version that wrote them.
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    torch.serialization.add_safe_globals([_scalar_function(_module)])


def read_checkpoint(path: Path, remedy: str) -> dict:
    """Returns the content of a checkpoint of fairseq, with memory-mapped tensors.

    ``model`` and ``task`` in its ``cfg`` are dicts. ``remedy`` is the suggested fix that ends the error
    message if the file does not exist.

    Raises:
        UserError: if the file does not exist, is truncated or is not a checkpoint of fairseq.
    """
    if not path.is_file():
        problem = "is not a regular file" if path.exists() else "does not exist"
        problem = "is a folder" if path.is_dir() else problem
        raise UserError(f"the checkpoint {path} {problem}: {remedy}")
    try:
        state = _load(path)
        if not isinstance(state, dict):
            raise UserError("it contains no dictionary")
        if state.get("args"):  # fairseq's older format
            args = vars(state["args"])
            state["cfg"] = {
                "model": {"_name": args["arch"], **args},
                "task": {"_name": args["task"], **args},
            }
        missing = [part for part in ("cfg", "model", "extra_state") if not isinstance(state.get(part), dict)]
        if "optimizer_history" not in state and "best_loss" not in state:
            missing.append("optimizer_history")
        if missing:
            raise UserError(f"it has no {', no '.join(missing)}")
        for part in ("model", "task"):
            settings = state["cfg"][part]
            if isinstance(settings, argparse.Namespace):  # of fairseq's own models
                settings = {"_name": getattr(settings, "arch", None), **vars(settings)}
            state["cfg"][part] = dict(settings)
    except Exception as error:  # torch raises many types
        # torch's advice before and after the cause is to load the file unsafely.
        cause = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
        reason = cause.partition("\n")[0].partition(". ")[0]
        reason = reason or "it is incomplete"  # EOFError has no message
        raise UserError(f"{path} is not a readable checkpoint of fairseq ({reason})") from None
    return state


def _load(path):
    # Checkpoints of torch before 1.6 are not zip files and cannot be memory-mapped.
    is_zip = zipfile.is_zipfile(path)
    state = torch.load(path, map_location="cpu", mmap=is_zip, weights_only=True)
    if is_zip:
        _check_storages(path, state)
    return state


def _check_storages(path, state):
    """Raises a UserError if tensors extend beyond their storages in the file.

    A memory-mapped tensor would then contain whatever follows in the file, without an error.
    """
    with zipfile.ZipFile(path) as archive:
        written = sum(info.file_size for info in archive.infolist() if "/data/" in info.filename)
    storages = {}  # tensors can share one
    for tensor in _tensors(state):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    if written < sum(storages.values()):
        raise UserError("its storages are shorter than its tensors")


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def newest_readable(folder: Path) -> Path | None:
    """Returns the readable checkpoint with the most updates in ``folder``, or None."""
    updates = {}
    for path in sorted(filter(Path.is_file, folder.glob("checkpoint*.pt"))):  # reading a pipe would wait
        try:
            updates[path] = int(_load(path)["optimizer_history"][-1]["num_updates"])
        except Exception:  # torch raises many types
            continue
    return max(updates, key=updates.get, default=None)
