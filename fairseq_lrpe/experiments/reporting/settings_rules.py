"""The rules for a recorded run's settings, which are stricter than those for reading earlier records."""

import re
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fairseq_lrpe.experiments.definition.settings import Model, error_texts
from fairseq_lrpe.experiments.execution import endings
from fairseq_lrpe.experiments.execution.run_schema import Content, Count, RecordedSettings
from fairseq_lrpe.methods import canonical, check_method
from fairseq_lrpe.utils.errors import UserError


def text_type(pattern: str, expected: str) -> Any:
    """Returns the type of texts that match ``pattern``; ``expected`` describes them in error messages."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise UserError(f"expected {expected}, not {text!r}")
        return text

    return Annotated[str, AfterValidator(check)]


def check_day(text: str) -> str:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise UserError(f"expected a date such as 2026-01-31, not {text!r}") from None
    return text


def check_past(day: str) -> str:
    if date.fromisoformat(day) > datetime.now(UTC).date():
        raise UserError(f"{day} is in the future")
    return day


def check_canonical(method: str) -> str:
    if method != canonical(method):
        raise UserError(f"expected {canonical(method)}, not its alias {method}")
    return method


def check_clean(dirty: bool) -> bool:
    if dirty:
        raise UserError("the code had changes without a commit: commit them, and train again")
    return dirty


GPUS = r"\d+ × \S.*"
Day = Annotated[str, AfterValidator(check_day)]
Digest = text_type("[0-9a-f]{8}", "eight hexadecimal digits")
Machine = text_type(rf"{GPUS}|CPU\b.*", "a CPU or GPUs")
DetailedMachine = text_type(
    rf"{GPUS}|CPU \(.+ threads?( each)?\).*",
    "GPUs such as '2 × NVIDIA A100 fp16', or a CPU and its threads such as 'CPU (AMD EPYC, 1 thread) fp32'",
)
Revision = text_type("[0-9a-f]{12}", "the first 12 digits of a commit")
Version = text_type(r"\d+\.\d+\S*", "a version such as 2.0.1")


class EarlyEnding(Model):
    updates: Count
    reason: Literal[endings.REASONS]


class KnownVersions(Content):
    """The versions of the packages that determine the digits of a result, and possibly of others."""

    torch: Version
    fairseq_lrpe: Version
    python: Version | None = None
    fairseq: Version | None = None


class RunSettings(RecordedSettings):
    """The settings of any valid recorded run."""

    model_config = ConfigDict(extra="forbid")

    method: Annotated[str, AfterValidator(check_canonical)]
    ended: EarlyEnding | None = None
    finished: Day
    data: Digest
    machine: Machine
    versions: KnownVersions
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def check_method(self) -> "RunSettings":
        check_method(self.method, self.attention)
        return self

    @model_validator(mode="after")
    def check_config(self) -> "RunSettings":
        kind = self.config.model_extra.get("kind")
        if kind != self.kind:
            raise UserError(f"kind: expected {kind!r} as in config, not {self.kind!r}")
        updates = self.config.updates
        if updates not in (None, self.updates):  # some kinds derive it from the data
            raise UserError(f"updates: expected {updates} as in config, not {self.updates}")
        if self.ended and self.ended.updates > self.updates:
            raise UserError(f"ended.updates: expected at most {self.updates}, not {self.ended.updates}")
        return self


class CleanGit(Model):
    revision: Revision
    dirty: Annotated[bool, AfterValidator(check_clean)]


class NewRunSettings(RunSettings):
    """The settings of a run that is added to recorded results; some earlier records do not comply."""

    finished: Annotated[Day, AfterValidator(check_past)]  # as a clock may be wrong, only of new runs
    machine: DetailedMachine
    git: CleanGit


def settings_problems(line: dict, model: type[BaseModel]) -> list[str]:
    """Returns a text for each problem of ``line``, a line of the file of settings, according to ``model``."""
    try:
        model.model_validate(line)
    except ValidationError as errors:
        return error_texts(errors)
    return []
