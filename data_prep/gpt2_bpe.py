"""The files of GPT-2's byte pair encoding (BPE), and the function that encodes a line with these files."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from data_prep.fetch import SOURCES, fetch
from fairseq_lrpe.data.line_codec import BytePairs
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import file_exists, read_file, write_atomic

FACTS = SOURCES["gpt2_bpe"]
FILES = {name: {"mirrors": FACTS["mirrors"], **facts} for name, facts in FACTS["files"].items()}
BYTES = 256  # number of types of single bytes; each further type is the result of a merge


def provide(folder: Path, source: Path | None = None, types: int | None = None) -> None:
    """Writes the BPE files to ``folder``: verified copies from ``source``, or downloaded files.

    Args:
        folder: the folder of the files.
        source: the user's folder with copies of the files, or None.
        types: number of types to which vocab.bpe and dict.txt are limited; see :func:`first_types`.

    Raises:
        UserError: if ``folder`` contains the files of another number of types.
    """
    contents = {name: published(folder / "published" / name, source and source / name) for name in FILES}
    if types:
        contents = first_types(contents, types)
    merges = folder / "vocab.bpe"
    if file_exists(merges) and merges.read_bytes() != contents[merges.name]:
        raise UserError(f"{folder} was made with another --bpe-types: pass the same number, or change --out")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomic(folder / name, content)


def first_types(contents: dict[str, bytes], types: int) -> dict[str, bytes]:
    """Returns the BPE files {name: content}, limited to ``types`` types: the 256 bytes and the first merges.

    Only vocab.bpe and dict.txt become shorter. encoder.json is unchanged, because the encoder never returns a
    type whose merge is removed.
    """
    version, *merges = contents["vocab.bpe"].splitlines(keepends=True)
    if types > BYTES + len(merges):
        raise UserError(f"--bpe-types {types} is too large: use at most {BYTES + len(merges)}, all types")
    merges = merges[: types - BYTES]
    pairs = set()
    for merge in merges:
        pairs.add(merge.decode("utf-8").strip().replace(" ", ""))
    known = set()  # what dict.txt has instead of the types: their numbers
    for pair, number in json.loads(contents["encoder.json"]).items():
        if len(pair) == 1 or pair in pairs:
            known.add(str(number).encode())
    dictionary = []
    for line in contents["dict.txt"].splitlines(keepends=True):
        if line.split()[0] in known:
            dictionary.append(line)
    return contents | {"vocab.bpe": b"".join((version, *merges)), "dict.txt": b"".join(dictionary)}


def published(dest: Path, copy: Path | None = None) -> bytes:
    """Returns the verified content of a published BPE file, from ``copy`` or downloaded to ``dest``.

    Additional madeupwords at the end of a copy of dict.txt, which other releases of fairseq have (51,196
    lines), are removed.
    """
    facts = FILES[dest.name]
    if copy and file_exists(copy) and dest.name == "dict.txt":
        content = read_file(copy)
        size = facts["size"]
        same = hashlib.sha256(content[:size]).hexdigest() == facts["sha256"]
        if same and re.fullmatch(rb"(madeupword\d+ 0\n)*", content[size:]):
            return content[:size]
    return fetch(dest, facts, copy, option="--bpe").read_bytes()


def line_encoder(folder: Path) -> Callable[[str], str]:
    import fairseq.data.encoders.gpt2_bpe_utils  # noqa: F401  imported once, before workers fork

    return BytePairs(folder).encode
