"""GLUE's tasks from their TSVs to what fairseq's sentence_prediction reads, on a few made-up rows of each."""

import hashlib
import json
import os
import zipfile
from pathlib import Path

import pytest
import yaml
from fairseq.data import Dictionary, data_utils
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from local_server import Server
from small_corpora import prepare, refused
from tiny import REPOSITORY

from data_prep import binarize
from data_prep.corpora import glue

# Quotes that open and do not close, others' letters, a space at the end as in SST-2.
WORDS = ['the "thing', "thé ångström — 漢字", "''no'' end . ", 'one " of "three"', '"', "  two   blanks"]
ROWS = {"train": 5, "valid": 3, "valid1": 2, "test": 4, "test1": 2}
# What a task's TSVs have besides sentences and label.
OTHERS = {
    "MRPC": ["#1 ID", "#2 ID"],
    "STS-B": ["index", "genre", "filename", "year", "old_index", "source1", "source2"],
    "QQP": ["id", "qid1", "qid2"],
    "MNLI": ["index", "promptID", "pairID", "genre", "label1"],
}
LABELS = {
    "CoLA": ["1", "0"],
    "STS-B": ["5.000", "3.8", "0", "0.25"],
    "MNLI": ["neutral", "entailment", "contradiction"],
    "QNLI": ["not_entailment", "entailment"],
    "RTE": ["not_entailment", "entailment"],
}


def made_up(name, split):
    """(its sentences, a tuple per row; its labels) of a split."""
    task = glue.TASKS[name]
    sentences = [
        tuple(f"{split} {i} {WORDS[(i + k) % len(WORDS)]}" for k in range(len(task.sentences)))
        for i in range(ROWS[split])
    ]
    choices = LABELS.get(name, ["1", "0"])
    return sentences, [choices[i % len(choices)] for i in range(ROWS[split])]


def write_tsvs(folder, name):
    """The files of a task in the published layout, and ``folder``."""
    task = glue.TASKS[name]
    (folder / name).mkdir(parents=True)
    for split, file in task.files.items():
        sentences, labels = made_up(name, split)
        others = OTHERS.get(name, ["index"] if name != "SST-2" else [])
        header = [*others, *task.sentences, task.label]
        rows = [[*others, *row, label] for row, label in zip(sentences, labels, strict=True)]
        if name == "MRPC":  # has the label first
            header, rows = header[-1:] + header[:-1], [row[-1:] + row[:-1] for row in rows]
        if split.startswith("test"):
            kept = [i for i, column in enumerate(header) if column != task.label]
            header, *rows = [[row[i] for i in kept] for row in (header, *rows)]
        elif name == "CoLA":
            rows = [["gj04", label, "*", *row] for row, label in zip(sentences, labels, strict=True)]
        table = rows if name == "CoLA" and split != "test" else [header, *rows]
        text = "".join("\t".join(row) + "\n" for row in table)
        text = text.replace("\n", "\r\n") if name == "QNLI" else text
        text = text.removesuffix("\n") if split == "valid" else text
        encoding = "utf-8-sig" if name == "MRPC" else "utf-8"
        (folder / name / file).write_bytes(text.encode(encoding))
    return folder


def read(folder, split):
    """(the dictionary, the rows) of one of fairseq's folders."""
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    rows = data_utils.load_indexed_dataset(str(folder / split), dictionary)
    return dictionary, [rows[i] for i in range(len(rows))]


def decoded(folder, split, bpe):
    encoder = get_encoder(str(bpe / "encoder.json"), str(bpe / "vocab.bpe"))
    dictionary, rows = read(folder, split)
    return [encoder.decode(map(int, dictionary.string(row).split())) for row in rows]


def labels(out, split):
    """The labels of a split as sentence_prediction numbers them."""
    dictionary, rows = read(out / "bin" / "label", split)
    assert all(row.tolist()[1:] == [dictionary.eos()] for row in rows)
    return [row.tolist()[0] - dictionary.nspecial for row in rows]


def flags(source, bpe, out, *more):
    return [str(x) for x in ("--from", source, "--bpe", bpe, "--out", out, "--workers", 1, *more)]


@pytest.mark.parametrize("name", glue.TASKS)
def test_a_task_is_read_back_as_it_was(name, tiny_bpe, at_once, tmp_path, capsys):
    source, out = write_tsvs(tmp_path / "given", name), tmp_path / "out"
    prepare("glue", [name, *flags(source, tiny_bpe, out)])
    task, folder = glue.TASKS[name], out / name / "bin"
    for split in task.files:
        sentences, given = made_up(name, split)
        for i, column in enumerate(zip(*sentences, strict=True)):
            assert decoded(folder / f"input{i}", split, tiny_bpe) == [text.strip() for text in column]
        if split.startswith("test"):
            assert not list((folder / "label").glob(f"{split}*"))
        elif name == "STS-B":
            lines = (folder / "label" / f"{split}.label").read_text().splitlines()
            assert [float(line) * 5 for line in lines] == [float(score) for score in given]
        else:
            assert [task.labels[i] for i in labels(out / name, split)] == given
    assert json.loads((folder / "rows.json").read_text()) == {split: ROWS[split] for split in task.files}
    assert str(source) in (folder / "source.txt").read_text()
    inputs = {path.name for path in folder.glob("input*")}
    assert inputs == {f"input{i}" for i in range(len(task.sentences))}
    names = [line.split()[0] for line in (out / "gpt2_bpe" / "dict.txt").read_text().splitlines()]
    assert read(folder / "input0", "train")[0].symbols[4:] == names
    printed = capsys.readouterr().out
    published = glue.SOURCE[name]["rows"]
    assert f"{name} train: 5 rows, published: {published['train']:,}" in printed
    assert f"ready: fairseq-train {folder} --task sentence_prediction --num-classes " in printed


def test_the_command_goes_on_where_it_stopped(tiny_bpe, tmp_path, monkeypatch, capsys):
    source, out = write_tsvs(tmp_path / "given", "CoLA"), tmp_path / "out"
    arguments = ["CoLA", *flags(source, tiny_bpe, out, "--train-rows", 3)]

    def interrupted(given, *_):
        folder = Path(given[given.index("--destdir") + 1])
        folder.mkdir()
        (folder / "dict.txt").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(binarize, "run_command", interrupted)
        with pytest.raises(SystemExit) as ended:
            prepare("glue", arguments)
    assert ended.value.code == 130 and "run the same command to resume" in capsys.readouterr().err
    assert not (out / "CoLA" / "bin").exists()

    prepare("glue", arguments)  # with fairseq's own command
    printed = capsys.readouterr().out
    assert "CoLA train: 3 rows (--train-rows), published: 8,551" in printed
    assert "train.input0: 3 sents" in printed
    assert labels(out / "CoLA", "train") == [1, 0, 1]
    assert not list((out / "CoLA").glob("*.part"))


def test_what_is_there_is_kept_and_not_mixed(tiny_bpe, at_once, tmp_path, monkeypatch, capsys):
    source, out = write_tsvs(tmp_path / "given", "RTE"), tmp_path / "out"
    write_tsvs(source, "SST-2")
    prepare("glue", ["RTE", *flags(source, tiny_bpe, out)])
    before = (out / "RTE" / "bin" / "rows.json").stat().st_mtime_ns
    prepare("glue", ["SST-2", "RTE", "RTE", *flags(source, tiny_bpe, out)])
    printed = capsys.readouterr().out
    assert f"already there: {out / 'RTE' / 'bin'}" in printed and printed.count("RTE train:") == 2
    assert (out / "RTE" / "bin" / "rows.json").stat().st_mtime_ns == before
    assert (out / "SST-2" / "bin" / "rows.json").exists()
    prepare("glue", ["RTE", "--out", str(out)])
    assert "already there" in capsys.readouterr().out

    other = write_tsvs(tmp_path / "other", "RTE")
    assert f"was made from {source}:" in refused("glue", "RTE", *flags(other, tiny_bpe, out))
    for given in (["--out", out], flags(source, tiny_bpe, out)):
        assert f"was made from {source}:" in refused("glue", "RTE", *given, "--train-rows", 2)
    trial = tmp_path / "trial"
    prepare("glue", ["RTE", *flags(source, tiny_bpe, trial, "--train-rows", 2)])
    for given in (["--out", trial], flags(source, tiny_bpe, trial)):
        assert f"was made from {source}, 2 training rows:" in refused("glue", "RTE", *given)

    monkeypatch.setitem(glue.SOURCE["RTE"], "rows", {"train": 5, "valid": 3, "test": 4})
    capsys.readouterr()
    prepare("glue", ["RTE", "--out", str(out)])
    assert "RTE: train 5, valid 3, test 4 rows, as published\nready:" in capsys.readouterr().out


def test_malformed_files_are_named_with_their_line(tiny_bpe, tmp_path, capsys):
    out = tmp_path / "out"
    good = write_tsvs(tmp_path / "good", "CoLA")

    def message(name, file, line, content):
        """Of the sentence for a task of which one line is replaced; a good task is asked for before it."""
        source = write_tsvs(tmp_path / f"given{len(list(tmp_path.iterdir()))}", name)
        (source / "CoLA").exists() or (source / "CoLA").symlink_to(good / "CoLA")
        path = source / name / file
        lines = path.read_bytes().split(b"\n")
        lines[line - 1] = content
        path.write_bytes(b"\n".join(lines))
        found = refused("glue", "CoLA", name, *flags(source, tiny_bpe, out))
        assert found.startswith(f"prepare glue: {path} line {line} ") and not out.exists()
        return found

    few = message("RTE", "dev.tsv", 3, b"1\tone\tentailment")
    assert few.endswith("line 3 has 3 fields instead of 4: 1 | one | entailment")
    many = message("QQP", "test.tsv", 2, b"0\t1\t2\t" + b"a" * 90 + b"\tb\tc")
    assert "has 6 fields instead of 5: 0 | 1 | 2 | aaa" in many and many.endswith("a…")
    assert "has 1 fields instead of 5" in message("MRPC", "train.tsv", 7, b"\n")
    assert "line 2 has an empty sentence2: " in message("RTE", "train.tsv", 2, b"0\tone\t \tentailment")
    assert "has the label 'maybe' instead of one of entailment, not_entailment" in message(
        "QNLI", "dev.tsv", 2, b"0\tone\ttwo\tmaybe"
    )
    assert "has the label '-' instead of one of contradiction, entailment, neutral" in message(
        "MNLI", "dev_mismatched.tsv", 3, b"0\tp\tq\tg\tn\tone\ttwo\t-"
    )
    for score in (b"5.1", b"-0.5", b"nan", b"high", b""):
        row = b"0\tg\tf\ty\to\ts\ts\tone\ttwo\t" + score
        assert f"has the score {score.decode()!r} instead of a number from 0 to 5" in message(
            "STS-B", "train.tsv", 4, row
        )
    assert "is not UTF-8 text" in message("SST-2", "dev.tsv", 2, b"caf\xe9\t1")
    assert "names no column sentence2: index | sentence1 | text | label" in message(
        "WNLI", "train.tsv", 1, b"index\tsentence1\ttext\tlabel"
    )
    assert "has the label 'label' instead of one of 0, 1" in message(
        "CoLA", "train.tsv", 1, b"source\tlabel\tmark\tsentence"
    )


def test_what_cannot_be_used(tiny_bpe, tmp_path, capsys):
    source, out = write_tsvs(tmp_path / "given", "CoLA"), tmp_path / "out"
    given = flags(source, tiny_bpe, out)
    wrong = refused("glue", "CoLA", "Cola", *given)
    assert wrong == f"prepare glue: GLUE has no task 'Cola': choose from {', '.join(glue.TASKS)}"
    assert f"{source / 'RTE' / 'train.tsv'} is missing: train.tsv dev.tsv test.tsv" in refused(
        "glue", "RTE", *given
    )
    assert "MNLI" not in refused("glue", *given) and "SST-2" in refused(
        "glue", *given
    )  # the first of the default that lacks
    assert "nowhere is not a folder" in refused("glue", "CoLA", *flags(tmp_path / "nowhere", tiny_bpe, out))
    assert "encoder.json is missing" in refused("glue", "CoLA", *flags(source, tmp_path, out))
    (source / "CoLA" / "test.tsv").write_text("index\tsentence\n")
    assert "test.tsv has no rows" in refused("glue", "CoLA", *given)
    (source / "CoLA" / "dev.tsv").write_text("")
    assert "dev.tsv has no rows" in refused("glue", "CoLA", *given)
    write_tsvs(tmp_path / "empty", "RTE")
    (tmp_path / "empty" / "RTE" / "dev.tsv").write_text("")
    assert "line 1 names no column sentence1" in refused(
        "glue", "RTE", *flags(tmp_path / "empty", tiny_bpe, out)
    )
    assert not out.exists()


def test_empty_questions_and_carriage_returns_keep_their_rows(tiny_bpe, at_once, tmp_path):
    source, out = write_tsvs(tmp_path / "given", "QQP"), tmp_path / "out"
    path = source / "QQP" / "train.tsv"
    path.write_bytes(path.read_bytes() + b"8\t1\t2\twho\t\t0\n9\t3\t4\tone\rline\ttwo\t1\n")
    prepare("glue", ["QQP", *flags(source, tiny_bpe, out)])
    folder = out / "QQP" / "bin"
    assert decoded(folder / "input0", "train", tiny_bpe)[5:] == ["who", "one line"]
    assert decoded(folder / "input1", "train", tiny_bpe)[5:] == ["", "two"]
    assert labels(out / "QQP", "train")[5:] == [0, 1]


def test_downloads(tiny_bpe, at_once, tmp_path, monkeypatch, capsys):
    source, out = write_tsvs(tmp_path / "given", "RTE"), tmp_path / "out"
    write_tsvs(source, "MRPC")
    with zipfile.ZipFile(tmp_path / "RTE.zip", "w") as archive:
        for path in (source / "RTE").iterdir():
            archive.write(path, f"RTE/{path.name}")
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    rows = [f"{i % 2}\t{i}\t{i + 100}\tthe {i}\tother {i}\n" for i in range(6)]
    contents = {
        "RTE.zip": (tmp_path / "RTE.zip").read_bytes(),
        "msr_paraphrase_train.txt": (header + "".join(rows)).encode(),
        "msr_paraphrase_test.txt": (header + "".join(rows[:2])).encode(),
        "mrpc_dev_ids.tsv": b"4\t104\n1\t101\n1\t105\n",
    }
    with Server() as server:
        for name in ("RTE", "MRPC"):
            assert set(glue.SOURCE[name]["files"]) <= set(contents)
            for file, facts in glue.SOURCE[name]["files"].items():
                server.files[file] = contents[file]
                monkeypatch.setitem(facts, "mirrors", [server.url(file)])
                monkeypatch.setitem(facts, "size", len(contents[file]))
                monkeypatch.setitem(facts, "sha256", hashlib.sha256(contents[file]).hexdigest())
        arguments = ["RTE", "MRPC", "--bpe", str(tiny_bpe), "--out", str(out), "--workers", "1"]
        prepare("glue", arguments)
        assert len(server.asked) == 4
        prepare("glue", arguments)
        assert len(server.asked) == 4 and "already there" in capsys.readouterr().out
    texts = [text.strip() for text, _ in made_up("RTE", "valid")[0]]
    assert decoded(out / "RTE" / "bin" / "input0", "valid", tiny_bpe) == texts
    mrpc = out / "MRPC" / "bin" / "input1"
    assert decoded(mrpc, "train", tiny_bpe) == ["other 0", "other 2", "other 3", "other 5"]
    assert decoded(mrpc, "valid", tiny_bpe) == ["other 1", "other 4"]
    assert decoded(mrpc, "test", tiny_bpe) == ["other 0", "other 1"]
    assert labels(out / "MRPC", "valid") == [1, 0]


def test_every_task_has_its_published_facts():
    source = yaml.safe_load((REPOSITORY / "data_prep" / "sources.yaml").read_text())["glue"]
    assert source.pop("mirrors") and list(source) == list(glue.TASKS)
    for name, facts in source.items():
        assert list(facts["rows"]) == list(glue.TASKS[name].files)
        for of_file in facts["files"].values():
            assert len(of_file["sha256"]) == 64 and of_file["size"] > 1000


@pytest.mark.skipif("LRPE_DATA" not in os.environ, reason="LRPE_DATA names no folder of data")
def test_the_published_sets_have_their_rows_and_sentences(published, at_once, tmp_path, capsys):
    bpe, source = published / "gpt2_bpe", published / "glue"
    prepare("glue", ["RTE", "STS-B", *flags(source, bpe, tmp_path, "--workers", 2)])
    printed = capsys.readouterr().out
    assert "RTE: train 2,490, valid 277, test 3,000 rows, as published" in printed
    assert "STS-B: train 5,749, valid 1,500, test 1,379 rows, as published" in printed
    given = [line.split("\t") for line in (source / "RTE" / "dev.tsv").read_text("utf-8").splitlines()[1:]]
    for i in (0, 1):
        texts = [row[1 + i].strip() for row in given]
        assert decoded(tmp_path / "RTE" / "bin" / f"input{i}", "valid", tmp_path / "gpt2_bpe") == texts
    assert labels(tmp_path / "RTE", "valid") == [int(row[3] == "not_entailment") for row in given]
    for name in ("CoLA", "SST-2", "WNLI"):
        for split, file in glue.TASKS[name].files.items():
            rows = glue.rows(source / name / file, glue.TASKS[name], split)
            assert sum(1 for _ in rows) == glue.SOURCE[name]["rows"][split]
