"""Questions and answers, from SQuAD's format to what fairseq's tasks read."""

import json
import random
import subprocess

import pytest
from fairseq.data import Dictionary, data_utils
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from small_corpora import error_of, prepare, write_files
from support.tiny import BIN

from data_prep.corpora import questions
from data_prep.fetch import SOURCES
from fairseq_lrpe.data import word_pieces

TYPES = "[PAD] [UNK] [CLS] [SEP] [MASK] ? . , ' Who who in norman ##s live Rome".split()
SPLITS = ("train", "valid")


def paragraph(i, filler=9):
    """Returns a paragraph about the year 1000 + i with three answerable questions and one other."""
    home = "far away from home " * filler
    context = f"In {1000 + i} the  Normans\nlived in town {i}, {home}and {i}."
    answers = [{"text": x, "answer_start": context.index(x[:3])} for x in ("the  Normans", "Normans")]
    asked = [
        {"id": f"{i}-{k}", "question": f"Who was\tthere in {1000 + i}, {k}?", "answers": answers}
        for k in range(3)
    ]
    none = {"id": f"{i}-none", "question": "Why?", "answers": [], "is_impossible": True}
    return {"context": context, "qas": [*asked, {**none, "plausible_answers": [{"text": "far"}]}]}


def squad(paragraphs, in_article=2):
    """Returns the content of a file of questions."""
    groups = [paragraphs[i : i + in_article] for i in range(0, len(paragraphs), in_article)]
    return json.dumps({"version": "v2.0", "data": [{"title": "a", "paragraphs": x} for x in groups]}).encode()


def one_answer(answers):
    return squad([{"context": "a b", "qas": [{"question": "c", "answers": answers}]}])


def chinese(i):
    context = f"第{i}年，北京人住在上海。这是中国的城市。"
    found = {"text": "北京人", "answer_start": 0}  # wrong, as in some rows of CMRC
    asked = {"id": f"q{i}", "question": "谁住在上海？", "answers": [found]}
    return {"id": str(i), "context": context, "qas": [asked]}


@pytest.fixture
def file(tmp_path):
    return write_files(tmp_path, {"own.json": squad([paragraph(i) for i in range(12)])}) / "own.json"


def cut_flags(file, out, *more, cut=(24, 9), pieces=("--pieces", 120)):
    return ["--from", file, "--cut", *cut, "--out", out, *pieces, *more]


def rows(data, split):
    """Returns (tokens of the source, tokens of the question) of each row, as fairseq reads them."""
    sides = []
    for side in questions.SIDES:
        dictionary = Dictionary.load(str(data / f"dict.{side}.txt"))
        found = data_utils.load_indexed_dataset(str(data / f"{split}.source-question.{side}"), dictionary)
        sides.append([[dictionary[i] for i in row] for row in found])
    return list(zip(*sides, strict=True))


def lines(out, name):
    return (out / "text" / name).read_text(encoding="utf-8").splitlines()


def test_one_file_is_split_by_paragraphs(file, tmp_path, capsys):
    out = tmp_path / "out"
    prepare("squad", cut_flags(file, out, cut=(25, 10)))
    printed = capsys.readouterr().out
    assert "own.json: 12 questions are blank or have no answer and are skipped" in printed
    assert "rows: train 24, valid 9\n" in printed  # another paragraph would make it 27 and 12
    data = out / "bin"
    contexts = {split: lines(out, f"{split}.context") for split in SPLITS}
    assert not set(contexts["train"]) & set(contexts["valid"])
    assert contexts["valid"][0].startswith("In 1008 the Normans lived in town 8, far")
    assert lines(out, "valid.answer")[0] == "the Normans"
    assert lines(out, "valid.question")[:2] == ["Who was there in 1008, 0?", "Who was there in 1008, 1?"]

    about = word_pieces.read_preparation(data)
    assert about == {
        **{"tokenizer": "bert", "lowercase": False, "language": "en", "pieces_of": None},
        **{"longest": 512, "longest_answer": 100, "longest_question": 50},
    }
    pieces = word_pieces.load(data)
    for split in SPLITS:
        found = rows(data, split)
        assert len(found) == len(contexts[split])
        for i, (source, asked) in enumerate(found):
            answer, context = lines(out, f"{split}.answer")[i], contexts[split][i]
            assert source == ["<s>", *pieces.pieces(answer), "</s>", *pieces.pieces(context), "</s>"]
            assert asked == [*pieces.pieces(lines(out, f"{split}.question")[i]), "</s>"]
            # Generating questions builds the same source.
            assert pieces.source(answer, context, about["longest"], about["longest_answer"]).tokens == source
            if "<unk>" not in asked:
                assert pieces.text(asked[:-1]) == lines(out, f"{split}.question")[i]


def test_learned_vocabulary_has_the_characters_that_occur_twice(tmp_path):
    questions.learn(["ab ab ac"], 20, True, tmp_path / "vocab.txt")
    learned = set((tmp_path / "vocab.txt").read_text().split())
    assert {"a", "b", "##b", "ab"} <= learned
    assert not learned & {"c", "##c", "##a"}


@pytest.mark.slow
def test_learned_vocabularies_are_the_same_in_every_process(tmp_path):
    """The seed of hash tables differs between processes."""
    text = "".join(random.Random(0).choices("abcdef ", k=4000))
    (tmp_path / "text").write_text(text)
    code = "import sys; from pathlib import Path; from data_prep.corpora.questions import learn; "
    code += "learn(Path(sys.argv[1]).read_text().split('  '), 200, True, Path(sys.argv[2]))"
    for name in "abc":
        subprocess.run([BIN / "python", "-c", code, tmp_path / "text", tmp_path / name], check=True)
    made = {(tmp_path / name).read_bytes() for name in "abc"}
    assert len(made) == 1 and made.pop().count(b"\n") == 200


def test_long_texts_are_truncated(tmp_path, capsys):
    long = paragraph(7, filler=60)
    long["qas"][0]["question"] = "what is this " * 30
    long["qas"][1]["answers"] = [{"text": "far away from home " * 20, "answer_start": 0}]
    file = write_files(tmp_path, {"own.json": squad([paragraph(1), long])}) / "own.json"
    out = tmp_path / "out"
    prepare("squad", cut_flags(file, out, "--longest", "64", cut=(3, 3), pieces=("--pieces", 60)))
    assert "valid: truncated 3 contexts, 1 answers and 1 questions" in capsys.readouterr().out
    found = rows(out / "bin", "valid")
    assert [len(source) for source, _ in found] == [64] * 3
    assert len(found[0][1]) == 50 and found[0][1][-1] == "</s>"
    assert found[1][0].index("</s>") == 31 == 1 + word_pieces.read_preparation(out / "bin")["longest_answer"]


def test_chinese_is_split_into_characters(tmp_path, capsys):
    file = write_files(tmp_path, {"own.json": squad([chinese(i) for i in range(10, 20)])}) / "own.json"
    out = tmp_path / "out"
    prepare("cmrc2018", cut_flags(file, out, cut=(8, 2), pieces=("--pieces", 60)))
    assert "own.json: 10 answers were moved from answer_start" in capsys.readouterr().out
    source, asked = rows(out / "bin", "train")[0]
    assert source[:5] == ["<s>", "北", "京", "人", "</s>"] and asked == [*"谁住在上海？", "</s>"]
    assert word_pieces.load(out / "bin").text(asked[:-1]) == lines(out, "train.question")[0] == "谁住在上海？"
    about = word_pieces.read_preparation(out / "bin")
    assert about["language"] == "zh" and about["lowercase"]


def bert(folder, config=None):
    files = {"vocab.txt": "".join(f"{name}\n" for name in TYPES).encode()}
    return write_files(folder, files | ({"tokenizer_config.json": config} if config is not None else {}))


@pytest.mark.parametrize(("config", "lowercase"), [(None, True), (b'{"do_lower_case": false}', False)])
def test_vocabulary_of_a_folder(config, lowercase, file, tmp_path):
    folder, out = bert(tmp_path / "bert", config), tmp_path / "out"
    prepare("squad", cut_flags(file, out, pieces=("--bert", folder)))
    about = word_pieces.read_preparation(out / "bin")
    assert about["pieces_of"] == str(folder) and about["lowercase"] == lowercase
    assert (out / "bin" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    assert rows(out / "bin", "train")[0][1][0] == ("who" if lowercase else "Who")


def test_invalid_configurations_are_errors(file, tmp_path):
    folder = bert(tmp_path / "bert", b"")
    message = error_of("squad", *cut_flags(file, tmp_path / "out", pieces=("--bert", folder)))
    assert f"{folder / 'tokenizer_config.json'} is not a JSON object (" in message


def test_broken_questions_are_left_out_and_counted(tmp_path, capsys):
    """The other answers keep their positions in a context with line separators and a mark."""
    context = "\ufeffOne\u2028Rome, two\r\nRome\x85 and \x0b three Rome."
    found = [context.find("Rome", i) for i in (0, 10, 20)]
    asked = [(start, "Rome", False) for start in found]
    asked += [(-1, "Rome", False), (len(context), "Rome", False), (5, "Oslo", False), (5, "Rome", True)]
    qas = [
        {"question": "What ?", "is_impossible": no, "answers": [{"text": text, "answer_start": start}]}
        for start, text, no in asked
    ]
    content = b"\xef\xbb\xbf" + squad([{"context": context, "qas": qas}, paragraph(1)])
    path = write_files(tmp_path, {"own.json": content}) / "own.json"
    rows = questions.paragraphs(path)
    assert [row.begins for row in rows["\ufeffOne Rome, two Rome and three Rome."]] == [5, 15, 30]
    printed = capsys.readouterr().out
    assert "own.json: 2 questions are blank or have no answer and are skipped" in printed
    assert "own.json: 3 questions have an answer that is not in its context and are skipped" in printed
    path.write_bytes(squad([{"context": context, "qas": qas[3:]}]))
    with pytest.raises(ValueError, match="has 0 questions with an answer in their context"):
        questions.paragraphs(path)


def test_the_published_files_are_downloaded_or_from_a_folder(publish, tmp_path):
    names = ("train-v2.0", "dev-v2.0", "train-v1.1", "dev-v1.1", "train", "dev", "test")
    made = {f"{name}.json": squad([paragraph(100 * k + i) for i in range(6)]) for k, name in enumerate(names)}
    folder = write_files(tmp_path / "given", made)
    for file in SOURCES["squad"]["versions"]["2.0"]["files"].values():
        publish(file, (folder / file["name"]).read_bytes())
    content = (folder / "test.json").read_bytes()
    (folder / "test.json").write_text(json.dumps(json.loads(content)["data"]))
    for version, source, first in (("2.0", [], 1000), ("du", ["--from", folder], 1400)):
        out = tmp_path / version
        prepare("squad", [*source, "--out", out, "--pieces", "90", "--version", version])
        for k, split in enumerate(("train", "valid", "test") if version == "du" else SPLITS):
            assert lines(out, f"{split}.context")[0].startswith(f"In {first + 100 * k} the Normans")
            assert len(rows(out / "bin", split)) == 18
        assert (out / "text" / "test.question").exists() == (version == "du")
    assert len(publish.requests) == 4


def test_vocabulary_from_the_hub(file, tmp_path, monkeypatch):
    models = {"bert-base-cased": bert(tmp_path / "bert", b'{"do_lower_case": false}')}
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda name, file: str(models[name] / file))
    prepare("squad", cut_flags(file, tmp_path / "out", pieces=()))
    about = word_pieces.read_preparation(tmp_path / "out" / "bin")
    assert about["pieces_of"] == "bert-base-cased" and not about["lowercase"]
    error = error_of("squad", *cut_flags(file, tmp_path / "other", pieces=("--bert", "some/model")))
    assert "vocab.txt of some/model could not be downloaded ('some/model')" in error


@pytest.mark.parametrize("file_name, error, message", [
    (questions.CONFIG, EntryNotFoundError("404 Client Error"), None),
    (questions.CONFIG, LocalEntryNotFoundError("no connection"), "tokenizer_config.json of some/model"),
    ("vocab.txt", EntryNotFoundError("404 Client Error"), "vocab.txt of some/model could not be"),
])  # fmt: skip
def test_only_a_missing_configuration_is_optional(file_name, error, message, file, tmp_path, monkeypatch):
    """As in a local folder; text is then lower-cased."""
    folder, out = bert(tmp_path / "bert"), tmp_path / "out"
    (folder / "tokenizer_config.json").write_text("{}")

    def download(model, name):
        if name == file_name:
            raise error
        return str(folder / name)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    words = cut_flags(file, out, pieces=("--bert", "some/model"))
    if message:
        assert message in error_of("squad", *words)
    else:
        prepare("squad", words)
        assert word_pieces.read_preparation(out / "bin")["lowercase"]


@pytest.mark.parametrize("place", ["question", "context", "answer"])
def test_unpaired_surrogates_are_left_out_and_counted(place, tmp_path, capsys):
    """JSON has them, but UTF-8 cannot encode them."""
    texts = {"question": "Who?", "context": "The Normans of Rome.", "answer": "Normans"}
    texts[place] += "\ud83d"
    texts["context"] += texts["answer"]
    answers = [{"text": texts["answer"], "answer_start": 4}]
    broken = {"context": texts["context"], "qas": [{"question": texts["question"], "answers": answers}]}
    path = write_files(tmp_path, {"own.json": squad([broken, *map(paragraph, range(4))])}) / "own.json"
    prepare("squad", cut_flags(path, tmp_path / "out", cut=(6, 3)))
    assert "own.json: 1 questions have an unpaired surrogate" in capsys.readouterr().out
    assert len(rows(tmp_path / "out" / "bin", "train")) == 6
    path.write_bytes(squad([broken]))
    with pytest.raises(ValueError, match="has 0 questions with an answer in their context, and 1 without"):
        questions.paragraphs(path)


@pytest.mark.parametrize("content, message", [
    (b'{"data": [{"paragraphs": [{"qas": []', "does not have SQuAD's format"),
    (b'[{"paragraphs": [{"context": "a", "qas": [{"question": "b"}]}]}]', "(KeyError('answers'))"),
    (one_answer([{"text": "b", "answer_start": "2"}]), "answer_start is of type str instead of int"),
    (one_answer([{"text": "b"}]), "(KeyError('answer_start'))"),
    (one_answer({"text": ["b"], "answer_start": [2]}), "answers is of type dict instead of list"),
    (one_answer([{"text": "b", "answer_start": 2}]), "only 1 rows, but --cut requests 2 + 1: request fewer"),
    (squad([paragraph(0)] * 2), "2 rows for train, but the next 6 belong together"),
])  # fmt: skip
def test_invalid_files_and_cuts_are_errors(content, message, tmp_path):
    path = write_files(tmp_path, {"bad.json": content}) / "bad.json"
    error = error_of("squad", *cut_flags(path, tmp_path / "out", cut=(2, 1)))
    assert str(path) in error and message in error and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "count"),
    [("cmrc2018/cmrc2018_dev", 3219), ("squad/dev-v2.0-half", 2910), ("squad/du-split-test-v1.1", 11877)],
)
def test_real_files_have_the_published_questions(name, count, published):
    assert sum(map(len, questions.paragraphs(published / f"{name}.json").values())) == count
