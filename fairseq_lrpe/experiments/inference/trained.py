"""Loads a trained model of any family; see :func:`load_model`."""

from pathlib import Path

from fairseq_lrpe.experiments.inference.classify import ImageClassifier, SentenceClassifier, TextClassifier
from fairseq_lrpe.experiments.inference.generate import QuestionGenerator, Translator
from fairseq_lrpe.experiments.inference.language_model import (
    LanguageModel,
    MaskedLanguageModel,
    SyntheticLanguageModel,
)
from fairseq_lrpe.experiments.inference.load import Found, TrainedModel, data_folder, find, load_checkpoint

MODELS = {
    "language_modeling": LanguageModel,
    "memory_lm": LanguageModel,
    "synthetic_lm": SyntheticLanguageModel,
    "masked_lm": MaskedLanguageModel,
    "translation": Translator,
    "question_generation": QuestionGenerator,
    "classification": TextClassifier,
    "sentence_prediction": SentenceClassifier,
    "image_classification": ImageClassifier,
}
"""{fairseq task: class of its trained models}"""


def load_model(
    run_or_checkpoint: str | Path, *, data: str | Path | None = None, cpu: bool = False
) -> TrainedModel:
    """Loads a trained model for inference, with its dictionary and tokenizer.

    Args:
        run_or_checkpoint: folder of a run, whose evaluated checkpoint is loaded, or a checkpoint file.
        data: data folder with the dictionary and tokenizer (default: the one that it was trained on).
        cpu: whether to use the CPU if there is a GPU.

    Returns:
        The model, which has the methods of its family

        - language models: ``sample(prompt, length)`` and ``stream(prompt, length)``
        - masked language models: ``fill_mask(text, top_k)``
        - translation: ``translate(texts)``
        - question generation: ``ask(context, answer)``
        - classifiers, fine-tuned models and vision transformers: ``classify(texts or images)``

        ``model`` is the fairseq model in evaluation mode, and ``task`` the fairseq task.

    Raises:
        UserError: if there is no readable checkpoint of a supported task, or its data folder is missing.
    """
    return build(find(Path(run_or_checkpoint).absolute(), MODELS), data, cpu)


def build(found: Found, data: Path | None = None, cpu: bool = False) -> TrainedModel:
    """Loads the model of a checkpoint that :func:`find` returned."""
    folder = data_folder(found, data)
    overrides = {} if folder is None else {"data": str(folder)}
    return MODELS[found.task](*load_checkpoint(found.checkpoint, cpu, **overrides), folder)
