"""Limits of YAML, without which a short text can exhaust the stack or the memory."""

from collections.abc import Iterable

import yaml

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import is_utf8

MAX_DEPTH = 20
"""Maximum number of nested lists and mappings."""
MAX_NODES = 100_000
"""Maximum number of values after aliases are replaced by the values to which they refer."""
MAX_INTEGER = 1 << 63


def check_yaml(text: str) -> None:
    """Raises a UserError for a text of YAML whose values are nested too deeply or contain themselves.

    Invalid YAML raises a YAMLError. The parser's events are read one by one: building the values would
    already exhaust the stack.
    """
    open_nodes: list[tuple[str | None, int]] = []  # anchor of each open collection, and the nodes before it
    sizes: dict[str, int] = {}  # number of nodes of each finished collection with an anchor
    count = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise UserError(f"the alias *{event.anchor} is inside of the value that it names: remove it")
            count += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes[anchor] = count - before
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
        if len(open_nodes) > MAX_DEPTH:
            raise UserError(
                f"lists and mappings are nested more than {MAX_DEPTH} levels deep: nest them less"
            )
        if count > MAX_NODES:
            raise UserError(f"aliases repeat more than {MAX_NODES:,} values: use fewer aliases")


def check_value(value: object) -> None:
    """Raises a UserError for integers beyond 64 bits, and for text that is not UTF-8, in a value of YAML."""
    if isinstance(value, dict):
        check_values([*value, *value.values()])
    elif isinstance(value, list):
        check_values(value)
    elif isinstance(value, int) and abs(value) >= MAX_INTEGER:
        raise UserError("an integer exceeds 64 bits: use a smaller one")
    elif isinstance(value, str) and not is_utf8(value):
        raise UserError("a text is not UTF-8: write the file in UTF-8")


def check_values(values: Iterable) -> None:
    for value in values:
        check_value(value)
