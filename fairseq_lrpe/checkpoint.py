"""Reading fairseq's checkpoints; importing this lets torch's safe loading take all of them.

What it would refuse in them is harmless: metrics that are numpy's numbers, and the Namespace of models that
are configured by flags alone.
"""

import argparse
import zipfile
from pathlib import Path

import numpy as np
import torch

torch.serialization.add_safe_globals(
    [argparse.Namespace, np.core.multiarray.scalar, np.dtype, type(np.dtype(np.float64))]
)


def read_checkpoint(path: Path, remedy: str) -> dict:
    """Returns fairseq's checkpoint: tensors mapped from the file, ``cfg.model`` and ``cfg.task`` as dicts.

    Raises:
        ValueError: there is none, and ``remedy`` says what makes one; or it cannot be read.
    """
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"the checkpoint {path} {found}: {remedy}")
    try:
        state = _load(path)
        if not isinstance(state, dict):
            raise ValueError(f"it holds a {type(state).__name__}")
        if state.get("args"):  # fairseq's older form
            args = vars(state["args"])
            state["cfg"] = {"model": {"_name": args["arch"], **args}, "task": {"_name": args["task"], **args}}
        missing = [part for part in ("cfg", "model", "extra_state") if not isinstance(state.get(part), dict)]
        if "optimizer_history" not in state and "best_loss" not in state:
            missing.append("optimizer_history")
        if missing:
            raise ValueError(f"it has no {', no '.join(missing)}")
        for part in ("model", "task"):
            settings = state["cfg"][part]
            if isinstance(settings, argparse.Namespace):  # of fairseq's own models
                settings = {"_name": getattr(settings, "arch", None), **vars(settings)}
            state["cfg"][part] = dict(settings)
    except Exception as error:  # whatever torch says of what it cannot read
        reason = next(iter(str(error).splitlines()), error)
        raise ValueError(f"{path} is no checkpoint of fairseq that can be read ({reason})") from None
    return state


def _load(path):
    # Files of torch before 1.6 are no zip, and are read whole.
    return torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=True)


def newest_whole(folder: Path) -> Path | None:
    """Returns the checkpoint of most updates in ``folder`` that can be read, or None where there is none.

    A training that is killed while fairseq copies a checkpoint leaves a file that is cut off.
    """
    updates = {}
    for path in sorted(folder.glob("checkpoint*.pt")):
        try:
            updates[path] = int(_load(path)["optimizer_history"][-1]["num_updates"])
        except Exception:  # whatever torch says of what it cannot read
            continue
    return max(updates, key=updates.get, default=None)
