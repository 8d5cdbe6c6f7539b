"""The types of the values in a run's files: run.json, evaluation.json and log.jsonl.

Files may contain other keys, and may lack keys, because earlier versions did not write all of them. Code that
needs a key requests it; see ``run_files.read_settings``.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator

from fairseq_lrpe.experiments.definition.kinds import KINDS
from fairseq_lrpe.methods import ATTENTIONS
from fairseq_lrpe.utils.errors import UserError

LARGEST = 1e300
"""Largest finite number that a file may contain, so that sums over seeds are finite, too."""
MAX_COUNT = 10**15
"""Largest number of updates, tokens or bytes that a file may contain; plots compute with 64 bits."""


def check_number(value: float) -> float:
    """Returns ``value`` if it is NaN, ∞ or a finite number of at most ``LARGEST`` in magnitude.

    Raises:
        UserError: for other numbers, which no training measures.
    """
    if value == -math.inf or LARGEST < abs(value) < math.inf:
        raise UserError(f"expected a number of at most {LARGEST:g}, not {value:g}")
    return value


def check_kind(name: str) -> str:
    if name not in KINDS:
        raise UserError(f"unknown kind {name!r}: expected one of {', '.join(KINDS)}")
    return name


Number = Annotated[float, AfterValidator(check_number)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
PositiveCount = Annotated[int, Field(ge=1, le=MAX_COUNT)]
PathText = Annotated[str, Field(pattern=r"^[^\x00]*$")]
LineText = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""Text without control characters, so that it can be shown on a terminal."""
FileName = Annotated[str, Field(pattern=r"^[^\x00]+$")]


class Content(BaseModel):
    """Base class of models for the contents of a run's files; further keys are allowed."""

    model_config = ConfigDict(strict=True, extra="allow")


class EvaluateConfig(Content):
    checkpoint: FileName = "checkpoint_best.pt"
    flags: dict[str, Any] = {}


class Config(Content):
    """The settings of an experiment in run.json whose types are checked."""

    data: PathText = ""
    train: dict[str, Any] = {}
    by_method: dict[str, dict[str, Any]] = {}
    evaluate: EvaluateConfig = EvaluateConfig()
    choose: dict[str, list[Any]] = {}
    task: PathText = ""
    starts_from: str | None = None
    updates: Count | None = None
    epochs: PositiveCount | None = None
    rounds: PositiveCount | None = None


class Processor(Content):
    name: str
    instructions: str = ""  # missing in runs of version 1.0
    threads: PositiveCount


class Git(Content):
    revision: str | None = None
    dirty: bool | None = None


class InitialCheckpoint(Content):
    path: str | None
    sha256: str


class UsedExtension(Content):
    source: LineText
    code: str | None
    flags: dict[str, Any]


class Extended(Content):
    updates: Count


KindName = Annotated[str, AfterValidator(check_kind)]
Attention = Literal[tuple(ATTENTIONS)]
Versions = dict[str, str | None]


class Settings(Content):
    """The content of run.json."""

    experiment: LineText = ""
    attention: Attention = "linear"
    method: LineText = ""
    seed: Count = 0
    changes: dict[str, str] = {}
    kind: KindName = "lm"
    updates: Count = 0  # also if nothing is trained
    config: Config = Config()
    versions: Versions = {}
    git: Git = Git()
    gpus: Count | None = None
    nodes: PositiveCount = 1
    cpu: bool | None = None
    precision: str | None = None
    compile: str | None = None
    rendezvous: str | None = None
    gpu_names: list[str] = []
    processor: Processor | None = None
    flags: list[str] | None = None
    starts_from: InitialCheckpoint | None = None
    extension: UsedExtension | None = None
    extended: Extended = Extended(updates=0)
    data: dict[str, Count] = {}
    started: str = ""


class Ending(Content):
    updates: Count
    reason: LineText


METRICS: dict[str, None] = {}
CURVES: dict[str, None] = {}
for kind in KINDS.values():
    METRICS |= dict.fromkeys(kind.metrics)
    if kind.curve:
        CURVES[kind.curve.key] = None
SPEEDS = ("tokens_per_second", "rows_per_second")
MEASUREMENTS = dict.fromkeys((*METRICS, *SPEEDS), (Number, math.nan))
for metric in METRICS:
    MEASUREMENTS[f"{metric}_signature"] = (str, "")
Measured = create_model(
    "Measured",
    __base__=Content,
    settings=(dict[str, Any], {}),
    length=(Count, 0),
    tokens=(Count, 0),
    **MEASUREMENTS,
)
"""The settings and metrics of an evaluation."""


class Evaluation(Content):
    """The content of evaluation.json."""

    evaluations: dict[str, Measured] = {}
    finished: str = ""
    ended: Ending = Ending(updates=0, reason="")
    checkpoint: FileName = "checkpoint_best.pt"
    chosen: str = ""
    tried: dict[str, dict[str, Measured]] = {}


class RecordedSettings(Content):
    """The settings of a recorded run, a line of the file with the recorded settings of an experiment."""

    experiment: str
    attention: Attention
    method: str
    seed: Count
    changes: dict[str, str]
    kind: KindName
    updates: Count
    ended: Ending = Ending(updates=0, reason="")
    config: Config
    evaluations: dict[str, dict[str, Any]]
    finished: str
    data: str = ""
    machine: str = ""
    versions: Versions = {}
    git: Git = Git()
    seconds: float | None = None


UPDATES = {
    "train_inner": "num_updates",
    "valid": "valid_num_updates",
    "train": "train_num_updates",
    "tried": "num_updates",
}
"""{kind of a log entry: key of its number of updates}, in the order in which fairseq logs these kinds."""


class LogValues(Content):
    kind: Literal[tuple(UPDATES)]
    num_updates: Count = 0
    train_num_updates: Count = 0
    valid_num_updates: Count = 0

    @model_validator(mode="after")
    def check_updates(self) -> "LogValues":
        key = UPDATES[self.kind]
        if key not in self.model_fields_set:
            raise UserError(f"the key {key} is missing")
        return self


LOGGED = dict.fromkeys(("train_train_wall", "wps", "wpb", "bsz", *CURVES), (float, math.nan))
LogEntry = create_model("LogEntry", __base__=LogValues, **LOGGED)
"""An entry of log.jsonl."""
