"""Settings of runs as text, and those that can change a result, which are compared with configs."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.setting_names import is_non_identifying
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.setting_differences import differences, flatten


def machine(settings: dict) -> str:
    """Returns the GPUs in a run.json, or the CPU and its threads, precision and compilation as text.

    The settings of recorded results already have this text as "machine".
    """
    if "machine" in settings:
        return settings["machine"]
    nodes, cpu = settings.get("nodes", 1), settings.get("processor")
    names = settings.get("gpu_names", [])[: settings.get("gpus") or None]
    gpus = Counter(re.sub(r" \(cuda:\d+\)$", "", name) for name in names)
    devices = ", ".join(f"{n * nodes} × {name}" for name, n in gpus.items()) or "-"
    if settings.get("cpu") and cpu:
        processes = (settings.get("gpus") or 1) * nodes
        threads = f"{cpu['threads']} thread{'s' * (cpu['threads'] != 1)}"
        each = f"{processes} processes with {threads} each" if processes > 1 else threads
        parts = (cpu["name"], cpu.get("instructions"), each)
        devices = f"CPU ({', '.join(filter(None, parts))})"
    compiled = settings.get("compile") and f"compiled ({settings['compile']})"
    return " ".join(filter(None, (devices, settings.get("precision"), compiled)))


def flat_texts(content: dict) -> dict[str, str]:
    """Returns {key: value} of nested dictionaries as text, numbers with up to 10 digits."""
    found = {key: f"{x:.10g}" if isinstance(x, float) else x for key, x in flatten(content)}
    return {k: x if isinstance(x, str) else json.dumps(x, ensure_ascii=False) for k, x in found.items()}


def compared(
    config: dict, method: str, evaluations: dict[str, dict], flags: list | None = None
) -> dict[str, dict]:
    """Returns {"" or the name of an evaluation: {key: value}} of the settings that can change a result.

    Those of "" are the training's. Flags of other methods are omitted, and so are empty values, so that a new
    method or optional key of the YAML files does not change the settings.
    """
    config = {key: value for key, value in flatten(config) if _is_compared(key, method)}
    parts = {"": {**config, "flags of fairseq-train": flags}, **evaluations}
    found = {
        part: {k: x for k, x in flatten(of) if x not in (None, "", [], {})} for part, of in parts.items()
    }
    return {part: settings for part, settings in found.items() if settings or not part}


def _is_compared(key, method):
    section, *names = key.split(".")
    if section == "by_method":
        return names[:1] == [method]
    return not is_non_identifying(key) or section in ("starts_from", "choose")


def configured_settings(
    runs: Iterable[Run], load: Callable[[str], Experiment] = Experiment.load
) -> dict[Run, dict[str, dict]]:
    """Returns {run: its settings as configs defines them now}, without runs that it does not define.

    ``load`` returns the experiment of a name, which may have overrides.
    """
    load, settings, found = cache(load), {}, {}
    for run in runs:
        key = run.experiment, run.changes
        with suppress(ValueError):  # the experiment or a changed key does not exist any more
            job = Job(load(run.experiment), run, Path())
            if key not in settings:
                evaluations = {name: job.evaluation_settings(name) for name in job.kind.evaluations(job.cfg)}
                settings[key] = job.config, evaluations
            config, evaluations = settings[key]
            found[run] = compared(config | {"starts_from": job.start_name}, run.method, evaluations)
    return found


def different_settings(before: dict[str, dict], now: dict[str, dict] | None) -> dict[str, list[str]]:
    """Returns {part: differences "KEY was VALUE, now VALUE"} of two results of ``compared``.

    Evaluations that only ``now`` has are ignored. ``now`` is None if configs does not define the run.
    """
    if now is None:
        return {"": ["it is not defined"]}
    found = {}
    for part, old in before.items():
        prefix = part and f"evaluations.{part}."
        texts = differences(old, now.get(part, {}), prefix)
        if texts:
            found[part] = texts
    return found
