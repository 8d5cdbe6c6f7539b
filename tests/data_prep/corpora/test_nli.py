"""SNLI's pairs, from its archive, its files or a part of one."""

import hashlib
import json
import os
import zipfile

import pytest
from local_server import Server
from small_corpora import classified, prepare, refused, write_files

from data_prep.corpora import nli

LABELS = ("entailment", "neutral", "contradiction")


def row(i, label, keys=nli.KEYS[0]):
    return {**dict(zip(keys, (f"A man, {i}.", f"He isn't {label}.", label), strict=True)), "pairID": str(i)}


def lines(count, keys=nli.KEYS[0], undecided=0):
    rows = [row(i, LABELS[i % 3], keys) for i in range(count)] + [row(0, "-", keys)] * undecided
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


SPLITS = {"train": (18, 2), "dev": (6, 0), "test": (3, 1)}  # pairs with a label, and without
FILES = {f"snli_1.0/snli_1.0_{name}.jsonl": lines(n, undecided=k) for name, (n, k) in SPLITS.items()}


def check(folder):
    for name, split in nli.NAMES.items():
        rows = classified(folder, split)
        assert [label for *_, label in rows] == [LABELS[i % 3] for i in range(SPLITS[name][0])]
        assert rows[1][:2] == ("A man , <unk> .", "He is n't neutral .")


def test_the_archive_is_downloaded(tmp_path, monkeypatch, capsys):
    with zipfile.ZipFile(tmp_path / "snli_1.0.zip", "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
            archive.writestr(f"__MACOSX/{name.replace('snli_1.0_', '._snli_1.0_')}", b"\0")
    content = (tmp_path / "snli_1.0.zip").read_bytes()
    with Server() as server:
        server.files["snli"] = content
        facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for key, value in {**facts, "mirrors": [server.url("snli")]}.items():
            monkeypatch.setitem(nli.FACTS, key, value)
        prepare("snli", ["--out", tmp_path / "out", "--workers", "1"])
    check(tmp_path / "out" / "bin")
    printed = capsys.readouterr().out
    assert "snli_1.0_train.jsonl: 2 of 20 pairs have no label and are skipped" in printed
    assert "rows: train 18, valid 6, test 3; published: train 549,367, valid 9,842, test 9,824" in printed


def test_a_folder_of_its_files(tmp_path):
    folder = write_files(tmp_path / "given", FILES)
    prepare("snli", ["--from", folder, "--out", tmp_path / "out", "--workers", "1"])
    check(tmp_path / "out" / "bin")
    few = ["--from", folder, "--out", tmp_path / "few", "--workers", "1", "--train-rows", "9"]
    prepare("snli", few)
    assert len(classified(tmp_path / "few" / "bin", "train")) == 9


@pytest.mark.parametrize("keys", nli.KEYS)
def test_one_file_is_cut(keys, tmp_path, capsys):
    file = write_files(tmp_path, {"pairs.jsonl": lines(20, keys, undecided=1)}) / "pairs.jsonl"
    words = ["--from", file, "--out", tmp_path / "out", "--workers", "1"]
    prepare("snli", [*words, "--cut", "12", "4", "3"])
    found = [
        row for split in ("train", "valid", "test") for row in classified(tmp_path / "out" / "bin", split)
    ]
    assert [label for *_, label in found] == [LABELS[i % 3] for i in range(19)]
    assert "rows: train 12, valid 4, test 3\n" in capsys.readouterr().out
    assert (tmp_path / "out" / "bin" / "source.txt").read_text() == f"{file}, 12 4 3 rows\n"
    assert "12 4 3 rows: give that to --from" in refused("snli", *words, "--cut", 12, 4, 2)
    prepare("snli", ["--out", tmp_path / "out", "--cut", "12", "4", "3"])
    assert "already there" in capsys.readouterr().out


def test_what_cannot_be_used(tmp_path):
    out = ["--out", tmp_path / "out"]
    file = write_files(tmp_path, {"pairs.jsonl": lines(20)}) / "pairs.jsonl"

    def bad(line, *more):
        content = lines(4) + line + b"\n"
        path = write_files(tmp_path, {"bad.jsonl": content}) / "bad.jsonl"
        message = refused("snli", "--from", path, "--cut", 2, 1, 1, *out)
        assert f"{path} line 5 " in message and not (tmp_path / "out").exists()
        return message

    assert "is one file: --cut TRAIN VALID TEST says" in refused("snli", "--from", file, *out)
    assert "has 20 pairs with a label: --cut asks for 20 + 1 + 1" in refused(
        "snli", "--from", file, "--cut", 20, 1, 1, *out
    )
    assert "--cut requires --from" in refused("snli", "--cut", 2, 1, 1, *out)
    assert f"{tmp_path} is no file: --cut is for one" in refused(
        "snli", "--from", tmp_path, "--cut", 2, 1, 1, *out
    )
    assert "is not JSON" in bad(b"{")
    assert "is not JSON" in bad(b'{"premise": "caf\xe9"}')
    assert "is no pair: sentence1, sentence2, gold_label or premise, hypothesis, label" in bad(b"[]")
    assert "is no pair" in bad(b'{"premise": "a", "hypothesis": "b", "label": 1}')
    assert "has the label 'maybe' instead of one of contradiction, entailment, neutral, -" in bad(
        json.dumps(row(0, "maybe")).encode()
    )
    folder = write_files(tmp_path / "given", {**FILES, "snli_1.0/snli_1.0_dev.jsonl": b""})
    assert f"{folder} has no pairs in snli_1.0_dev.jsonl" in refused("snli", "--from", folder, *out)
    assert (
        "the valid set has the label 'contradiction', the training set only entailment, neutral"
        in refused("snli", "--from", file, "--cut", 2, 4, 4, *out)
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif("LRPE_DATA" not in os.environ, reason="LRPE_DATA names no folder of data")
def test_the_development_set_has_its_pairs(published, capsys):
    with (published / "nli" / "snli_dev.jsonl").open("rb") as file:
        assert len(nli.pairs(file, "dev")) == nli.FACTS["rows"]["valid"] == 9842
