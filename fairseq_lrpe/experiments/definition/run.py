"""A run: one training with its evaluations, and its folder in the results."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fairseq_lrpe.methods import ATTENTIONS, aliases, canonical
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.yaml_values import check_value, check_yaml

RECORDS = ("run.json", "log.jsonl", "evaluation.json")
"""Names of the files in a run's folder that contain its settings, logged metrics and evaluations."""
SHOWN = 60
"""Number of characters of an invalid value that a message shows."""


@dataclass(frozen=True)
class Run:
    """One training of a method in an experiment, with its evaluations.

    ``changes`` are sorted (key, value) pairs of changed settings, with values as text. ``str(run)`` is the
    run's folder in the results: EXPERIMENT/ATTENTION_METHOD/KEY=VALUE/../seed-SEED.
    """

    experiment: str
    attention: str
    method: str
    seed: int
    changes: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        # fairseq splits paths at colons.
        parts = [self.experiment, f"{self.attention}_{self.method}"]
        for key, value in self.changes:
            parts.append(f"{key}={quote(value, safe=' ,[]{}')}")
        return "/".join([*parts, f"seed-{self.seed}"])

    @classmethod
    def of(cls, settings: dict) -> "Run":
        """Returns the run that ``settings``, the content of a run.json, describe."""
        return cls(
            settings["experiment"],
            settings["attention"],
            settings["method"],
            settings["seed"],
            tuple(sorted(settings["changes"].items())),
        )

    def other_run(self, settings: dict) -> str:
        """Returns what distinguishes another run from this one, such as "seed 2", or "" if nothing does.

        ``settings`` are the content of the other run's run.json; keys that it lacks are not compared.
        """
        differences = []
        for name in ("attention", "method", "seed"):
            value = getattr(self, name)
            recorded = settings.get(name, value)
            if name == "method":
                value = canonical(value)
                recorded = canonical(recorded)
            if recorded != value:
                differences.append(f"{name} {recorded}")
        return ", ".join(differences)

    def changed(self, changes: dict[str, object]) -> "Run":
        """Returns the run with further changed settings {key: value}."""
        texts = dict(self.changes)
        for key, value in changes.items():
            texts[key] = as_text(value)
        return replace(self, changes=tuple(sorted(texts.items())))

    def folder(self, results: Path) -> Path:
        """Returns the run's folder: an existing one under any alias of the method, or else ``str(self)``."""
        for name in aliases(self.method):
            folder = results / str(replace(self, method=name))
            if folder.is_dir():
                return folder
        return results / str(self)


def run_folders(folder: Path, experiment: Path | None = None) -> list[Path]:
    """Returns the folders of runs below ``folder``, sorted.

    If ``experiment``, a path relative to ``folder``, is given, only the folders of its runs are returned.
    """
    folders = []
    for path in _folders(folder):
        name = experiment_of(path, folder)
        if name is not None and experiment in (None, name) and has_records(path):
            folders.append(path)
    return sorted(folders)


def has_records(folder: Path) -> bool:
    """Returns whether a folder has a file of a started run; see ``RECORDS``."""
    return any((folder / name).exists() for name in RECORDS)


def _folders(folder: Path, outer: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yields the folders below a folder; symbolic links are followed, except to a folder in their path."""
    outer = outer | {os.path.realpath(folder)}
    with suppress(OSError):  # unreadable folders are ignored
        for path in sorted(folder.iterdir()):
            if path.is_dir() and os.path.realpath(path) not in outer:
                yield path
                yield from _folders(path, outer)


def experiment_of(path: Path, folder: Path) -> Path | None:
    """Returns the experiment in the path of a run's folder: the part between ``folder`` and ATTENTION_METHOD.

    Returns None for other paths than EXPERIMENT/ATTENTION_METHOD/KEY=VALUE/../seed-SEED.
    """
    if not is_seed(path):
        return None
    for parent in path.relative_to(folder).parents:
        attention, separator, _ = parent.name.partition("_")
        if attention in ATTENTIONS and separator:
            return parent.parent
        if "=" not in parent.name:
            break
    return None


def is_seed(folder: Path) -> bool:
    """Returns whether the name of a folder is seed-SEED, unlike that of a copy such as seed-1-old."""
    return bool(re.fullmatch(r"seed-\d{1,18}", folder.name))


def as_value(text: str) -> object:
    """Parses the value of a KEY=VALUE override as YAML; invalid YAML is returned as text.

    Raises:
        UserError: if the value exceeds the limits of ``yaml_values``, has a tag that does not fit it, or
            contains an invalid interpolation.
    """
    shown = repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
    try:
        check_yaml(text)
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]
        check_value(value)
    except YAMLError:
        check_value(text)
        return text
    except OmegaConfBaseException as error:  # an invalid interpolation
        raise UserError(str(error).splitlines()[0]) from None
    except UserError as error:
        raise UserError(f"the value {shown}: {error}") from None
    except Exception:  # PyYAML raises many types for a tag such as !!int, or for an integer of many digits
        raise UserError(
            f"{shown} is not a valid value: expected a number, a text, a list or a mapping"
        ) from None
    return value


def as_text(value: object) -> str:
    """Returns the canonical text of a value, such as "0.001" for 1e-3."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_text, value))}]"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
