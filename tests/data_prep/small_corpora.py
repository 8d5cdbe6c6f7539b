"""Helpers for tests of corpora, which run the command, write small sources and read binaries."""

import io
import json
import tarfile
import zipfile

import numpy as np
import pytest
from fairseq.data import Dictionary, data_utils
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from data_prep.prepare import main

SPLITS = ("train", "valid", "test")


def prepare(name, options):
    """Runs ``lrpe prepare NAME`` with these options in this process."""
    main([name, *map(str, options)])


def run(name, source, out, *options):
    """Prepares a corpus from a source with one worker process, and returns the folder OUT/bin."""
    prepare(name, ["--from", source, "--out", out, "--workers", 1, *options])
    return out / "bin"


def error_of(name, *options):
    """Returns the one-line error message of a preparation that fails."""
    with pytest.raises(SystemExit) as exit_info:
        prepare(name, options)
    message = str(exit_info.value.code)
    assert "\n" not in message and message.startswith(f"prepare {name}: ")
    return message


def sentences(out, split):
    """Returns the lines of a prepared split, as fairseq reads them."""
    dictionary = Dictionary.load(str(out / "bin" / "dict.txt"))
    rows = data_utils.load_indexed_dataset(str(out / "bin" / split), dictionary)
    return [dictionary.string(row, extra_symbols_to_ignore={dictionary.pad()}) for row in rows]


def classified(folder, split):
    """Returns (text of each input ..., name of the label or None) of each row of a split."""
    about = json.loads((folder / "about.json").read_text())
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    inputs = [
        data_utils.load_indexed_dataset(str(folder / f"{split}.input{i}"), dictionary)
        for i in range(about["inputs"])
    ]
    names = [about["labels"][i] if i >= 0 else None for i in np.load(folder / f"{split}.label.npy")]
    assert about["rows"][split] == len(names) and {len(rows) for rows in inputs} == {len(names)}
    return [(*(dictionary.string(rows[i]) for rows in inputs), name) for i, name in enumerate(names)]


def write_files(folder, contents):
    """Writes {path: bytes} to ``folder`` and returns it."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def write_tar(path, contents, *members, mode="w:gz"):
    """Writes {path: bytes}, and other members without content, to a tar archive and returns its path."""
    with tarfile.open(path, mode) as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return path


def write_zip(path, contents):
    """Writes {path: bytes} to a .zip and returns its path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


def contents(folder):
    """Returns {name: bytes} of the files in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def decoded(folder, split, bpe=None):
    """Returns the lines of a prepared split in GPT-2 BPE as text."""
    bpe = bpe or folder.parent / "gpt2_bpe"
    encoder = get_encoder(str(bpe / "encoder.json"), str(bpe / "vocab.bpe"))
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    rows = data_utils.load_indexed_dataset(str(folder / split), dictionary)
    return "".join(encoder.decode(map(int, dictionary.string(row).split())) + "\n" for row in rows)
