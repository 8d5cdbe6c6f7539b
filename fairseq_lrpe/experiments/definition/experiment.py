"""An experiment: a validated YAML file of ``configs`` with KEY=VALUE overrides, and its runs."""

import copy
import io
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from types import MappingProxyType

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_lrpe.experiments.definition.config_files import config_path, experiments
from fairseq_lrpe.experiments.definition.kinds import KINDS, Kind
from fairseq_lrpe.experiments.definition.run import Run, as_text, as_value
from fairseq_lrpe.experiments.definition.setting_differences import is_non_identifying
from fairseq_lrpe.experiments.definition.settings import train_flags, validate
from fairseq_lrpe.method_flags import ENCODING_FLAGS, flag_names, foreign_encoding
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, display_path, read_file, without_mark
from fairseq_lrpe.utils.suggest import choices
from fairseq_lrpe.utils.yaml_values import check_value, check_yaml

MAX_SEED = 2**31 - 1
"""Largest seed of a run: fairseq adds the number of the epoch to it, and NumPy's seeds have 32 bits."""
EXTENSIBLE = ("evaluations", "grid", "choose")  # sections of a YAML file to which overrides can add keys
LISTING = "`bash scripts/train.sh --help` lists the experiments"


def read_yaml(path: Path) -> dict:
    return OmegaConf.to_container(_parsed(path, path.stat().st_mtime_ns))


@cache  # tables read the same few files repeatedly
def _parsed(path, modified):
    content = read_file(path)
    try:
        text = without_mark(content, path.name).decode()
        check_yaml(text)
        content = OmegaConf.load(io.StringIO(text))
        check_value(OmegaConf.to_container(content))
    except OSError:
        raise
    except Exception as error:  # PyYAML raises many types for a tag, or for an integer of many digits
        raise UserError(f"{display_path(path)} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, DictConfig):
        raise UserError(f"{display_path(path)} is not a mapping of keys to values: write lines KEY: VALUE")
    return content


def read_with_defaults(name: str) -> dict[Path, dict]:
    """Returns {path: content} of an experiment's YAML file, followed by the files that it extends."""
    contents: dict[Path, dict] = {}
    path = None
    while name:
        path = config_path(name, extending=path)
        if path in contents or not path.is_file():
            last = display_path(list(contents)[-1])
            wrong = "extends this file itself" if path in contents else "does not exist"
            raise UserError(f"{last}: defaults: {name} {wrong}: choose another experiment")
        contents[path] = read_yaml(path)
        name = contents[path].pop("defaults", None)
    return contents


def build_config(kind: Kind, content: DictConfig) -> DictConfig:
    settings = validate(kind.settings, resolved(content))
    # Evaluations get no defaults, since their recorded settings are compared with the given ones.
    return OmegaConf.merge(settings.model_dump() | {"evaluations": {}}, content)


def resolved(cfg: DictConfig) -> dict:
    try:
        return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(str(error).splitlines()[0]) from None


@dataclass
class Experiment:
    name: str  # path of the YAML file in configs, without the suffix
    cfg: DictConfig  # settings, including the overrides of ``NON_IDENTIFYING`` settings
    kind: Kind
    files: str  # names of the YAML file and of the files that it extends with ``defaults``, in messages
    shared: list[str]  # overrides that also apply to the experiments from which runs start
    changes: dict[str, str] = field(default_factory=dict)  # the other overrides, which identify each run
    _others: dict[str, "Experiment"] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str, overrides: Iterable[str] = (), shared: Iterable[str] = ()) -> "Experiment":
        if name not in experiments():
            raise UserError(f"unknown experiment {name!r}{choices(name, experiments(), LISTING)}")
        contents = read_with_defaults(name)
        files = " or ".join(str(display_path(path)) for path in contents)
        kind = ChainMap(*contents.values()).get("kind")
        if kind not in list(KINDS):
            raise UserError(f"{files}: kind: unknown kind {kind!r}{choices(kind, KINDS)}")
        try:
            cfg = build_config(KINDS[kind], OmegaConf.merge(*reversed(contents.values())))
        except (UserError, OmegaConfBaseException) as error:
            raise UserError(f"{files}: {str(error).splitlines()[0]}") from None
        experiment = cls(name, cfg, KINDS[kind], files, list(shared))
        for text in overrides:
            experiment._override(text)
        experiment.check({})
        return experiment

    def check(self, changes: Mapping) -> None:
        """Raises UserError if the settings are invalid with ``changes`` {key: value}."""
        cfg = self._changed({**self.changes, **changes})
        validate(self.kind.settings, resolved(cfg))
        for key in (*cfg.choose, *cfg.grid):
            self._locate(key, cfg)
        self.kind.check(cfg)

    def _locate(self, key, cfg=None):
        """Returns the section of the settings that contains a key, and the key's name in this section.

        Only ``train`` and the sections in ``EXTENSIBLE`` accept new keys.
        """
        if key == "kind":
            raise UserError(f"{self.name} is of kind {self.cfg.kind}: use another experiment")
        section = self.cfg if cfg is None else cfg
        name = key
        path = []
        while name not in list(section):
            head, _, rest = name.partition(".")
            if not isinstance(section.get(head), DictConfig):
                break
            section = section[head]
            name = rest
            path.append(head)
        is_open = path and name and (path[0] in EXTENSIBLE or (path == ["train"] and "." not in name))
        if is_open or name in list(section):
            return section, name
        prefix = ".".join([*path, ""])
        listing = f"use a key of {self.files}, or train.FLAG (`lrpe methods --flags` lists the plugin's)"
        raise UserError(f"{self.name} has no key {key!r}{choices(name, list(section), listing, prefix)}")

    def _override(self, text):
        key, equals, new = text.partition("=")
        if not equals:
            raise UserError(f"{text!r} is not an override: expected KEY=VALUE")
        section, name = self._locate(key)
        value = as_value(new)
        if is_non_identifying(key):
            section[name] = {} if key == "choose" and value is None else value
        elif self._differs(key, value):
            self.changes[key] = as_text(value)
        else:
            self.changes.pop(key, None)  # an earlier override of the same key

    def _differs(self, key, value):
        """Returns whether a value is not the YAML file's, or its key is in grid, choose or by_method."""
        section, name = self._locate(key)
        if key in self.cfg.grid or key in self.cfg.choose:
            return True
        if any(name in flags for flags in self.cfg.by_method.values()):
            return True
        return section.get(name) != value

    def settings(self, run: Run) -> DictConfig:
        return self._changed(dict(run.changes))

    def _changed(self, changes):
        cfg = copy.deepcopy(self.cfg)
        for key in changes:
            section, name = self._locate(key, cfg)
            section[name] = as_value(as_text(changes[key]))
            if section is cfg.train:
                for flags in cfg.by_method.values():  # the method's value would override the change
                    flags.pop(name, None)
        return cfg

    def runs(
        self, attention: str, method: str, seeds: Iterable[int], changes: Mapping = MappingProxyType({})
    ) -> list[Run]:
        """Returns the runs of a method, one for each seed and each combination of values of the grid.

        ``changes`` {key: value} are further changed settings; their keys are left out of the grid.
        """
        common = self._common_changes(method, changes)
        grid = {key: values for key, values in self.cfg.grid.items() if key not in common}
        seeds = list(seeds)
        if seeds and max(seeds) > MAX_SEED:
            raise UserError(f"the seed {max(seeds)} is too large: use one of at most {MAX_SEED}")
        runs = []
        for seed in seeds:
            run = Run(self.name, attention, method, seed)
            for cell in combinations(grid):
                runs.append(run.changed({**common, **cell}))
        return runs

    def _common_changes(self, method, changes):
        """Returns {key: value} of the settings that all runs of a method change.

        These are the overrides, and those of ``changes`` that differ from the YAML file.
        """
        common = dict(self.changes)
        for key, value in changes.items():
            if is_non_identifying(key):
                raise UserError(f"{key} is not allowed in changes: set it in the experiment {self.name}")
            if self._differs(key, value):
                common[key] = value
        for key in common:
            encoding = self._foreign_encoding(key, method, common)
            if encoding:
                raise UserError(f"{key} is an option of the encoding {encoding}, not of {method}: omit it")
        return common

    def _foreign_encoding(self, key, method, changes):
        """Returns the encoding with the option ``key`` if models with ``changes`` have no such encoding."""
        selected = train_flags(self.cfg, method)
        for flag in ENCODING_FLAGS:
            if f"train.{flag}" in changes:
                selected[flag] = changes[f"train.{flag}"]
        return foreign_encoding(key, method, selected)

    def changes_for(self, method: str) -> dict[str, str]:
        """Returns {key: text} of ``changes``, without the options of encodings other than the method's."""
        changes = {}
        for key, text in self.changes.items():
            if not self._foreign_encoding(key, method, self.changes):
                changes[key] = text
        return changes

    def trials(self, run: Run) -> list[Run]:
        """Returns one trial for each combination of the values in ``choose``.

        The list is empty if nothing is chosen, or if the run is itself a trial. The best trial becomes the
        result of the run. Options of encodings other than the run's are left out.
        """
        chosen = {}
        for key, values in self.cfg.choose.items():
            changes = dict(run.changes)
            if key not in changes and not self._foreign_encoding(key, run.method, changes):
                chosen[key] = values
        if not chosen:
            return []
        return [run.changed(cell) for cell in combinations(chosen)]

    def starts_from(self, run: Run) -> Run | Path | None:
        """Returns the run or the checkpoint whose model initializes the model of a run, or None."""
        name = self.cfg.starts_from
        if not name:
            return None
        if not config_path(name).is_file():
            return REPOSITORY / name
        other = self.other(name)
        return other.runs(run.attention, run.method, other.cfg.seeds[:1])[0]

    @cached_property
    def without_overrides(self) -> "Experiment":
        return self.load(self.name)

    def needs(self, run: Run) -> list[Run]:
        """Returns the runs that must be finished before a run can start."""
        needed = self.trials(run)
        start = self.starts_from(run)
        if isinstance(start, Run):
            needed.append(start)
        return needed

    def other(self, name: str) -> "Experiment":
        """Returns the experiment ``name`` with the ``shared`` overrides that apply to it, except seeds."""
        if name not in self._others:
            shared = [text for text in self.shared if not text.startswith("seeds=")]
            self._others[name] = Experiment.load(name, applicable_overrides(name, shared), shared)
        return self._others[name]


def combinations(values: Mapping[str, list]) -> Iterator[dict[str, object]]:
    """Yields {key: value} for each combination of the keys' values."""
    for cell in product(*values.values()):
        yield dict(zip(values, cell, strict=True))


def applicable_overrides(name: str, overrides: Iterable[str]) -> list[str]:
    """Returns the KEY=VALUE overrides whose keys exist in the experiment ``name``.

    A flag of fairseq-train exists if a YAML file sets it; the flags in ``flag_names`` always exist.
    """
    applicable = []
    experiment = Experiment.load(name) if overrides else None
    for text in overrides:
        with suppress(UserError):
            section, key = experiment._locate(text.partition("=")[0])
            if key in list(section) or (section is experiment.cfg.train and key in flag_names()):
                applicable.append(text)
    return applicable
