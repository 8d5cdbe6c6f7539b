"""Parses YAML like OmegaConf, with libyaml if available, and limits the size of documents."""

from functools import cache

import yaml
from omegaconf._utils import get_yaml_loader

MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Maximum nesting and number of values with expanded aliases; files in configs have up to 2,000 values."""


def parse(text: str) -> object:
    """Returns the content of a YAML document.

    Raises:
        yaml.YAMLError: the text is not YAML.
        ValueError: a value contains itself, or the document exceeds the limits.
    """
    check_limits(text)
    return yaml.load(text, Loader=_loader())


def check_limits(text: str) -> None:
    """Raises the errors of :func:`parse` without building the values, so that time and memory are bounded."""
    anchors, parents = {}, []  # {anchor: (values, depth)}, and [anchor, values, depth] of open collections
    for event in yaml.parse(text, Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):
        anchor, values, depth = getattr(event, "anchor", None), 1, 0
        if isinstance(event, yaml.CollectionStartEvent):
            parents.append([anchor, values, depth])
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values, depth = parents.pop()
        elif isinstance(event, yaml.AliasEvent):
            if anchor in (parent[0] for parent in parents):
                raise ValueError(f"the value of the anchor &{anchor} contains itself")
            (values, depth), anchor = anchors.get(anchor, (1, 0)), None
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        if len(parents) + depth > MAX_DEPTH:
            raise ValueError(f"lists and mappings are nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.CollectionStartEvent):
            continue
        if anchor:
            anchors[anchor] = values, depth
        if parents:
            parents[-1][1] += values
            parents[-1][2] = max(parents[-1][2], depth + 1)
            if parents[-1][1] > MAX_VALUES:
                raise ValueError(f"the YAML has more than {MAX_VALUES:,} values, with aliases expanded")


@cache
def _loader():
    base = get_yaml_loader()
    if not yaml.__with_libyaml__:
        return base

    class Loader(yaml.cyaml.CParser, base):
        def __init__(self, stream):
            yaml.cyaml.CParser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return Loader
