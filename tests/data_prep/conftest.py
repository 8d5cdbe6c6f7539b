import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
from tiny import REPOSITORY

sys.path[:0] = [
    str(REPOSITORY),
    str(Path(__file__).parent),
]  # data_prep is not installed, local_server is here


@pytest.fixture(scope="session")
def published():
    """The folder of published data that LRPE_DATA names."""
    return Path(os.environ["LRPE_DATA"])


@pytest.fixture
def tiny_bpe(tmp_path, monkeypatch):
    """A folder with byte pairs of 256 bytes and four merges, taken for the published files."""
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    from data_prep import gpt2_bpe

    folder = tmp_path / "tiny_bpe"
    folder.mkdir()
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "th")]
    types = [*bytes_to_unicode().values(), *("".join(pair) for pair in merges)]
    (folder / "encoder.json").write_text(json.dumps({x: i for i, x in enumerate(types)}))
    (folder / "vocab.bpe").write_text(
        "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8"
    )
    (folder / "dict.txt").write_text("".join(f"{i} {1000 - i}\n" for i in range(len(types))))
    for name in gpt2_bpe.FILES:
        content = (folder / name).read_bytes()
        facts = {"mirrors": [], "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        monkeypatch.setitem(gpt2_bpe.FILES, name, facts)
    return folder
