"""GLUE tasks, from a few made-up rows in the published layout to fairseq's binaries."""

import csv
import json
import re

import pytest
from fairseq.data import Dictionary, data_utils
from small_corpora import classified, error_of, prepare, run, write_zip
from small_corpora import decoded as decoded_text

from data_prep.corpora import glue
from fairseq_lrpe.data.penn_treebank import tokenize_penn

# Quotes that open and do not close, other alphabets, a space at the end as in SST-2.
WORDS = ['the "thing', "thé ångström — 漢字", "''no'' end . ", 'one " of "three"', '"', "  two   blanks"]
ROWS = {"train": 5, "valid": 3, "valid1": 2, "test": 4, "test1": 2}
OTHER_COLUMNS = {
    "SST-2": [],
    "STS-B": ["index", "genre", "filename", "year", "old_index", "source1", "source2"],
    "QQP": ["id", "qid1", "qid2"],
}
LABELS = {
    "CoLA": ["1", "0"],
    "STS-B": ["5.000", "3.8", "0", "0.25"],
    "MNLI": ["neutral", "entailment", "contradiction"],
    "QNLI": ["not_entailment", "entailment"],
    "RTE": ["not_entailment", "entailment"],
}


def made_up(name, split):
    """Returns the tuples of sentences, and the labels, of a split."""
    task = glue.TASKS[name]
    sentences = [
        tuple(f"{split} {i} {WORDS[(i + k) % len(WORDS)]}" for k in range(len(task.sentences)))
        for i in range(ROWS[split])
    ]
    choices = LABELS.get(name, ["1", "0"])
    return sentences, [choices[i % len(choices)] for i in range(ROWS[split])]


def write_tsvs(folder, name):
    """Writes the files of a task in the published layout and returns ``folder``."""
    task = glue.TASKS[name]
    (folder / name).mkdir(parents=True)
    for split, file in task.files.items():
        sentences, labels = made_up(name, split)
        others = OTHER_COLUMNS.get(name, ["index"])
        header = [*others, *task.sentences, task.label]
        rows = [[*others, *row, label] for row, label in zip(sentences, labels, strict=True)]
        if split.startswith("test"):
            kept = [i for i, column in enumerate(header) if column != task.label]
            header, *rows = [[row[i] for i in kept] for row in (header, *rows)]
        elif name == "CoLA":
            rows = [["gj04", label, "*", *row] for row, label in zip(sentences, labels, strict=True)]
        table = rows if name == "CoLA" and split != "test" else [header, *rows]
        text = "".join("\t".join(row) + "\n" for row in table)
        text = text.replace("\n", "\r\n") if name == "QNLI" else text
        text = text.removesuffix("\n") if split == "valid" else text
        (folder / name / file).write_bytes(text.encode())
    return folder


def decoded(folder, split):
    return decoded_text(folder, split, folder.parents[2] / "gpt2_bpe").splitlines()


def labels(out, split):
    """Returns the labels of a split as sentence_prediction numbers them."""
    folder = out / "bin" / "label"
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    rows = [row.tolist() for row in data_utils.load_indexed_dataset(str(folder / split), dictionary)]
    assert all(row[1:] == [dictionary.eos()] for row in rows)
    return [row[0] - dictionary.nspecial for row in rows]


def flags(source, bpe, out, *more):
    return ["--from", source, "--bpe", bpe, "--out", out, "--workers", 1, *more]


@pytest.mark.parametrize("name", ["CoLA", "STS-B", "MNLI", "QNLI"])
def test_tasks_are_prepared_for_sentence_prediction(name, tiny_bpe, in_process, tmp_path):
    source, out = write_tsvs(tmp_path / "given", name), tmp_path / "out"
    prepare("glue", [name, *flags(source, tiny_bpe, out)])
    task, folder = glue.TASKS[name], out / name / "bin"
    for split in task.files:
        sentences, given = made_up(name, split)
        for i, column in enumerate(zip(*sentences, strict=True)):
            assert decoded(folder / f"input{i}", split) == [text.strip() for text in column]
        if split.startswith("test"):
            assert not list((folder / "label").glob(f"{split}*"))
        elif name == "STS-B":
            lines = (folder / "label" / f"{split}.label").read_text().splitlines()
            assert [float(line) * 5 for line in lines] == [float(score) for score in given]
        else:
            assert [task.labels[i] for i in labels(out / name, split)] == given
    assert json.loads((folder / "rows.json").read_text()) == {split: ROWS[split] for split in task.files}
    assert {path.name for path in folder.glob("input*")} == {f"input{i}" for i in range(len(task.sentences))}
    names = [line.split()[0] for line in (out / "gpt2_bpe" / "dict.txt").read_text().splitlines()]
    assert Dictionary.load(str(folder / "input0" / "dict.txt")).symbols[4:] == names


@pytest.mark.parametrize("name", ["SST-2", "MNLI"])
def test_tasks_are_prepared_in_words(name, tmp_path):
    run("glue_words", write_tsvs(tmp_path / "given", name), tmp_path / "out", name)
    task, folder = glue.TASKS[name], tmp_path / "out" / name / "bin"
    known = {line.split()[0] for line in (folder / "dict.txt").read_text().splitlines()}
    assert json.loads((folder / "about.json").read_text())["rows"] == {x: ROWS[x] for x in task.files}
    for split in task.files:
        sentences, labels = made_up(name, split)
        rows = classified(folder, split)
        for given, (*texts, _) in zip(sentences, rows, strict=True):
            for sentence, text in zip(given, texts, strict=True):
                words = tokenize_penn(sentence).split()
                assert text.split() == [word if word in known else "<unk>" for word in words]
        assert [label for *_, label in rows] == (labels if split in task.labeled else [None] * len(rows))


def test_each_task_is_prepared_once_and_from_one_source(tiny_bpe, in_process, tmp_path, capsys):
    source, out = write_tsvs(tmp_path / "given", "RTE"), tmp_path / "out"
    write_tsvs(source, "SST-2")
    few = flags(source, tiny_bpe, out, "--train-rows", 3)
    prepare("glue", ["RTE", *few])
    prepare("glue", ["SST-2", "RTE", *few])
    printed = capsys.readouterr().out
    assert f"already prepared: {out / 'RTE' / 'bin'}" in printed
    assert labels(out / "SST-2", "train") == [1, 0, 1] and "SST-2: rows: train 3, valid 3, test 4;" in printed
    message = error_of("glue", "RTE", *flags(source, tiny_bpe, out))
    assert "was made with --train-rows 3: use the same" in message


@pytest.mark.parametrize("name, line, message", [
    ("QQP", "0\t1\t2", "has 3 fields instead of 6"),
    ("RTE", "0\tone\t \tentailment", "has an empty sentence2"),
    ("QNLI", "0\tone\ttwo\tmaybe", "has the label 'maybe' instead of one of"),
    ("STS-B", "0\tg\tf\ty\to\ts\ts\tone\ttwo\tnan", "has the score 'nan' instead"),
    ("STS-B", "0\tg\tf\ty\to\ts\ts\tone\ttwo\tgood", "has the score 'good' instead"),
])  # fmt: skip
def test_broken_rows_are_left_out_and_counted(name, line, message, tmp_path, capsys):
    """Also among the first rows of a limited split. A file with more broken rows than others is refused."""
    source = write_tsvs(tmp_path / "given", name)
    path, task = source / name / "train.tsv", glue.TASKS[name]
    complete = [*glue.rows(path, task, "train")]
    header, *lines = path.read_bytes().split(b"\n")
    broken = line.encode()
    path.write_bytes(b"\n".join([header, lines[0], broken, lines[1], broken, *lines[2:]]))
    assert [*glue.rows(path, task, "train")] == complete
    assert f"{path}: left out 2 of 7 rows: line 3 {message}" in capsys.readouterr().out
    assert [*glue.rows(path, task, "train", limit=3)] == complete[:3]
    path.write_bytes(b"\n".join([header, lines[0], broken, broken, broken, b""]))
    with pytest.raises(ValueError, match=re.escape(f"{path} line 3 {message}") + ".*; 3 broken lines"):
        [*glue.rows(path, task, "train")]
    path.write_bytes(header + b"\n")
    with pytest.raises(ValueError, match="has no rows"):
        [*glue.rows(path, task, "train")]


@pytest.mark.parametrize("name, file, line, content, message", [
    ("QQP", "test.tsv", 2, "0\t1\t2\ta\tb\tc", " line 2 has 6 fields instead of 5"),
    ("SST-2", "dev.tsv", 2, "caf\udce9\t1", " is not UTF-8 text (line 2: "),
    ("WNLI", "train.tsv", 1, "index\tsentence1\ttext\tlabel", " line 1 has no column sentence2"),
])  # fmt: skip
def test_malformed_files_are_errors(name, file, line, content, message, tiny_bpe, tmp_path):
    """Test sets must be complete."""
    source, out = write_tsvs(tmp_path / "given", name), tmp_path / "out"
    path = source / name / file
    lines = path.read_bytes().split(b"\n")
    lines[line - 1] = content.encode(errors="surrogateescape")
    path.write_bytes(b"\n".join(lines))
    error = error_of("glue", name, *flags(source, tiny_bpe, out))
    assert error.startswith(f"prepare glue: {path}{message}") and not (out / name).exists()


@pytest.mark.parametrize(("text", "quoted"), [
    ('He said "no".', True), ('"', True), ('"a" and "b"', True), ("no quotes", False),
])  # fmt: skip
def test_texts_that_another_program_has_quoted_are_reported(text, quoted, tmp_path, capsys):
    path = tmp_path / "train.tsv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")  # quotes as pandas does
        writer.writerows([["index", "sentence1", "sentence2", "label"], ["0", text, "two", "1"]])
    assert len([*glue.rows(path, glue.TASKS["WNLI"], "train")]) == 1
    message = f"{path}: 1 rows have texts in quotes with doubled quotes inside, unlike the published file"
    assert (message in capsys.readouterr().out) == quoted


@pytest.mark.parametrize("text", ['"one"', '"one" and "two"', '""', '"', "''one''", 'a ""b"" c'])
def test_quotes_of_published_texts_are_not_reported(text):
    assert not glue.is_quoted(text)


def test_rows_keep_empty_questions_and_carriage_returns(tiny_bpe, in_process, tmp_path):
    source, out = write_tsvs(tmp_path / "given", "QQP"), tmp_path / "out"
    path = source / "QQP" / "train.tsv"
    path.write_bytes(path.read_bytes() + b"8\t1\t2\ttrain\t\t0\n9\t3\t4\tone\rline\ttwo\t1\n")
    prepare("glue", ["QQP", *flags(source, tiny_bpe, out)])
    folder = out / "QQP" / "bin"
    assert decoded(folder / "input0", "train")[5:] == ["train", "one line"]
    assert decoded(folder / "input1", "train")[5:] == ["", "two"]
    assert labels(out / "QQP", "train")[5:] == [0, 1]
    run("glue_words", source, tmp_path / "words", "QQP")
    assert classified(tmp_path / "words" / "QQP" / "bin", "train")[-2] == ("train", "", "0")


def test_published_files_are_downloaded(publish, tiny_bpe, in_process, tmp_path):
    source, out = write_tsvs(tmp_path / "given", "RTE"), tmp_path / "out"
    archive = {f"RTE/{path.name}": path.read_bytes() for path in (source / "RTE").iterdir()}
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    rows = [f"{i % 2}\t{i}\t{i + 100}\tthe {i}\tother {i}\n" for i in range(6)]
    contents = {
        "RTE.zip": write_zip(tmp_path / "RTE.zip", archive).read_bytes(),
        "msr_paraphrase_train.txt": (header + "".join(rows)).encode(),
        "msr_paraphrase_test.txt": (header + "".join(rows[:2])).encode(),
        "mrpc_dev_ids.tsv": b"4\t104\n1\t101\n1\t105\n",
    }
    for name in ("RTE", "MRPC"):
        for file, facts in glue.Glue("glue").facts[name]["files"].items():
            publish(facts, contents.pop(file))
    assert not contents
    for _ in range(2):
        prepare("glue", ["RTE", "MRPC", "--bpe", tiny_bpe, "--out", out, "--workers", 1])
        assert len(publish.requests) == 8  # a missing mirror each
    texts = [text.strip() for text, _ in made_up("RTE", "valid")[0]]
    assert decoded(out / "RTE" / "bin" / "input0", "valid") == texts
    mrpc = out / "MRPC" / "bin" / "input1"
    assert decoded(mrpc, "train") == ["other 0", "other 2", "other 3", "other 5"]
    assert decoded(mrpc, "valid") == ["other 1", "other 4"]
    assert decoded(mrpc, "test") == ["other 0", "other 1"]
    assert labels(out / "MRPC", "valid") == [1, 0]


def test_real_tasks_have_the_published_rows(published):
    for name in ("RTE", "CoLA", "SST-2", "STS-B", "WNLI"):
        for split, file in glue.TASKS[name].files.items():
            rows = glue.rows(published / "glue" / name / file, glue.TASKS[name], split)
            assert sum(1 for _ in rows) == glue.Glue("glue").facts[name]["rows"][split]
