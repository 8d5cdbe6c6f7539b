"""The contents of the YAML files of tables and of papers."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, model_validator

from fairseq_lrpe.experiments.definition.experiment import read_yaml
from fairseq_lrpe.experiments.definition.settings import Model, validate
from fairseq_lrpe.methods import ATTENTIONS
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import display_path
from fairseq_lrpe.utils.suggest import choices

EXPERIMENTS = {"full": "experiment", "small": "small", "mini": "mini"}
"""{scale of a table: key of a column that names the experiment at this scale}"""
SEEDS = {"full": "seeds", "small": "small_seeds", "mini": "mini_seeds"}
"""{scale of a table: key of the table that can replace the experiments' seeds at this scale}"""
SCALES = tuple(EXPERIMENTS)
SCALE_HELP = "configuration: the paper's (full, default), for one GPU (small) or for CPUs (mini)"
Attention = Literal[ATTENTIONS]


class ColumnDefaults(Model):
    """Settings of a column that a table can also set, as defaults of all its columns."""

    experiment: str | None = None
    small: str | None = None  # the experiment at --scale small
    mini: str | None = None  # the experiment at --scale mini
    metric: str | None = None  # the default is the first metric of the experiment's kind


class Column(ColumnDefaults):
    evaluation: str | None = None  # "training" has the training speed
    changes: dict[str, Any] = {}  # changed settings of the column's runs, such as the task
    attention: Attention | None = None  # restricts the column to rows of this attention
    average: list[str] = []  # columns of which this one is the average
    best: list[str] = []  # columns of which this one is the best for each seed

    @property
    def parts(self) -> list[str]:
        return self.average or self.best

    def experiment_at(self, scale: str) -> str | None:
        return getattr(self, EXPERIMENTS[scale])


class Number(Model):
    mean: FiniteFloat
    std: FiniteFloat | None = None

    @model_validator(mode="before")
    @classmethod
    def from_number(cls, content: object) -> object:
        return {"mean": content} if isinstance(content, int | float) else content


class Row(Model):
    """A row of a table; a row without a method or an attention has only published numbers."""

    row: str
    attention: Attention | None = None
    method: str | None = None
    changes: dict[str, Any] = {}
    tuned: dict[str, Any] = {}  # further changes, which do not distinguish the row from the baseline
    columns: list[str] | None = None  # the columns of the row (default: all)
    values: dict[str, Number | None] = {}  # published numbers; null is a dash, which is not measured

    def published(self, column: str) -> tuple[float, float | None] | None:
        number = self.values.get(column)
        return number and (number.mean, number.std)

    def shows(self, name: str, column: Column) -> bool:
        return name in (self.columns or (name,)) and column.attention in (None, self.attention)

    def has_runs(self, name: str, column: Column) -> bool:
        is_dash = self.values.get(name, 0) is None
        return bool(self.method and self.attention and not column.parts and not is_dash)


class Tuned(Model):
    """Changed settings that a search has found best for rows of a table, and the names of these rows."""

    changes: Annotated[dict[str, Any], Field(min_length=1)]
    linear: list[str] = []
    softmax: list[str] = []


class TableSettings(ColumnDefaults):
    title: str
    paper: str | None = None  # a file in configs/paper
    table: str | None = None  # a table in that file, whose rows come first
    baseline: str | None = None  # the method that others of the same attention are compared with
    columns: Annotated[dict[str, Column], Field(min_length=1)]
    rows: list[Row] = []
    rows_of: str | None = None  # another table, whose rows come before ``rows``, with all columns
    mini_tuned: list[Tuned] = []  # changes of single rows at --scale mini, also of rows of another table
    seeds: list[int] | None = None  # seeds at --scale full; default: those of the experiments
    small_seeds: list[int] | None = None  # seeds at --scale small
    mini_seeds: list[int] | None = None  # seeds at --scale mini
    drop_worst: bool = False  # excludes the worst of three or more seeds
    # By what ``choose`` of the experiments selects a trial: for each seed by its own score, or for all seeds
    # by the mean of their scores.
    choose_by: Literal["seed", "mean"] = "seed"

    @model_validator(mode="before")
    @classmethod
    def read_choose_once(cls, content: object) -> object:
        """Replaces ``choose_once: true``, an earlier name, by ``choose_by: mean``."""
        if not isinstance(content, dict) or "choose_once" not in content:
            return content
        content = dict(content)
        is_once = content.pop("choose_once")
        if not isinstance(is_once, bool):
            raise UserError(f"choose_once: expected true or false, not {is_once!r}")
        if "choose_by" in content:
            raise UserError("choose_once: is the earlier name of choose_by: omit it")
        return content | {"choose_by": "mean" if is_once else "seed"}

    @model_validator(mode="after")
    def complete(self) -> "TableSettings":
        measured = [name for name, column in self.columns.items() if not column.parts]
        for name, column in self.columns.items():
            for key in ColumnDefaults.model_fields.keys() - column.model_fields_set:
                setattr(column, key, getattr(self, key))
            for part in column.parts:
                if part not in measured:
                    raise UserError(f"columns.{name}: unknown column {part!r}{choices(part, measured)}")
        for row in self.rows:
            self._check_row(row)
        return self

    def _check_row(self, row):
        if not (row.attention and row.method):
            raise UserError(f"row {row.row}: attention and method are required")
        for name in row.columns or ():
            if name not in self.columns:
                raise UserError(f"row {row.row}: unknown column {name!r}{choices(name, self.columns)}")


class PaperColumn(Model):
    metric: str
    better: Literal["higher", "lower"]


class PaperTable(Model):
    shows: str = ""  # description of the table
    note: str | None = None  # remark on doubtful values
    columns: dict[str, PaperColumn] = {}
    rows: list[Row] = []


class Paper(Model):
    source: str
    tables: dict[str, PaperTable]


def read_model(path: Path, model: type[Model]) -> Model:
    try:
        return validate(model, read_yaml(path))
    except UserError as error:
        raise UserError(f"{display_path(path)}: {error}") from None
