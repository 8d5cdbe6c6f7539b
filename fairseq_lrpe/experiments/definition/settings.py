"""The settings that all experiments have, as pydantic models, and the validation of files by such models."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from omegaconf import DictConfig
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
)

from fairseq_lrpe.utils.errors import UserError


class Model(BaseModel):
    """Base class for the contents of YAML files; rejects unknown keys and values of the wrong type."""

    model_config = ConfigDict(strict=True, extra="forbid")


ModelType = TypeVar("ModelType", bound=BaseModel)
MESSAGES = {"extra_forbidden": "unknown key", "missing": "this key is missing"}
"""{type of an error in pydantic: message for the user}"""


def validate(model: type[ModelType], content: object) -> ModelType:
    """Returns the content of a file as an instance of ``model``.

    Raises:
        UserError: if the content is invalid; the message describes one error, an unknown key if there is one.
    """
    try:
        return model.model_validate(content)
    except ValidationError as errors:
        first, *_ = error_texts(errors)
        raise UserError(first) from None


def error_texts(errors: ValidationError) -> list[str]:
    """Returns a text for each error, such as "train.lr: unknown key"; those about unknown keys are first."""
    details = errors.errors(include_url=False, include_input=False)
    details.sort(key=lambda error: error["type"] != "extra_forbidden")
    texts = []
    for error in details:
        location = ""
        for key in error["loc"]:
            location += f"[{key}]" if isinstance(key, int) else f".{key}"
        message = error["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]
        message = MESSAGES.get(error["type"], f"{message[0].lower()}{message[1:]}")
        texts.append(f"{location.removeprefix('.')}: {message}" if location else message)
    return texts


Values = Annotated[list[Any], Field(min_length=1)]


class Batch(Model):
    total: PositiveInt
    per_gpu: PositiveInt
    unit: Literal["sequences", "tokens"] = "sequences"


def check_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """Raises UserError if the name of a flag is written with dashes, as on a command line."""
    for name in flags:
        if "-" in name:
            raise UserError(f"{name}: names of flags have underscores: write {name.replace('-', '_')}")
    return flags


Flags = Annotated[dict[str, Any], AfterValidator(check_flags)]
"""{flag of fairseq's command with underscores: value}; true passes a flag without a value, null omits it."""
EVALUATION_FLAGS = "user_dir path task cpu distributed_world_size log_format gen_subset valid_subset".split()
"""Flags of fairseq's commands that an evaluation sets, and that YAML files therefore cannot set."""


class Evaluate(Model):
    checkpoint: str = "checkpoint_best.pt"
    flags: Flags = {}  # additional flags of fairseq's command

    @field_validator("flags")
    @classmethod
    def check_own_flags(cls, flags: dict) -> dict:
        for name in EVALUATION_FLAGS:
            if name in flags:
                raise UserError(f"{name} cannot be set, because lrpe chooses its value: omit it")
        return flags


class Evaluation(Model):
    split: str


EvaluationType = TypeVar("EvaluationType", bound=Evaluation)


class Settings(Model, Generic[EvaluationType]):
    """The keys of an experiment's YAML file; kinds with further keys extend this class and Evaluation."""

    kind: str  # name of a file in experiments/definition/kinds
    source: str = ""  # paper and table from which the settings are taken
    data: str  # folder of binarized data, relative to the repository
    batch: Batch
    train: Flags = {}
    by_method: dict[str, Flags] = {}  # {method: additional flags}
    seeds: list[int] = [1]
    evaluate: Evaluate = Evaluate()
    evaluations: dict[str, EvaluationType | None] = {}  # {name: settings}; null omits the evaluation
    grid: dict[str, Values] = {}  # {key: values}, with one run per combination
    choose: dict[str, Values] = {}  # {key: values}; the best run in the first evaluation is reported
    starts_from: str | None = None  # experiment or checkpoint that initializes the models

    @field_validator("evaluations")
    @classmethod
    def check_names(cls, evaluations: dict) -> dict:
        if "training" in evaluations:
            raise UserError("the name 'training' is reserved for the training speed: use another name")
        return evaluations


class TrainingSettings(Settings[EvaluationType]):
    updates: PositiveInt  # some kinds derive it from the data instead


def train_flags(cfg: DictConfig, method: str) -> dict[str, object]:
    """Returns {name with underscores: value} of the flags of fairseq-train that settings give a method."""
    return {**cfg.train, **cfg.by_method.get(method, {})}
