"""Functions that read and write a run's files: run.json, evaluation.json and log.jsonl.

The values that are read are checked to have the types in ``run_schema``.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic_core import from_json

from fairseq_lrpe.experiments.definition.settings import validate
from fairseq_lrpe.experiments.execution.run_schema import UPDATES, Evaluation, LogEntry, Settings
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import read_file, write_atomic
from fairseq_lrpe.utils.yaml_values import MAX_DEPTH, check_value

SETTINGS = (
    "experiment attention method seed changes kind updates precision flags data started starts_from "
    "config.choose config.data config.evaluate.checkpoint"
).split()
"""Keys of run.json without which a run can be neither resumed nor evaluated."""
MAX_LEVELS = 2 * MAX_DEPTH
"""Maximum number of nested lists and objects, above the limit ``MAX_DEPTH`` of settings in YAML files."""
REMEDY = "restore it, or remove the run's folder"


class DamagedFile(UserError):
    """Raised if a file of a run cannot be used; ``problem`` is the message without the run's folder."""

    def __init__(self, path: Path, wrong: str, remedy: str):
        super().__init__(f"{path} {wrong}: {remedy}")
        self.problem = f"{path.name} {wrong}: {remedy}"


def write_json(path: Path, content: object) -> None:
    write_atomic(path, json.dumps(content, indent=2) + "\n")


def read_settings(folder: Path, keys: Iterable[str] = SETTINGS) -> dict:
    """Returns the content of run.json in a run's folder, or {} without this file.

    Raises:
        DamagedFile: if the file is damaged or lacks one of ``keys``.
    """
    path = folder / "run.json"
    if not path.exists():
        return {}
    settings = _read_object(path, Settings, REMEDY)
    for key in keys:
        value = settings
        for name in key.split("."):
            if name not in value:
                raise DamagedFile(path, f"lacks the key {key}", REMEDY)
            value = value[name]
    return settings


def read_evaluation(folder: Path) -> dict:
    """Returns the content of evaluation.json in a run's folder, or {} without this file."""
    path = folder / "evaluation.json"
    return _read_object(path, Evaluation, "restore or remove it") if path.exists() else {}


def evaluated_checkpoint(folder: Path, name: str) -> Path:
    """Returns the evaluated checkpoint of a run: that of the chosen trial, or the one called ``name``."""
    return folder / read_evaluation(folder).get("checkpoint", f"checkpoints/{name}")


def record_evaluation(folder: Path, name: str, measured: dict) -> None:
    """Adds ``measured``, the settings and metrics of the evaluation ``name``, to evaluation.json."""
    record = read_evaluation(folder)
    evaluations = {**record.get("evaluations", {}), name: measured}
    write_json(folder / "evaluation.json", {**record, "evaluations": evaluations})


def read_log(folder: Path) -> Iterator[dict]:
    """Yields the entries of log.jsonl in a run's folder, if it exists, without an incomplete last line."""
    path = folder / "log.jsonl"
    if not path.exists():
        return
    _check_file(path, REMEDY)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                entry = parse_entry(line)
            except ValueError as error:
                if not line.endswith(b"\n") and not _is_json(line):
                    return
                raise DamagedFile(path, f"is damaged (line {number}: {error})", REMEDY) from None
            yield entry


def _read_object(path, model, remedy):
    _check_file(path, remedy)
    try:
        content = parse_object(read_file(path), model)
        if depth(content) > MAX_LEVELS:
            raise UserError(f"its values are nested more than {MAX_LEVELS} levels deep")
        check_value(content)
    except ValueError as error:
        raise DamagedFile(path, f"is damaged ({error})", remedy) from None
    return content


def depth(value: object) -> int:
    """Returns the number of lists and objects around the innermost value of parsed JSON."""
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0)


def _check_file(path, remedy):
    """Raises DamagedFile for a folder or a named pipe; reading from a pipe would wait for a writer."""
    if not path.is_file():
        raise DamagedFile(path, "is not a regular file", remedy)


def parse_object(text: bytes, model: type[BaseModel]) -> dict:
    """Returns the JSON object in ``text``; raises ValueError if it is not JSON, or does not fit the model."""
    try:
        content = from_json(text, cache_strings="keys")
    except ValueError as error:
        raise UserError(f"it is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError("it is not a JSON object")
    validate(model, content)
    return content


def parse_entry(line: bytes) -> dict:
    """Returns the entry in a line of log.jsonl; raises ValueError if the line is not an entry."""
    return parse_object(line, LogEntry)


def checked_entry(entry: dict) -> dict:
    """Returns ``entry``; raises UserError if its values do not have the types of entries of log.jsonl."""
    validate(LogEntry, entry)
    return entry


def _is_json(text):
    try:
        from_json(text)
    except ValueError:
        return False
    return True


def entry_updates(entry: dict) -> int:
    return entry[UPDATES[entry["kind"]]]


def speed_unit(entry: dict) -> str:
    """Returns the unit of an entry's ``wps``: "tokens", or "rows" for tasks whose samples have no tokens."""
    return "rows" if entry.get("wpb") == entry.get("bsz") else "tokens"
