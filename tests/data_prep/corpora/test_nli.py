"""SNLI's pairs, from its archive, its files or a part of one."""

import json

import pytest
from small_corpora import SPLITS, classified, error_of, prepare, run, write_files, write_zip

from data_prep.corpora import nli

LABELS = ("entailment", "neutral", "contradiction")


def row(i, label, keys=nli.KEYS[0]):
    return {**dict(zip(keys, (f"A man, {i}.", f"He isn't {label}.", label), strict=True)), "pairID": str(i)}


def lines(count, keys=nli.KEYS[0], undecided=0):
    rows = [row(i, LABELS[i % 3], keys) for i in range(count)] + [row(0, "-", keys)] * undecided
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


COUNTS = {"train": (18, 2), "dev": (6, 0), "test": (3, 1)}  # pairs with and without a label
FILES = {f"snli_1.0/snli_1.0_{name}.jsonl": lines(n, undecided=k) for name, (n, k) in COUNTS.items()}


def test_the_archive_is_downloaded(publish, tmp_path, capsys):
    hidden = {f"__MACOSX/{name.replace('snli_1.0_', '._snli_1.0_')}": b"\0" for name in FILES}
    publish(nli.Snli("snli").facts, write_zip(tmp_path / "snli.zip", {**FILES, **hidden}).read_bytes())
    prepare("snli", ["--out", tmp_path / "out", "--workers", 1])
    for name, split in zip(COUNTS, SPLITS, strict=True):
        rows = classified(tmp_path / "out" / "bin", split)
        assert [label for *_, label in rows] == [LABELS[i % 3] for i in range(COUNTS[name][0])]
        assert rows[1][:2] == ("A man , <unk> .", "He is n't neutral .")
    printed = capsys.readouterr().out
    assert "snli_1.0_train.jsonl: skipped 2 of 20 pairs: they have no label" in printed
    assert "rows: train 18, valid 6, test 3; published: train 549,367, valid 9,842, test 9,824" in printed


@pytest.mark.parametrize("keys", nli.KEYS)
def test_one_file_is_split(keys, tmp_path):
    file = write_files(tmp_path, {"pairs.jsonl": lines(20, keys, undecided=1)}) / "pairs.jsonl"
    data = run("snli", file, tmp_path / "out", "--cut", 12, 4, 3)
    found = [row for split in SPLITS for row in classified(data, split)]
    assert [label for *_, label in found] == [LABELS[i % 3] for i in range(19)]


@pytest.mark.parametrize("line, message", [
    ("{", "Expecting property name"),
    ("[]", "is not a pair with a label: expected an object"),
    (json.dumps({**row(0, "neutral"), "sentence1": "\ud83d"}), "has an unpaired surrogate"),
    (json.dumps(row(0, "maybe")), "has the label 'maybe' instead of one of"),
])  # fmt: skip
def test_broken_lines_are_left_out_and_counted(line, message, tmp_path, capsys):
    content = lines(4) + f"{line}\n".encode() + lines(20)
    path = write_files(tmp_path, {"bad.jsonl": content}) / "bad.jsonl"
    assert [label for *_, label in nli.pairs(path)] == [LABELS[i % 3] for i in (*range(4), *range(20))]
    assert f"{path}: left out 1 of 25 rows: line 5 {message}" in capsys.readouterr().out
    message = error_of("snli", "--from", path, "--out", tmp_path / "out", "--cut", 24, 1, 1)
    assert f"{path} has only 24 rows, but --cut requests 24 + 1 + 1" in message


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("other/snli_1.0_dev.jsonl", lines(3), "--from has files in other and snli_1.0, which may be the"),
        ("snli_1.0/snli_1.0_test.jsonl", lines(0, undecided=2), "_test.jsonl has no labeled pairs: expected"),
    ],
)
def test_copies_and_splits_without_labels_are_errors(file, content, message, tmp_path):
    source = write_files(tmp_path / "given", {**FILES, file: content})
    assert message in error_of("snli", "--from", source, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_real_development_set_is_complete(published):
    found = nli.pairs(published / "nli" / "snli_dev.jsonl")
    assert len(found) == nli.Snli("snli").facts["rows"]["valid"] == 9842
