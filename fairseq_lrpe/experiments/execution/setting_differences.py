"""The comparison of two nested settings, such as those of two trainings or of two evaluations."""

from collections.abc import Iterator

from fairseq_lrpe.experiments.definition.setting_names import is_non_identifying


def flatten(content: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yields (key, value) of nested dictionaries, such as ("config.train.lr", 0.001)."""
    if isinstance(content, dict) and content:
        for name, value in content.items():
            yield from flatten(value, f"{key}.{name}".lstrip("."))
    else:
        yield key, content


def differences(before: dict[str, object], now: dict[str, object], prefix: str = "") -> list[str]:
    """Returns the differences of flat settings as "KEY was VALUE, now VALUE"; a missing value is None."""
    texts = []
    for key in dict.fromkeys([*before, *now]):
        if before.get(key) != now.get(key):
            texts.append(f"{prefix}{key} was {before.get(key)}, now {now.get(key)}")
    return texts


def setting_differences(before: object, now: object, prefix: str = "") -> list[str]:
    """Returns the ``differences`` of nested settings, without those of NON_IDENTIFYING settings."""
    return differences(_identifying(before), _identifying(now), prefix)


def _identifying(content):
    settings = {}
    for key, value in flatten(content):
        if value != {} and not is_non_identifying(key):
            settings[key] = value
    return settings
