"""An experiment: a YAML of configs, checked, what KEY=VALUE changes in it, and the runs that it has."""

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from itertools import product
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import get_args, get_origin, get_type_hints

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_lrpe.experiments.spec.kinds import KINDS, Kind
from fairseq_lrpe.experiments.spec.run import Run, as_text, as_value
from fairseq_lrpe.methods import LINEAR_BACKENDS, LINEAR_NORMS, METHODS
from fairseq_lrpe.utils.files import REPOSITORY, display_path
from fairseq_lrpe.utils.suggest import choices
from fairseq_lrpe.utils.yaml_loader import parse

CONFIGS = REPOSITORY / "configs"
FREE = ("source", "data", "seeds", "starts_from", "grid", "choose", "evaluate", "evaluations")
FREE += ("batch.per_gpu", "train.log_interval", "train.num_workers", "train.data_buffer_size")
FREE += ("train.linear_backend",)  # which is another way to the same numbers
"""Settings that make no other run: where its data is, how it fits the machine, what is asked of it later."""

OPEN = ("evaluations", "grid", "choose")
"""Sections that may get new keys on the command line."""

LISTING = "`bash scripts/train.sh --help` lists the experiments"
SHARED_FLAGS = ("linear_norm", "feature_map", "linear_backend", "token_positions")


def experiments() -> list[str]:
    """Returns the names of all experiments: the YAML files under configs that say how to train."""
    paths = (path for path in CONFIGS.rglob("*.yaml") if path.is_file())
    paths = (path for path in paths if path.parent.name not in ("paper", "tables"))
    return sorted(str(path.relative_to(CONFIGS).with_suffix("")) for path in paths)


@cache
def option_flags() -> dict[str, tuple[str, str]]:
    """Returns {flag: (encoding, option)} of every option of an encoding."""
    from fairseq_lrpe.encodings import ENCODINGS, encoding_options  # imports torch, which takes seconds

    options = ((name, option) for name, cls in ENCODINGS.items() for option in encoding_options(cls))
    return {f"{name}_{option.rstrip('_')}": (name, option) for name, option in options}


def method_flags() -> list[str]:
    """Returns the flags of our models that a change may set though the YAML leaves them to the method."""
    return [*SHARED_FLAGS, *option_flags()]


def encoding_for(key: str) -> str | None:
    """Returns the encoding of which a setting is an option, if it is one."""
    return option_flags().get(key.removeprefix("train."), (None, None))[0]


def is_free(key: str) -> bool:
    """Whether a run is the same one with another value of this setting."""
    return any(key == free or key.startswith(f"{free}.") for free in FREE)


def read_yaml(path: Path) -> DictConfig:
    """Returns the keys and values of a YAML; ValueError in one sentence if it has none."""
    return copy.deepcopy(_parsed(path, path.stat().st_mtime_ns))


@cache  # a table asks for the same few files again and again, and each takes some 50 ms
def _parsed(path, changed):
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{display_path(path)} is not YAML: {' '.join(str(error).split())}") from None
    except ValueError as error:  # too large, or not UTF-8
        raise ValueError(f"{display_path(path)}: {error}") from None
    if content is not None and not isinstance(content, dict):
        raise ValueError(f"{display_path(path)} has no keys with values")
    return OmegaConf.create(content or {})


def checked(path: Path, content: DictConfig, settings: type) -> DictConfig:
    """Returns the ``settings`` with a file's ``content``; ValueError names its key that is none of them."""
    try:
        return OmegaConf.merge(settings, content)
    except OmegaConfBaseException:
        pass
    for key in content:
        for part, before in _parts(settings, content, key):
            try:
                OmegaConf.merge(settings, part)
            except OmegaConfBaseException as error:
                full = (error.full_key or key).replace(f"{key}[0]", before)
                full = full if full.startswith(before) else f"{before}.{full}"
                where, (wanted, known) = (
                    f"{display_path(path)}, key {full}",
                    _wanted(settings, full),
                )
                if wanted is None:
                    last = full.rpartition(".")[2]
                    raise ValueError(f"{where} is unknown{choices(last, known)}") from None
                raise ValueError(f"{where} has to be {wanted}") from None


def _parts(settings, content, key):
    """(a YAML with nothing but this key, how errors call it), a list's items each for itself."""
    hint, value = get_type_hints(settings).get(key), content.get(key)
    if get_origin(_present(hint)) is list and isinstance(value, ListConfig):
        yield from ((OmegaConf.create({key: [item]}), f"{key}[{i}]") for i, item in enumerate(value))
    else:
        yield OmegaConf.masked_copy(content, [key]), key


WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _wanted(settings, key):
    """(what a key of the settings has to be, in words, or None if there is no such key; its neighbours)."""
    wanted, known = settings, []
    for part in re.findall(r"[^.\[\]]+", key):
        if is_dataclass(wanted):
            known = list(hints := get_type_hints(wanted))
            if part not in hints:
                return None, known
            wanted = _present(hints[part])
        elif get_args(wanted) and (get_origin(wanted) is dict or part.isdigit()):  # a key may have dots
            wanted = _present(get_args(wanted)[-1])
    if is_dataclass(wanted):
        return f"made of {', '.join(get_type_hints(wanted))}", known
    if get_origin(wanted) is list:
        inner = WORDS.get(get_args(wanted)[0])
        return "a list" + (f", each of its items {inner}" if inner else ""), known
    return WORDS.get(wanted, "keys with values"), known


def _present(hint):
    """A type without its None."""
    return next(x for x in get_args(hint) if x is not NoneType) if NoneType in get_args(hint) else hint


def encoding_of(method: str) -> str:
    """Returns the name of a method's encoding; of a method that is not ours its own."""
    return METHODS[method].encoding if method in METHODS else method


@dataclass
class Experiment:
    """One experiment with a command line's KEY=VALUEs: ``changes``, and in ``cfg`` what makes no other run.

    ``shared`` are KEY=VALUEs of the experiments that its runs start from, as far as these have the key.
    """

    name: str
    cfg: DictConfig
    kind: Kind
    paths: list[Path]  # its YAML and those that it builds on
    shared: list[str]
    changes: dict[str, str] = field(default_factory=dict)
    _others: dict[str, "Experiment"] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str, overrides: Iterable[str] = (), shared: Iterable[str] = ()) -> "Experiment":
        """Returns the experiment ``name``; ValueError for what is wrong in a YAML or an override."""
        if name not in experiments():
            raise ValueError(f"unknown experiment {name!r}{choices(name, experiments(), LISTING)}")
        contents = {}
        base = name
        while base:
            path = CONFIGS / f"{base}.yaml"
            if path in contents or not path.is_file():
                last = display_path(list(contents)[-1])
                raise ValueError(f"{last}, key defaults: there is no {base} to build on")
            contents[path] = read_yaml(path)
            base = contents[path].pop("defaults", None)
        kind = next((content.kind for content in contents.values() if "kind" in content), None)
        if kind not in KINDS:
            raise ValueError(f"{display_path(path)}, key kind: unknown kind {kind!r}{choices(kind, KINDS)}")
        for path, content in contents.items():
            checked(path, content, KINDS[kind].settings)
        cfg = OmegaConf.merge(KINDS[kind].settings, *reversed(contents.values()))
        experiment = cls(name, cfg, KINDS[kind], list(contents), list(shared))
        experiment._check()
        for text in overrides:
            experiment._override(text)
        experiment._check()
        return experiment

    def _check(self, changes=None):
        """Raises ValueError where settings cannot be met, whatever their types."""
        where = display_path(self.paths[0])
        cfg = self._changed(self.changes if changes is None else changes)
        for name in ("updates", "epochs"):
            value = cfg.get(name, 1)
            if value is not None and value < 1:  # fairseq would train without end
                raise ValueError(f"{name}={value}: at least 1 is needed")
        for section in ("choose", "grid"):
            for key, values in self.cfg[section].items():
                if not values:
                    raise ValueError(f"{section}.{key} is empty: give at least one value, such as [1]")
                self._locate(key)
        for name, evaluation in self.cfg.evaluations.items():
            if not isinstance(evaluation, DictConfig | None):
                raise ValueError(f"{where}, key evaluations.{name}: such as {{split: test}} is needed")
            for key in evaluation or ():
                if key not in self.kind.evaluation_keys:
                    known = choices(key, self.kind.evaluation_keys)
                    raise ValueError(f"{where}, key evaluations.{name}.{key} is unknown{known}")
            if name == "training":  # the name under which a training's own speed is on record
                raise ValueError(f"{where}, key evaluations.training: another name is needed")
            if evaluation is not None and "split" not in evaluation:
                raise ValueError(f"{where}, key evaluations.{name} lacks a split")
        if missing := sorted(OmegaConf.missing_keys(self.cfg) - set(self.cfg.grid)):
            raise ValueError(f"{where} lacks the key {missing[0]}")
        self.kind.check(cfg)

    def _locate(self, key, cfg=None):
        """(section, name) of a setting; ValueError with the choices where there is none."""
        if key == "kind":
            raise ValueError(
                f"kind cannot be changed: {self.name} is {self.cfg.kind}, use another experiment"
            )
        section, name, path = self.cfg if cfg is None else cfg, key, []
        while name not in list(section) and isinstance(
            section.get(head := name.partition(".")[0]), DictConfig
        ):
            section, name = section[head], name.partition(".")[2]
            path.append(head)
        new = path and (path[0] in OPEN or (path == ["train"] and name in method_flags()))
        if new or name in list(section):  # the section itself has not what is missing in it
            return section, name
        known = [*section, *(method_flags() if path == ["train"] else ())]
        files = " or ".join(str(display_path(path)) for path in self.paths)
        listing = f"an override is key=value with a key of {files}"
        raise ValueError(f"{self.name} has no key {key!r}{choices(name, known, listing)}")

    def _override(self, text):
        key, equals, new = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r}: an override is key=value")
        section, name = self._locate(key)
        try:
            value = as_value(new)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
        self._fits(key, value, repr(text))
        if is_free(key):
            try:
                section[name] = {} if key == "choose" and value is None else value
            except OmegaConfBaseException as error:
                raise ValueError(f"{text!r}: {error.msg.splitlines()[0]}") from None
        elif self._differs(key, value):
            self.changes[key] = as_text(value)

    def _fits(self, key, value, text):
        """Raises ValueError where a value is of another sort than the one it replaces."""
        section, name = self._locate(key)
        old = section.get(name) if not OmegaConf.is_missing(section, name) else None
        if isinstance(old, DictConfig) and value is not None:
            raise ValueError(f"{text}: {key} is a section, override one of its keys: {', '.join(old)}")
        if sort(old) != sort(value) and None not in (old, value):
            raise ValueError(f"{text}: {key} is {sort(old)}, such as {old}, not {sort(value)}")

    def _differs(self, key, value):
        """Whether a run with this value is another one; what is a grid's or chosen is always named."""
        section, name = self._locate(key)
        special = any(name in flags for flags in self.cfg.by_method.values())
        named = key in self.cfg.grid or key in self.cfg.choose or OmegaConf.is_missing(section, name)
        return named or special or section.get(name) != value

    def settings(self, run: Run) -> DictConfig:
        """Returns the settings of a run, with its changes."""
        return self._changed(dict(run.changes))

    def _changed(self, changes):
        cfg = copy.deepcopy(self.cfg)
        for key, text in changes.items():
            section, name = self._locate(key, cfg)
            section[name] = as_value(text)
            if section is cfg.train:
                for flags in cfg.by_method.values():  # or the method's own value would hide the new one
                    flags.pop(name, None)
        return cfg

    def runs(
        self, attention: str, method: str, seeds: Iterable[int], changes: Mapping = MappingProxyType({})
    ) -> list[Run]:
        """Returns the runs of a method, one for each value of the grid that is not among the ``changes``."""
        if free := [key for key in changes if is_free(key)]:
            raise ValueError(f"{free[0]} makes no other run of {self.name}: it is no change")
        given = {**self.changes, **{k: v for k, v in changes.items() if self._differs(k, v)}}
        encoding = encoding_of(method)
        for key in given:
            if (wanted := encoding_for(key) or encoding) != encoding:
                raise ValueError(f"{key} is an option of the encoding {wanted}, and {method} has {encoding}")
        grid = {key: values for key, values in self.cfg.grid.items() if key not in given}
        cells = [dict(zip(grid, cell, strict=True)) for cell in product(*grid.values())]
        runs = (Run(self.name, attention, method, seed) for seed in seeds)
        return [run.changed({**given, **cell}) for run in runs for cell in cells]

    def check_changes(self, changes: Mapping) -> None:
        """Raises ValueError for changes that the experiment's settings cannot have."""
        for key, value in changes.items():
            self._fits(key, value, f"{key}: {value}")
        if changes:
            self._check({**self.changes, **{key: as_text(value) for key, value in changes.items()}})

    def check_options(self, run: Run) -> None:
        """Raises ValueError for flags of attention and encoding whose values the model would reject.

        It builds one encoding, in the size of the model if the settings have it, and no model.
        """
        if run.method not in METHODS:
            return
        from fairseq_lrpe.encodings import ENCODINGS, build_encoding, check_choice, encoding_options
        from fairseq_lrpe.ops import FEATURE_MAPS

        for one in self.trials(run) or [run]:
            cfg = self.settings(one)
            given = {**cfg.train, **cfg.by_method.get(run.method, {})}
            flags = METHODS[run.method].flags | {key: x for key, x in given.items() if x is not None}
            for name, known in zip(SHARED_FLAGS, (LINEAR_NORMS, FEATURE_MAPS, LINEAR_BACKENDS), strict=False):
                if name in flags:
                    check_choice(name.replace("_", " "), flags[name], known)
            encoding, options = encoding_of(run.method), {}
            defaults = encoding_options(ENCODINGS[encoding])
            for flag, (_, option) in option_flags().items():
                if flag in flags and encoding_for(flag) == encoding:
                    options[option] = _converted(flag, flags[flag], type(defaults[option]))
            part = "decoder" if "decoder_attention_heads" in flags else "encoder"
            width, heads = (flags.get(f"{part}_{size}") for size in ("embed_dim", "attention_heads"))
            if not all(isinstance(size, int) and size > 0 for size in (width, heads)):
                width, heads = 64, 4  # of the architecture, or fairseq-train refuses them
            if width % heads:
                raise ValueError(f"the embed dim {width} is not divisible by {heads} attention heads")
            shared = {"num_heads": heads, "head_dim": width // heads, "causal": True}
            build_encoding(encoding, **shared, **options)

    def trials(self, run: Run) -> list[Run]:
        """Returns the runs of which this one is the best; none where nothing is left to choose.

        Options of other encodings than the run's are not tried.
        """
        encoding, given = encoding_of(run.method), dict(run.changes)
        choose = {
            key: values
            for key, values in self.cfg.choose.items()
            if key not in given and encoding_for(key) in (None, encoding)
        }
        cells = product(*choose.values()) if choose else ()
        return [run.changed(dict(zip(choose, cell, strict=True))) for cell in cells]

    def starts_from(self, run: Run) -> Run | Path | None:
        """Returns the run or the checkpoint that this one goes on from."""
        name = self.cfg.starts_from
        if not name or not (CONFIGS / f"{name}.yaml").is_file():
            return name and REPOSITORY / name
        before = self.other(name)
        return before.runs(run.attention, run.method, before.cfg.seeds[:1])[0]

    def needs(self, run: Run) -> list[Run]:
        """Returns the runs that have to be finished before this one."""
        first = self.starts_from(run)
        return [*self.trials(run), *([first] if isinstance(first, Run) else [])]

    def other(self, name: str) -> "Experiment":
        """Returns another experiment, with those of the ``shared`` KEY=VALUEs that it has a key for."""
        if name not in self._others:
            self._others[name] = Experiment.load(name, own(name, self.shared), self.shared)
        return self._others[name]

    def file_of(self, key: str) -> Path:
        """Returns the YAML that says a setting."""
        says = (path for path in self.paths if OmegaConf.select(read_yaml(path), key) is not None)
        return next(says, self.paths[0])


def _converted(flag, value, kind):
    """The value of an encoding's option as fairseq-train would convert it to its type."""
    try:
        if kind is not bool:
            return kind(str(value))
        if isinstance(value, bool):
            return value
    except ValueError:
        pass
    raise ValueError(f"train.{flag} is {WORDS[kind]}, not {value!r}")


def own(name: str, overrides: Iterable[str]) -> list[str]:
    """Returns those of the overrides that the experiment has a key for."""
    experiment, found = Experiment.load(name) if overrides else None, []
    for text in overrides:
        try:
            section, key = experiment._locate(text.partition("=")[0])
        except ValueError:
            continue
        if key in list(section) or section is experiment.cfg.train:
            found.append(text)
    return found


def sort(value: object) -> str:
    """Returns what a value is, in words."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    return "a text" if isinstance(value, str) else "a list"
