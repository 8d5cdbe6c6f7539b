"""Invalid calls of preparations end with one line, and leave nothing behind.

A row is the corpus with its arguments, and a part of the message; a name in braces is one of ``places``.
"""

import json
import os

import pytest
from small_corpora import write_tokens
from tiny import run_here, write_text

from data_prep import prepare as command
from data_prep.fetch import SOURCES

SPLITS = ("train", "valid", "test")
GOOD = {
    "wikitext103": "--from {tokens}",
    "wikitext103_bpe": "--from {raw}",
    "wikitext_mini": "--from {tokens}",
    "wikitext_mini_chars": "--from {tokens}",
    "wikitext_mini_bpe": "--from {tokens}",
    "books": "--from {text}",
    "wikibook": "--from {text}",
    "wikipedia": "--from {text} --sentencepiece 60",
    "glue": "RTE --from {glue}",
    "glue_words": "RTE --from {glue}",
    "imdb": "--from {reviews}",
    "imdb_lm": "--from {reviews} --sentencepiece 60",
    "snli": "--from {snli}",
    "sentences": "--from {labelled}",
    "squad": "--from {questions} --pieces 60",
    "cmrc2018": "--from {questions} --pieces 60",
    "lra_text": "--from {reviews}",
    "lra_image": "--from {pictures}",
    "lra_retrieval": "--from {papers}",
    "lra_retrieval_mini": "--from {tokens}",
    "imagenet": "--from {pictures}",
    "cifar10": "--from {pictures}",
    "listops": "--from {expressions}",
    "pathfinder": "--from {contours}",
    "wmt14_en_de": "--from {pairs} --bpe-types 60",
    "multi30k": "--from {pairs} --bpe-types 60",
    "text": "--from {text} --sentencepiece 60",
}
"""{corpus: arguments that select valid sources; those in GPT-2 BPE have --bpe, too}"""

TEXTS = {
    "no_bytes": (b"", "is empty or blank: expected text"),
    "blank": (b"\n \n", "is empty or blank: expected text"),
    "binary": (bytes(range(256)) * 9, "is not UTF-8 text"),
    "utf16": ("ein Text\n".encode("utf-16"), "is not UTF-8 text but UTF-16: convert it to UTF-8, for"),
    "utf16_unmarked": ("ein Text\n".encode("utf-16-le"), "contains zero bytes, like UTF-16 text: convert it"),
    "old_mac": (b"one text\rtwo\r", "has only carriage returns as line ends: convert them to newlines, for"),
    "latin1": ("für\n".encode("latin-1"), "is not UTF-8 text"),
}
"""{folder: content of its train.txt, valid.txt and test.txt, and a part of the message}"""

CALLS = [
    *(
        (f"{name} {'RTE' if name.startswith('glue') else ''} --from {{{place}}}", f"{{{place}}}")
        for name in GOOD
        for place in ("nowhere", "file", "empty", "loop", "pipe")
    ),
    *(
        (f"{name} --from {{{content}}}", message)
        for name in ("text", "wikipedia", "wikibook", "wikitext_mini", "books")
        for content, (_, message) in TEXTS.items()
    ),
    (
        "wmt14_en_de --from {pairs} --valid newstest2013",
        "--valid is for the published archives: it",
    ),
    ("wmt14_en_de --valid newstest2014", "invalid choice: 'newstest2014' (choose from"),
    ("text --from {folders}", "{folders}/train.txt is missing: --from takes a folder with train.txt"),
    ("wikitext103 --from {text}", "wiki.train.tokens is missing: --from takes wikitext-103-v1.zip"),
    ("wikitext103 --from {archive}", "{archive} is not the published wikitext-103-v1.zip: it has"),
    (
        "wikitext_mini --from {untitled}",
        "wiki.valid.tokens has no article title: expected a file of WikiText",
    ),
    ("books --from {text} --bpe {nowhere}", "{nowhere}/encoder.json is missing: put a copy of the published"),
    ("glue RTE --from {text}", "{text}/RTE/train.tsv is missing: expected train.tsv, dev.tsv, test.tsv"),
    ("glue RTE --from {glue_utf16}", "train.tsv is not UTF-8 text but UTF-16: convert it"),
    ("glue RTE --from {glue_cut}", "train.tsv line 2 has 2 fields instead of 4"),
    ("glue RTE --from {glue_no_bytes}", "train.tsv line 1 has no column"),
    ("glue Rte --from {glue}", "Rte"),
    ("glue_words STS-B --from {glue}", "STS-B has scores instead of classes: choose from CoLA"),
    (
        "glue_words RTE --from {glue} --vectors {nowhere}",
        "{nowhere} is missing: expected a file of word vectors",
    ),
    (
        "imdb --from {reviews} --vectors {empty}",
        "{empty} is missing: expected a file of word vectors in GloVe's format",
    ),
    ("imdb --from {reviews} --vectors {file}", "{file} line 1 has 'text' instead of a finite number"),
    ("imdb --from {reviews} --vectors {vectors}", "{vectors} has vectors for none of the 3 words"),
    ("imdb --vectors=", "argument --vectors: must be a path, not an empty string"),
    ("lra_text --from {text}", "{text} contains none of the expected files: see --help"),
    ("lra_text --from {archive}", "{archive} is not a complete zip or tar archive"),
    ("lra_image --from {archive}", "{archive} is not a complete zip or tar archive"),
    ("lra_image --from {pictures} --size 33", "--size 33 exceeds the 32 pixels"),
    (
        "lra_image --from {pictures}",
        "{pictures} has 1 training images and no validation images: expected at least 10 training",
    ),
    ("snli --from {snli}", "the training set has only the label 'neutral': expected at least two labels"),
    ("sentences --from {few}", "no word occurs 4 times in the training set: use more text"),
    ("snli --from {snli} --cut 1 1 1", "{snli} is not a file: --cut is for one file of JSON lines"),
    ("snli --cut 1 1 1", "--cut requires --from FILE, the file to split"),
    ("squad --from {questions}/dev-v2.0.json", "dev-v2.0.json is not a folder: --from takes a folder with"),
    (
        "squad --from {questions} --cut 1 1 --pieces 60",
        "{questions} is not a file: --cut requires a single JSON file",
    ),
    ("squad --from {file} --cut 1 1 --pieces 60", "{file} is not valid JSON (Expecting value"),
    ("squad --cut 1 1", "--cut requires --from FILE, the file to split"),
    ("squad --from {file} --cut 1 1 --version 1.1", "--version selects published files: it cannot be"),
    (
        "squad --version du --pieces 60",
        "--from is missing: pass a folder with the files of https://github.com/xinyadu/nqg",
    ),
    ("squad --from {questions} --bert {nowhere}", "vocab.txt of {nowhere} could not be downloaded from"),
    ("squad --from {questions} --bert {empty}", "{empty}/vocab.txt is missing: expected BERT's vocab.txt"),
    ("squad --from {questions} --pieces 9", "--pieces 9 is too few for the "),
    (
        "squad --from {questions} --longest 15",
        "argument --longest: must be an integer of at least 16, not '15'",
    ),
    (
        "squad --from {text} --pieces 60",
        "{text}/train-v2.0.json is missing: put a copy of the published",
    ),
    ("sentences", "--from is missing: pass a folder with train.input0.txt, train.label"),
    ("sentences --from {text}", "{text}/train.input0.txt is missing: --from takes a folder with"),
    (
        "lra_retrieval",
        "--from is missing: pass a folder with new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv",
    ),
    ("lra_retrieval --from {text}", "{text}/new_aan_pairs.train.tsv is missing: --from takes a folder with"),
    ("lra_retrieval_mini", "--from is missing: pass a folder with WikiText's train, valid and test"),
    ("lra_retrieval_mini --from {text}", "{text}/train.txt has fewer than two articles of two segments"),
    (
        "imagenet",
        "--from is missing: pass a folder with ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and",
    ),
    (
        "cifar10",
        "--from is missing: pass a folder with {{train,valid,test}}/CLASS/*.jpg, .png or other",
    ),
    (
        "cifar10 --from {pictures} --shorter-side 0",
        "--shorter-side: must be an integer of at least 1, not '0'",
    ),
    ("cifar10 --from {archive}", "{archive} is not a complete zip or tar archive"),
    (
        "listops --from {text}",
        "{text}/basic_train.tsv is missing: --from takes a folder with basic_train.tsv",
    ),
    (
        "listops --from {expressions} --depth 4",
        "--depth is for generated data: it cannot be combined with --from",
    ),
    ("listops --length 100 100", "--length 100 100: MAX must be at least MIN + 2"),
    ("listops --rows 8 0 1", "argument --rows: must be an integer of at least 1, not '0'"),
    (
        "pathfinder --from {text}",
        "{text}/metadata/*.npy list 0 images instead of 10 or more: --from takes a published",
    ),
    ("pathfinder --from {contours_pipe}", "{contours_pipe}/metadata/0.npy is not a regular file"),
    ("pathfinder --from {contours}", "8 of 8 images are unreadable, for example {contours}/imgs/0/sample"),
    ("pathfinder --from {contours} --window 16", "--window is for generated data: it cannot be"),
    ("pathfinder --window 7", "argument --window: must be an integer of at least 8, not '7'"),
    (
        "pathfinder --window 8 --contour-length 40",
        "--contour-length 40 is too large: in 5,000 trials, two such contours",
    ),
    ("multi30k --from {pairs_utf16}", "train.de is not UTF-8 text"),
    ("multi30k --from {pairs_uneven}", "train.en has 36 lines, but {pairs_uneven}/train.de has 35"),
    ("multi30k --from {pairs_no_bytes}", "train.de is empty or blank: expected text"),
    ("multi30k --from {pairs} --sentencepiece --bpe-types 1", "SentencePiece cannot learn 1 pieces ("),
    (
        "multi30k",
        "--from is missing: pass a folder with raw text as {{train,valid,test}}.{{en,de}} (see https://github.com/multi",
    ),
    ("wikibook --from {lone_dictionary}", "lone_dictionary/dict.txt is not the published dict.txt"),
    ("wikibook --from {lone_dictionary} --shards 2", "--shards requires a folder with text"),
    ("wikibook --from {lone_dictionary} --bpe-types 300", "--bpe-types requires a folder with text"),
    (
        "glue RTE --from {glue} --bpe-types 255",
        "argument --bpe-types: must be an integer of at least 256, not '255'",
    ),
    ("text --from {text} --sentencepiece 1", "SentencePiece cannot learn 1 pieces ("),
    ("text --from {text} surplus", "unrecognized arguments: surplus"),
    ("text --from=", "argument --from: must be a path, not an empty string"),
    ("text --from {text} --sentencepiece 60 --out {loop}", "{loop} is not a writable folder"),
    ("text --workers 1.5", "argument --workers: must be an integer of at least 1, not '1.5'"),
    ("../text", "unknown corpus '../text' (did you mean 'text'?): `bash data_prep/prepare.sh` lists"),
    ("--nosuch", "unknown corpus '--nosuch': `bash data_prep/prepare.sh` lists"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")

    def files(name, contents):
        for file, content in contents.items():
            (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / file).write_bytes(content)

    for name in ("text", "empty"):
        (folder / name).mkdir()
    write_text(folder / "text")
    write_tokens(folder / "tokens")
    files(
        ".", {"file": b"a text\n", "vectors": b"nothing 1 2\n", "wikitext-103-v1.zip": b"PK\x03\x04 another"}
    )
    for name, (content, _) in TEXTS.items():
        files(name, {f"{split}.txt": content for split in SPLITS})
    files("folders", {"train.txt/x": b"", "valid.txt/x": b"", "test.txt/x": b""})
    names = [
        f"{split}/{label}/{i}.txt" for split in ("train", "test") for label in ("pos", "neg") for i in "ab"
    ]
    files("reviews", dict.fromkeys(names, b"a film and a film and a film and a film"))
    pair = b'{"premise": "a", "hypothesis": "b", "label": "neutral"}\n'
    files("snli", {f"snli_1.0_{split}.jsonl": pair for split in ("train", "dev", "test")})
    answer = {"text": "a text", "answer_start": 0}
    asked = {"question": "a question?", "id": "1", "answers": [answer]}
    squad = json.dumps({"data": [{"paragraphs": [{"context": "a text, a text", "qas": [asked]}]}]}).encode()
    names = ("train-v2.0", "dev-v2.0", "cmrc2018_train", "cmrc2018_dev")
    files("questions", {f"{name}.json": squad for name in names})
    files("labelled", {f"{split}.{end}": b"a\n" * 4 for split in SPLITS for end in ("input0.txt", "label")})
    files("few", {f"{split}.{end}": b"a\nb\n" for split in SPLITS for end in ("input0.txt", "label")})
    files("pictures", {"train/cat/0.png": b"none"})
    files("expressions", {f"basic_{x}.tsv": b"Source\tTarget\n3\t3\n" for x in ("train", "val", "test")})
    files("contours", {"imgs/0/sample_0.png": b"none", "metadata/0.npy": b"imgs/0 sample_0.png 0 1\n" * 10})
    files("papers", {f"new_aan_pairs.{split}.tsv": b"1\ta\tb\tc\td\n" for split in ("train", "eval", "test")})
    files("raw", {f"wiki.{split}.raw": b"a text\n" for split in SPLITS})
    files("untitled", {f"wiki.{split}.tokens": b"a text\n" * 9 for split in SPLITS})
    files("lone_dictionary", {"dict.txt": b"a 1\n"})
    pairs = {f"{split}.{language}": b"a sentence\n" * 36 for split in SPLITS for language in ("en", "de")}
    rows = b"index\tsentence1\tsentence2\tlabel\n" + b"0\ta\tb\tentailment\n" * 9
    test = b"index\tsentence1\tsentence2\n" + b"0\ta\tb\n" * 9
    glue = {"RTE/train.tsv": rows, "RTE/dev.tsv": rows, "RTE/test.tsv": test}
    for name, change in {
        "": lambda content: content,
        "_utf16": lambda content: content.decode().encode("utf-16"),
        "_no_bytes": lambda content: b"",
    }.items():
        files(f"pairs{name}", {**pairs, "train.de": change(pairs["train.de"])})
        files(f"glue{name}", {**glue, "RTE/train.tsv": change(rows)})
    files("pairs_uneven", {**pairs, "train.de": b"a sentence\n" * 35})
    files("glue_cut", {**glue, "RTE/train.tsv": rows[: rows.index(b"\tb")]})
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / "contours_pipe/metadata").mkdir(parents=True)
    os.mkfifo(folder / "contours_pipe/metadata/0.npy")
    names = {path.name: path for path in folder.iterdir()}
    return {**names, "nowhere": folder / "nowhere", "archive": names["wikitext-103-v1.zip"]}


def tree(folder):
    """Returns {path: modification time} of everything in a folder."""
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


def check_error(words, places, message, folder):
    """Makes an invalid call, and checks its message and that the folder is unchanged."""
    before = tree(folder)
    done = run_here(command.main, *(word.format(**places) for word in words))
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and message.format(**places) in last, done.stderr
    assert last.startswith(("prepare", "lrpe prepare")) and (
        "error: " in last or done.stderr.count("\n") == 1
    )
    assert {path: tree(folder)[path] for path in before} == before and tree(folder).keys() == before.keys()


@pytest.mark.parametrize(("words", "message"), CALLS)
def test_invalid_calls_are_errors_of_one_line(words, message, places, tmp_path):
    name, *words = words.split()
    out = [] if "--out=" in words or name not in GOOD else ["--out", str(tmp_path / "far" / "out")]
    check_error([name, *out, *words], places, message, tmp_path)


@pytest.mark.parametrize("out", ["{file}", "{file}/below", "{file}/far/below", "/dev/null/x", "/proc/far/x"])
@pytest.mark.parametrize("name", GOOD)
def test_output_folders_that_are_not_writable_are_errors(name, out, places):
    """File modes are not tested because root may write anywhere."""
    words = [name, *GOOD[name].split(), "--out", out]
    check_error(words, places, "is not a writable folder (", places["file"].parent)


@pytest.mark.parametrize("product", ["bin", "text"])
def test_files_of_the_user_are_not_overwritten(product, places, tmp_path):
    words = ["text", *GOOD["text"].split(), "--out", str(tmp_path)]
    message = f"{tmp_path / product} was not created by this command: remove it, or change --out"
    (tmp_path / product).write_text("of the user")
    check_error(words, places, message, tmp_path)
    (tmp_path / product).unlink()
    (tmp_path / product).mkdir()
    check_error(words, places, message, tmp_path)


def test_damaged_data_is_an_error(places, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "source.txt").write_text(f"{places['text']} in 60 sentence pieces\n")
    words = ["text", *GOOD["text"].split(), "--out", str(tmp_path)]
    check_error(words, places, f"{tmp_path / 'bin'} is damaged: remove it and prepare it again", tmp_path)


@pytest.mark.parametrize("name", ["wikitext103_bpe", "wikitext_mini_bpe", "books", "wikibook", "glue"])
def test_a_dictionary_of_another_corpus_is_an_error(name, tiny_bpe, places, tmp_path):
    (tiny_bpe / "dict.txt").write_text("a 1\n")
    words = [name, *GOOD[name].split(), "--bpe", str(tiny_bpe), "--out", str(tmp_path / "far" / "out")]
    check_error(words, places, "dict.txt is not the published dict.txt: it has 4 bytes instead of", tmp_path)


def test_an_unreachable_mirror_is_an_error(monkeypatch, places, tmp_path):
    monkeypatch.setitem(SOURCES["wikitext103"], "mirrors", ["http://127.0.0.1:1"])
    words = ["wikitext103", "--out", str(tmp_path / "far" / "out")]
    check_error(words, places, "wikitext-103-v1.zip is unreachable (Connection refused)", tmp_path)
