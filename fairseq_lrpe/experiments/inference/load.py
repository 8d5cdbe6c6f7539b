"""Finds and loads the checkpoint of a run, and has the base class of the models that load_model returns."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from fairseq import checkpoint_utils, utils

import fairseq_lrpe.models  # noqa: F401  (registers the architectures)
from fairseq_lrpe.experiments.execution.run_directory import evaluated_checkpoint, read_json
from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY


class Found(NamedTuple):
    """A checkpoint file, and the settings of the task that it was trained on."""

    checkpoint: Path
    settings: dict

    @property
    def task(self) -> str:
        """Name of the fairseq task."""
        return self.settings.get("_name")


class TrainedModel:
    """Base class of trained models for inference.

    Attributes:
        model: the fairseq model in evaluation mode, a ``torch.nn.Module``.
        task: the fairseq task, which has the dictionaries.
        data: the data folder of the task, or None if it has none.
    """

    def __init__(self, model, task, data: Path | None):
        self.model, self.task, self.data = model, task, data

    @property
    def device(self) -> torch.device:
        """Device of the model's parameters."""
        return next(self.model.parameters()).device


def find(path: Path, tasks: Iterable[str], remedy: str = "train one with `lrpe train`") -> Found:
    """Returns the checkpoint of a run, as it was evaluated, or the one in a file.

    Args:
        path: folder of a run, or a checkpoint file.
        tasks: names of the tasks whose models are accepted.
        remedy: suggested fix that ends the error message if there is no checkpoint.

    Raises:
        UserError: if the folder is not that of a run, the run has no checkpoint, the file is not a
            checkpoint, or its task is not one of ``tasks``.
    """
    checkpoint = run_checkpoint(path) if path.is_dir() else path
    found = Found(checkpoint, read_checkpoint(checkpoint, remedy)["cfg"]["task"])
    if found.task not in tasks:
        expected = f"a model of {' or '.join(tasks)}"
        raise UserError(f"{checkpoint} was trained on the task {found.task}: expected {expected}")
    return found


def run_checkpoint(folder: Path) -> Path:
    """Returns the evaluated checkpoint of the run in a folder; raises a UserError if there is no run."""
    settings = read_json(folder / "run.json")
    if not settings:
        example = "such as results/lm/mini/linear_rope/seed-1, or a checkpoint file"
        raise UserError(f"{folder} is a folder without a run: pass a run's folder, {example}")
    try:
        name = settings["config"]["evaluate"]["checkpoint"]
    except (KeyError, TypeError):
        raise UserError(f"{folder / 'run.json'} is damaged: repair it, or pass a checkpoint file") from None
    checkpoint = evaluated_checkpoint(folder, name)
    if not checkpoint.is_file():
        raise UserError(
            f"the run in {folder} has no {checkpoint.relative_to(folder)}: resume it with `lrpe train`, or "
            "pass a checkpoint file"
        )
    return checkpoint


def data_folder(found: Found, data: Path | None = None) -> Path | None:
    """Returns the data folder of a model, by default the one that it was trained on.

    Raises:
        UserError: if the folder does not exist.
    """
    if data is None and not found.settings.get("data"):
        return None
    folder = REPOSITORY / utils.split_paths(found.settings["data"])[0] if data is None else Path(data)
    if not folder.is_dir():
        raise UserError(
            f"the data folder {folder} of {found.checkpoint} does not exist: pass data=FOLDER with a folder "
            "that has the same dictionary"
        )
    return folder.absolute()


def load_checkpoint(checkpoint: Path, cpu: bool, **overrides: str) -> tuple:
    """Returns (model in evaluation mode, task) of a checkpoint; ``overrides`` replace its settings.

    Raises:
        UserError: if the model cannot be built with its settings and data.
    """
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.INFO))  # fairseq logs the sizes of dictionaries
    try:
        [model], _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], arg_overrides=overrides or None
        )
    except SystemExit as error:  # of a task or model, whose message starts with the plugin's name
        raise UserError(str(error.code).removeprefix("fairseq_lrpe: ")) from None
    finally:
        logging.disable(disabled)
    model.eval()
    if torch.cuda.is_available() and not cpu:
        model.cuda()
    return model, task
