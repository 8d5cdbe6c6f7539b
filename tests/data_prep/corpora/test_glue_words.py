"""GLUE's tasks in words, with the made-up rows of test_glue."""

import json

import pytest
from small_corpora import classified, prepare, refused
from test_glue import ROWS, made_up, write_tsvs

from data_prep.corpora import glue
from data_prep.corpora.glue_words import GlueWords
from data_prep.penn_treebank import tokenize_penn


def flags(source, out, *more):
    return [str(x) for x in ("--from", source, "--out", out, "--workers", 1, *more)]


@pytest.mark.parametrize("name", ["SST-2", "QQP", "MNLI", "QNLI"])
def test_a_task_is_read_back_in_words(name, tmp_path, capsys):
    source, out = write_tsvs(tmp_path / "given", name), tmp_path / "out"
    prepare("glue_words", [name, *flags(source, out)])
    task, folder = glue.TASKS[name], out / name / "bin"
    known = {line.split()[0] for line in (folder / "dict.txt").read_text().splitlines()}
    assert json.loads((folder / "about.json").read_text())["rows"] == {x: ROWS[x] for x in task.files}
    for split in task.files:
        sentences, labels = made_up(name, split)
        rows = classified(folder, split)
        for given, (*texts, _) in zip(sentences, rows, strict=True):
            for sentence, text in zip(given, texts, strict=True):
                words = tokenize_penn(sentence).split()
                assert text.split() == [word if word in known else "<unk>" for word in words]
        assert [label for *_, label in rows] == (labels if split in task.labelled else [None] * len(rows))
    assert "train" in known
    assert f"published: train {glue.SOURCE[name]['rows']['train']:,}" in capsys.readouterr().out


def test_the_papers_tasks_and_which_there_are(tmp_path, capsys):
    source, out = tmp_path / "given", tmp_path / "out"
    for name in GlueWords.default:
        write_tsvs(source, name)
    prepare("glue_words", flags(source, out, "--train-rows", 4))
    assert sorted(path.parent.name for path in out.glob("*/bin")) == ["MNLI", "QNLI", "QQP", "SST-2"]
    assert "rows: train 4, valid 3, test 4; published:" in capsys.readouterr().out
    message = refused("glue_words", "STS-B", *flags(source, tmp_path / "other"))
    assert message.startswith("prepare glue_words: STS-B has no labels: choose from CoLA, SST-2, MRPC, QQP")
    assert "line 1 is no word" in refused(
        "glue_words", "QQP", *flags(source, tmp_path / "other", "--vectors", empty(tmp_path))
    )
    assert not (tmp_path / "other").exists()


def empty(folder):
    (folder / "empty").write_text("")
    return folder / "empty"


def test_an_empty_question_stays_empty(tmp_path):
    source, out = write_tsvs(tmp_path / "given", "QQP"), tmp_path / "out"
    path = source / "QQP" / "train.tsv"
    path.write_bytes(path.read_bytes() + b"8\t1\t2\ttrain\t\t0\n")
    prepare("glue_words", ["QQP", *flags(source, out)])
    assert classified(out / "QQP" / "bin", "train")[-1] == ("train", "", "0")
