"""Damages the files of a run: every value of their JSON is replaced or removed, and whole files, too."""

import json
import os

DEPTH = 5000
VALUES = [
    "null",
    "[]",
    "{}",
    '""',
    '"x"',
    r'"\u0000"',
    "true",
    "-1",
    "0.5",
    "1e308",
    "1e400",
    "-1e400",
    "NaN",
]
VALUES += ["9" * 400, "[" * DEPTH + "]" * DEPTH, "[" * 150 + "]" * 150, "[null]", '{"x": null}']
"""JSON that replaces a value; a removed key is None."""
FILES = {
    "empty": b"",
    "a null": b"null\n",
    "a list": b"[1]\n",
    "a number": b"1\n",
    "not UTF-8": b'{"kind": "\xff\xfe"}\n',
    "zeros": bytes(99) + b"\n",
    "nested": b'{"x": ' + b"[" * DEPTH + b"]" * DEPTH + b"}\n",
    "truncated": b'{"kind": "language_mod',
}
"""{name: content of a damaged file}"""


def paths(content, path=()):
    """Yields the paths of all values in JSON, except for the outermost."""
    if path:
        yield path
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from paths(content[key], (*path, key))


def damaged(content, path, value):
    """Returns JSON in which the value at a path is replaced by the JSON ``value``, or removed."""
    copy = json.loads(json.dumps(content))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    if value is None:
        del parent[path[-1]]
    else:
        parent[path[-1]] = "@replaced@"
    return json.dumps(copy).replace('"@replaced@"', value or "")


def replace_file(path, kind):
    """Replaces a file by a folder, a named pipe, a link, or content of ``FILES``."""
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling link":
        path.symlink_to("nothing")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    else:
        path.write_bytes(FILES[kind])


KINDS_OF_FILES = ("folder", "pipe", "dangling link", "link to itself", *FILES)
