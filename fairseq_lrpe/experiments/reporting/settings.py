"""Settings of runs as text, and the comparison of those that can change a result with configs."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.setting_differences import differences, flatten, is_non_identifying
from fairseq_lrpe.experiments.execution.job import Job


def machine(settings: dict) -> str:
    """Returns the machine of a run as text: its GPUs or its CPU, the precision, and the compilation.

    Args:
        settings: the content of run.json, or recorded settings, which have this text as "machine".
    """
    if "machine" in settings:
        return settings["machine"]
    words = [_cpu(settings) if settings.get("cpu") and settings.get("processor") else _gpus(settings)]
    if settings.get("precision"):
        words.append(settings["precision"])
    if settings.get("compile"):
        words.append(f"compiled ({settings['compile']})")
    return " ".join(words)


def _gpus(settings):
    """Returns the GPUs of all nodes as text, such as "8 × NVIDIA A100"."""
    names = settings.get("gpu_names", [])[: settings.get("gpus") or None]
    counts = Counter(re.sub(r" \(cuda:\d+\)$", "", name) for name in names)
    texts = []
    for name, count in counts.items():
        texts.append(f"{count * settings.get('nodes', 1)} × {name}")
    return ", ".join(texts) or "-"


def _cpu(settings):
    """Returns the CPU, its instruction set, and the number of processes and threads as text."""
    cpu = settings["processor"]
    processes = (settings.get("gpus") or 1) * settings.get("nodes", 1)
    threads = "1 thread" if cpu["threads"] == 1 else f"{cpu['threads']} threads"
    if processes > 1:
        threads = f"{processes} processes with {threads} each"
    parts = (cpu["name"], cpu.get("instructions"), threads)
    return f"CPU ({', '.join(filter(None, parts))})"


def flat_texts(content: dict) -> dict[str, str]:
    """Returns {dotted key: value as text} of nested dictionaries; numbers have up to 10 digits."""
    texts = {}
    for key, value in flatten(content):
        if isinstance(value, float):
            value = f"{value:.10g}"
        elif not isinstance(value, str):
            value = json.dumps(value, ensure_ascii=False)
        texts[key] = value
    return texts


def compared(
    config: dict, method: str, evaluations: dict[str, dict], flags: list | None = None
) -> dict[str, dict]:
    """Returns {name: {key: value}} of the settings that can change a result.

    The name is that of an evaluation, or "" for the settings of the training. Flags of other methods and
    empty values are left out, so that a new method or optional key of the YAML files does not change the
    settings.

    Args:
        config: the settings of the experiment.
        method: the method of the run.
        evaluations: {name: settings} of the evaluations.
        flags: further flags of fairseq-train.
    """
    training = {}
    for key, value in flatten(config):
        if _is_compared(key, method):
            training[key] = value
    training["flags of fairseq-train"] = flags
    parts = {"": _without_empty(training)}
    for name, settings in evaluations.items():
        settings = _without_empty(settings)
        if settings:
            parts[name] = settings
    return parts


def _without_empty(settings):
    """Returns {dotted key: value} of nested dictionaries, without the values None, "", [] and {}."""
    values = {}
    for key, value in flatten(settings):
        if value not in (None, "", [], {}):
            values[key] = value
    return values


def _is_compared(key, method):
    section, *names = key.split(".")
    if section == "by_method":
        return names[:1] == [method]
    return not is_non_identifying(key) or section in ("starts_from", "choose")


def configured_settings(
    runs: Iterable[Run], load: Callable[[str], Experiment] = Experiment.load
) -> dict[Run, dict[str, dict]]:
    """Returns {run: settings that configs defines for it now}, without runs that configs does not define.

    Args:
        runs: any runs.
        load: function that returns the experiment with a name, which may have overrides.

    Returns:
        The settings as :func:`compared` returns them.
    """
    load = cache(load)
    settings = {}
    configured = {}
    for run in runs:
        key = run.experiment, run.changes
        with suppress(ValueError):  # the experiment or a changed key does not exist any more
            job = Job(load(run.experiment), run, Path())
            if key not in settings:  # resolving the settings takes most of the time
                evaluations = {}
                for name in job.kind.evaluations(job.cfg):
                    evaluations[name] = job.evaluation_settings(name)
                settings[key] = job.recorded_config, evaluations
            config, evaluations = settings[key]
            configured[run] = compared(config | {"starts_from": job.start_name}, run.method, evaluations)
    return configured


def different_settings(before: dict[str, dict], now: dict[str, dict] | None) -> dict[str, list[str]]:
    """Returns {name: texts "KEY was VALUE, now VALUE"} of the differences of two results of ``compared``.

    The names are those of evaluations, or "" for the training. Evaluations that only ``now`` contains are
    ignored. ``now`` is None if configs does not define the run.
    """
    if now is None:
        return {"": ["it is not defined"]}
    changed = {}
    for part, old in before.items():
        prefix = f"evaluations.{part}." if part else ""
        texts = differences(old, now.get(part, {}), prefix)
        if texts:
            changed[part] = texts
    return changed
