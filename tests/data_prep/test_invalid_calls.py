"""Invalid calls of preparations end with one line, and leave nothing behind.

A row is the corpus with its arguments, and a part of the message; a name in braces is one of ``places``.
"""

import json

import pytest
from small_corpora import SPLITS, write_files
from support.tiny import run_here, write_text

from data_prep import prepare as command

TEXTS = {
    "blank": (b"\n \n", "is empty or blank: expected text"),
    "binary": (bytes(range(256)) * 9, "is not UTF-8 text"),
    "utf16": ("ein Text\n".encode("utf-16"), "is not UTF-8 text but UTF-16"),
}
"""{folder: content of its train.txt, valid.txt and test.txt, and a part of the message}"""

CALLS = [
    *((f"text --from {{{content}}}", message) for content, (_, message) in TEXTS.items()),
    ("glue RTE --from {nowhere}", "{nowhere} is missing: --from takes a folder"),
    ("text --from {file}", "{file} has no files with documents: expected .txt, .jsonl, .csv"),
    ("lra_retrieval --from {file}", "{file}/new_aan_pairs.train.tsv cannot be read or written (Not a dir"),
    ("text --from {empty}", "{empty} has no files with documents: expected .txt, .jsonl, .csv"),
    ("text --from {text} --sentencepiece 1", "SentencePiece cannot learn 1 pieces ("),
    ("wikitext103 --from {archive}", "{archive} is not the published wikitext-103-v1.zip: it has"),
    ("wikitext_mini --from {untitled}", "has no article title (a line ` = Title = ` between"),
    ("wikibook --from {lone_dictionary} --bpe-types 300", "--bpe-types requires a folder with text"),
    ("books --from {text} --bpe {empty}", "{empty}/encoder.json cannot be read or written (No such file"),
    ("glue Rte --from {glue}", "Rte"),
    ("glue_words STS-B --from {glue}", "STS-B has scores instead of classes"),
    ("glue_words RTE --from {text}", "{text}/RTE/train.tsv is missing"),
    ("glue_words RTE --from {glue} --vectors {file}", "{file} line 1 has 'text' instead"),
    ("lra_text --from {text}", "has fewer than two files train/neg/*.txt"),
    ("sentences", "--from is missing: pass a folder"),
    ("sentences --from {one}", "the training set has only the label 'a'"),
    ("sentences --from {few}", "no word occurs 4 times in the training set"),
    ("snli --from {empty} --cut 1 1 1", "--cut requires --from FILE"),
    ("snli --from {lines}", "{lines} is a single file: add --cut"),
    ("squad --from {questions}/dev-v2.0.json", "is a single file: add --cut"),
    ("squad --from {questions} --cut 1 1", "--cut requires --from FILE"),
    ("squad --version 3.0", "--version: invalid choice: '3.0' (choose from '2.0', '1.1', 'du')"),
    ("squad --version du", "--from is missing: pass a folder"),
    ("squad --bert x --pieces 60", "--pieces learns a vocabulary"),
    ("squad --from {questions} --bert {empty}", "{empty}/vocab.txt is missing"),
    ("squad --from {questions} --pieces 9", "--pieces 9 is too few for the "),
    ("lra_retrieval_mini --from {text}", "{text}/train.txt has fewer than two articles"),
    ("listops --from {empty} --depth 4", "--depth is for generated data"),
    ("pathfinder --from {text}", "{text}/metadata/*.npy list 0 images"),
    ("pathfinder --from {fields}", "{fields}/metadata/0.npy: row 1 is not FOLDER IMAGE NUMBER LABEL"),
    ("pathfinder --window 8 --contour-length 40", "--contour-length 40 is too large"),
    ("multi30k --from {pairs_uneven}", "train.en has 36 lines, but {pairs_uneven}/train.de has 35"),
    ("wmt14_en_de --from {pairs_uneven} --valid newstest2013", "--valid is for the published archives"),
    ("text --from {text} --out {file}/below", "{file}/below is not a writable folder ("),
    ("text --from {text} --out {text}/o,ut", "--out {text}/o,ut has ',', at which fairseq splits paths"),
    ("listops --out {text}/o:ut", "--out {text}/o:ut has ':', at which fairseq splits paths: choose another"),
    ("../text", "unknown corpus '../text' (did you mean 'text'?)"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")

    def files(name, contents):
        write_files(folder / name, contents)

    for name in ("text", "empty"):
        (folder / name).mkdir()
    write_text(folder / "text")
    files(".", {"file": b"a text\n", "lines.jsonl": b"{}\n", "wikitext-103-v1.zip": b"PK\x03\x04 another"})
    for name, (content, _) in TEXTS.items():
        files(name, {f"{split}.txt": content for split in SPLITS})
    asked = {"question": "a question?", "id": "1", "answers": [{"text": "a text", "answer_start": 0}]}
    squad = json.dumps({"data": [{"paragraphs": [{"context": "a text, a text", "qas": [asked]}]}]}).encode()
    files("questions", {f"{name}.json": squad for name in ("train-v2.0", "dev-v2.0")})
    files("one", {f"{split}.{end}": b"a\n" * 4 for split in SPLITS for end in ("input0.txt", "label")})
    files("fields", {"metadata/0.npy": b"imgs/0 sample_0.png 0\n"})
    files("few", {f"{split}.{end}": b"a\nb\n" for split in SPLITS for end in ("input0.txt", "label")})
    files("untitled", {f"wiki.{split}.tokens": b"a text\n" * 9 for split in SPLITS})
    files("lone_dictionary", {"dict.txt": b"a 1\n"})
    pairs = {f"{split}.{language}": b"a sentence\n" * 36 for split in SPLITS for language in ("en", "de")}
    files("pairs_uneven", {**pairs, "train.de": b"a sentence\n" * 35})
    rows = b"index\tsentence1\tsentence2\tlabel\n" + b"0\ta\tb\tentailment\n" * 9
    test = b"index\tsentence1\tsentence2\n" + b"0\ta\tb\n" * 9
    files("glue", {"RTE/train.tsv": rows, "RTE/dev.tsv": rows, "RTE/test.tsv": test})
    names = {path.name: path for path in folder.iterdir()}
    names |= {"archive": names["wikitext-103-v1.zip"], "lines": names["lines.jsonl"]}
    return {**names, "nowhere": folder / "nowhere"}


def tree(folder):
    """Returns {path: modification time} of everything in a folder."""
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


def check_error(words, places, message, folder):
    """Makes an invalid call, and checks its message and that the folder is unchanged."""
    before = tree(folder)
    done = run_here(command.main, *(word.format(**places) for word in words))
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and message.format(**places) in last, done.stderr
    assert last.startswith(("prepare", "lrpe prepare"))
    assert "error: " in last or done.stderr.count("\n") == 1
    assert {path: tree(folder)[path] for path in before} == before and tree(folder).keys() == before.keys()


@pytest.mark.parametrize(("words", "message"), CALLS)
def test_invalid_calls_are_errors_of_one_line(words, message, places, tiny_bpe, tmp_path):
    name, *words = words.split()
    out = ["--out", str(tmp_path / "far" / "out")] if name in command.CORPORA else []
    if name in ("glue", "books", "wikibook", "wikitext103_bpe", "wikitext_mini_bpe") and "--bpe" not in words:
        out += ["--bpe", str(tiny_bpe)]
    check_error([name, *out, *words], places, message, tmp_path)


@pytest.mark.parametrize("file, content, message", [
    ("bin/notes", b"", "{0}/bin was not created by this command: remove it, or change --out"),
    ("text/notes", b"", "{0}/text was not created by this command: remove it, or change --out"),
    ("bin/source.json", b"", "{0}/bin/source.json is damaged: remove {0}/bin, or change --out"),
    ("bin/source.json", b"[]", "{0}/bin/source.json is damaged: remove {0}/bin, or change --out"),
])  # fmt: skip
def test_folders_of_the_user_are_not_overwritten(file, content, message, places, tmp_path):
    write_files(tmp_path, {file: content})
    words = ["text", "--from", "{text}", "--out", str(tmp_path)]
    check_error(words, places, message.format(tmp_path), tmp_path)
