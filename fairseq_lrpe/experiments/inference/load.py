"""Loads a trained model and its task."""

from pathlib import Path

import torch
from fairseq import checkpoint_utils

import fairseq_lrpe.models  # noqa: F401  (registers the architectures)


def load_model(checkpoint: Path, cpu: bool, **overrides: str) -> tuple:
    """Returns (model in evaluation mode, task) of a checkpoint; ``overrides`` replace its settings."""
    [model], _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides=overrides or None
    )
    model.eval()
    if torch.cuda.is_available() and not cpu:
        model.cuda()
    return model, task
