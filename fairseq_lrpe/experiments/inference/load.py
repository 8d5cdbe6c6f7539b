"""Loading of trained models of every family for inference; see :func:`load_model`."""

import logging
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import torch
from fairseq import checkpoint_utils, utils

import fairseq_lrpe.models  # noqa: F401  (registers the architectures)
from fairseq_lrpe.attention import DeltaAttention
from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.encodings.delta_rules import check_norms
from fairseq_lrpe.encodings.rotation import scale_rotations
from fairseq_lrpe.experiments.execution.run_extension import check_extension
from fairseq_lrpe.experiments.execution.run_files import evaluated_checkpoint, read_settings
from fairseq_lrpe.fairseq_ext.architecture import check_registered
from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint
from fairseq_lrpe.ops.rope_scaling import RopeScaling
from fairseq_lrpe.utils.errors import UserError, user_errors
from fairseq_lrpe.utils.files import REPOSITORY, display_path

MODELS = {
    "language_modeling": "language_model.LanguageModel",
    "memory_lm": "language_model.LanguageModel",
    "synthetic_lm": "language_model.SyntheticLanguageModel",
    "masked_lm": "language_model.MaskedLanguageModel",
    "translation": "generate.Translator",
    "question_generation": "generate.QuestionGenerator",
    "classification": "classify.TextClassifier",
    "sentence_prediction": "classify.SentenceClassifier",
    "image_classification": "classify.ImageClassifier",
}
"""{fairseq task: module and class of its trained models}; the modules are imported on demand."""
EXAMPLE = "such as results/lm/mini/linear_rope/seed-1, or a checkpoint file"


class TrainedModel:
    """Base class of trained models for inference.

    Attributes:
        model: the fairseq model in evaluation mode, a ``torch.nn.Module``.
        task: the fairseq task, which has the dictionaries.
        data: the data folder of the task, or None if it has none.
    """

    def __init__(self, model, task, data: Path | None):
        self.model = model
        self.task = task
        self.data = data

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def load_model(
    run_or_checkpoint: str | Path,
    *,
    data: str | Path | None = None,
    cpu: bool = False,
    rope_scaling: str | None = None,
) -> TrainedModel:
    """Returns a trained model for inference, with its dictionary and tokenizer.

    Args:
        run_or_checkpoint: folder of a run, whose evaluated checkpoint is loaded, or a checkpoint file.
        data: data folder with the dictionary and tokenizer (default: that of the training).
        cpu: whether to use the CPU even if there is a GPU.
        rope_scaling: how to scale the angles of rotations for longer sequences, as TYPE:FACTOR, such as
            "yarn:4"; see :class:`fairseq_lrpe.ops.rope_scaling.RopeScaling`. The length in training is the
            number of tokens in a block of a language model, with its memory, or masked language model; for
            other models, append it, as in "yarn:4:512".

    Returns:
        The model, which has the methods of its family

        - language models: ``sample(prompt, length)``, ``stream(prompt, length)`` and ``score(texts)``
        - masked language models: ``fill_mask(text, top_k)``
        - translation: ``translate(texts)``
        - question generation: ``ask(context, answer)``
        - classifiers, fine-tuned models and vision transformers: ``classify(texts or images)``

    Raises:
        ValueError: if there is no readable checkpoint of a supported task, its data folder is missing, or
            ``rope_scaling`` is invalid or not supported by the model.
    """
    checkpoint, settings = find(Path(run_or_checkpoint).absolute(), MODELS)
    scaling = None
    if rope_scaling:
        with user_errors():
            scaling = RopeScaling.parse(rope_scaling, original_length=_trained_length(settings))
    if data is None and settings.get("data"):
        data = REPOSITORY / utils.split_paths(settings["data"])[0]
    folder = None if data is None else Path(data).absolute()
    if folder:
        _check_data(folder, checkpoint)
    model, task = _load_with_fairseq(checkpoint, folder)
    if scaling:
        _scale_rotations(model, scaling)
    if torch.cuda.is_available() and not cpu:
        model.cuda()
    module, name = MODELS[settings["_name"]].split(".")
    return getattr(import_module(f"{__package__}.{module}"), name)(model.eval(), task, folder)


def _trained_length(settings):
    """Returns the number of tokens of a block in training and its memory, or None without blocks."""
    length = settings.get("tokens_per_sample")
    if not length:
        return length
    return length + (settings.get("memory_length") or 0)


def _check_data(folder, checkpoint):
    if not folder.is_dir():
        command = prepare_command(display_path(folder))
        remedy = f"restore it, or run `{command}` again" if command else "restore it"
        raise UserError(f"the data folder {folder} of {checkpoint} does not exist: {remedy}")
    layout.check_dictionaries(folder)


def _load_with_fairseq(checkpoint, folder):
    """Returns the model of a checkpoint and its task."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.INFO))  # fairseq logs the sizes of dictionaries
    try:
        overrides = {"data": str(folder)} if folder else None
        [model], _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], overrides)
        return model, task
    finally:
        logging.disable(disabled)


def _scale_rotations(model, scaling):
    if any(getattr(module, "randomized_positions", 0) for module in model.modules()):
        wrong = "does not support models trained with --randomized-positions"
        raise UserError(f"rope_scaling {wrong}: omit it")
    with user_errors():
        scale_rotations(model, scaling)
        for module in model.modules():
            if isinstance(module, DeltaAttention):
                check_norms(module.encoding)


def find(path: Path, tasks: Iterable[str]) -> tuple[Path, dict]:
    """Returns the path of a checkpoint and the settings of its task.

    Args:
        path: folder of a run, whose evaluated checkpoint is returned, or a checkpoint file.
        tasks: the supported tasks.

    Raises:
        UserError: if there is no readable checkpoint of a supported task, or its method is not registered.
    """
    checkpoint = path
    if not path.exists():
        raise UserError(f"{path} does not exist: pass a run's folder, {EXAMPLE}")
    if path.is_dir():
        run = read_settings(path, ["config.evaluate.checkpoint"])
        if not run:
            raise UserError(f"{path} is a folder without a run: pass a run's folder, {EXAMPLE}")
        check_extension(run)
        checkpoint = evaluated_checkpoint(path, run["config"]["evaluate"]["checkpoint"])
    stored = read_checkpoint(checkpoint, "train it with `lrpe train`")["cfg"]
    check_registered(checkpoint, stored["model"])
    settings = stored["task"]
    task = settings.get("_name")
    if task not in tasks:
        expected = f"a model of {' or '.join(tasks)}"
        raise UserError(f"{checkpoint} was trained on the task {task}: expected {expected}")
    return checkpoint, settings
