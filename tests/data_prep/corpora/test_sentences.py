"""The user's own labeled texts and pairs of texts."""

import unicodedata

import pytest
from small_corpora import classified, error_of, run, write_files

from fairseq_lrpe.experiments.execution.evaluators.predictions import read_predictions
from fairseq_lrpe.experiments.inference import classify

ONE = {
    "train.input0.txt": b"a good one\na bad one\n" * 5,
    "train.label": b"gut\nsehr schlecht\n" * 5,
    "valid.input0.txt": "a bad idea\r\none good\u2028 one\n".encode(),
    "valid.label": b"sehr schlecht\r\ngut\n",
}
SECOND = {"train.input1.txt": b"who\nwhat\n" * 5, "valid.input1.txt": b"what\nwhat"}
TEST = {"test.input0.txt": b"one\n", "test.label": b"gut\n"}


def test_texts(tmp_path, capsys):
    folder = run("sentences", write_files(tmp_path / "given", ONE), tmp_path / "out")
    rows = [("a good one", "gut"), ("a bad one", "sehr schlecht")]
    assert classified(folder, "train") == rows * 5
    assert classified(folder, "valid") == [("a bad <unk>", "sehr schlecht"), ("one good one", "gut")]
    assert "rows: train 10, valid 2\nlabels: gut, sehr schlecht" in capsys.readouterr().out
    few = run("sentences", tmp_path / "given", tmp_path / "few", "--train-rows", "8")
    assert classified(few, "train") == rows * 4


def test_labels_may_be_composed_or_decomposed(tmp_path):
    labels = {"train.label": "né\nnon\n" * 5, "valid.label": "non\nné\n"}
    forms = dict(zip(labels, ("NFD", "NFC"), strict=True))
    changed = {name: unicodedata.normalize(forms[name], text).encode() for name, text in labels.items()}
    folder = run("sentences", write_files(tmp_path / "given", ONE | changed), tmp_path / "out")
    assert [row[-1] for row in classified(folder, "valid")] == ["non", unicodedata.normalize("NFC", "né")]


def test_marks_line_separators_and_hidden_files(tmp_path):
    """The predictions of labels with a line separator are read as they were written."""
    marks = {
        "train.input0.txt": "\ufeff" + "a\rgood\u2028one\r\na bad\x85one\r\n" * 5,
        "train.label": "\ufeff" + "gut\r\nsehr\u2028schlecht\r\n" * 5,
    }
    given = {**ONE, **{name: text.encode() for name, text in marks.items()}, "._train.input0.txt": b"\0\xff"}
    given["valid.label"] = "sehr\u2028schlecht\ngut\n".encode()
    folder = run("sentences", write_files(tmp_path / "given", given), tmp_path / "out")
    rows = [("a good one", "gut"), ("a bad one", "sehr\u2028schlecht")]
    assert classified(folder, "train") == rows * 5
    labels = [label for _, label in classified(folder, "valid")]
    (tmp_path / "predictions.tsv").write_text(classify.tsv([(label, label) for label in labels]))
    assert read_predictions(tmp_path / "predictions.tsv") == (labels, labels)


def test_pairs_and_a_test_set(tmp_path):
    more = {**TEST, "test.input1.txt": b"who\n"}
    folder = run("sentences", write_files(tmp_path / "given", {**ONE, **SECOND, **more}), tmp_path / "out")
    assert classified(folder, "train")[:2] == [
        ("a good one", "who", "gut"),
        ("a bad one", "what", "sehr schlecht"),
    ]
    assert classified(folder, "test") == [("one", "who", "gut")]


@pytest.mark.parametrize("change, message", [
    ({"train.input0.txt": b"a\n" * 9}, "train.input0.txt has 9 lines, but {}/train.label has 10"),
    ({"valid.label": b"gut\n \n"}, "valid.label line 2 is empty: each text needs a label"),
    ({"valid.label": b"gut\t\nsehr\tschlecht\n"}, "valid.label line 2 has a tab in its label: replace"),
    ({"valid.label": b"gut\ngood\n"}, "the label 'good', but the training set has only gut"),
])  # fmt: skip
def test_invalid_files_are_errors(change, message, tmp_path):
    folder = write_files(tmp_path / "given", {**ONE, **change})
    sentence = error_of("sentences", "--from", folder, "--out", tmp_path / "out")
    assert message.format(folder) in sentence and not (tmp_path / "out").exists()
