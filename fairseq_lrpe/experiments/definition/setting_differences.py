"""The comparison of two nested settings, such as those of two trainings or of two evaluations."""

from collections.abc import Iterator

NON_IDENTIFYING = (
    "source",
    "data",
    "seeds",
    "starts_from",
    "grid",
    "choose",
    "evaluate",
    "evaluations",
    "batch.per_gpu",
    "train.log_interval",
    "train.num_workers",
    "train.data_buffer_size",
    "train.linear_backend",  # changes the rounding only, as the next one
    "train.compile",
    "train.stop_time_hours",  # a training that it stops is continued
)
"""Keys that do not identify a run: its data folder, use of the machine, evaluation and choice of runs."""
PREFIXES = tuple(f"{name}." for name in NON_IDENTIFYING)


def is_non_identifying(key: str) -> bool:
    """Returns whether a key, or a section that contains it, is in ``NON_IDENTIFYING``."""
    return f"{key}.".startswith(PREFIXES)


def flatten(content: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yields (dotted key, value) of each value in nested dictionaries, such as ("config.train.lr", 0.001)."""
    if isinstance(content, dict) and content:
        for name, value in content.items():
            yield from flatten(value, f"{key}.{name}".lstrip("."))
    else:
        yield key, content


def differences(before: dict[str, object], now: dict[str, object], prefix: str = "") -> list[str]:
    """Returns the differences of flat settings as "KEY was VALUE, now VALUE"; a missing value is None."""
    texts = []
    for key in dict.fromkeys([*before, *now]):
        old = before.get(key)
        new = now.get(key)
        if old != new:
            if str(old) == str(new):  # such as a number and a text
                old = repr(old)
                new = repr(new)
            texts.append(f"{prefix}{key} was {old}, now {new}")
    return texts


def setting_differences(before: object, now: object, prefix: str = "") -> list[str]:
    """Returns the :func:`differences` of nested settings, except for those in ``NON_IDENTIFYING``."""
    return differences(_identifying(before), _identifying(now), prefix)


def _identifying(content):
    settings = {}
    for key, value in flatten(content):
        if value != {} and not is_non_identifying(key):
            settings[key] = value
    return settings
