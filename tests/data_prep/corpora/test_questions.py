"""Questions and answers, from SQuAD's format to what fairseq's tasks read."""

import hashlib
import json
import os
import random
import subprocess
from argparse import Namespace

import local_server
import pytest
from fairseq import tasks
from fairseq.data import Dictionary, data_utils
from small_corpora import contents, error_of, prepare, write_files
from tiny import BIN, REPOSITORY

from data_prep.corpora import questions
from data_prep.fetch import SOURCES
from fairseq_lrpe.data import word_pieces

TYPES = "[PAD] [UNK] [CLS] [SEP] [MASK] ? . , ' Who who in norman ##s live Rome".split()
SPLITS = ("train", "valid")


def paragraph(i, count=3, filler=9):
    """Returns a paragraph about the year 1000 + i with ``count`` answerable questions and one other."""
    context = (
        f"In {1000 + i} the  Normans\nlived in town {i}, " + "far away from home " * filler + f"and {i}."
    )
    asked = [
        {
            "id": f"{i}-{k}",
            "question": f"Who was\tthere in {1000 + i}, {k}?",
            "answers": [
                {"text": "the  Normans", "answer_start": context.index("the")},
                {"text": "Normans", "answer_start": context.index("Normans")},
            ],
        }
        for k in range(count)
    ]
    none = {"id": f"{i}-none", "question": "Why?", "answers": [], "is_impossible": True}
    return {"context": context, "qas": [*asked, {**none, "plausible_answers": [{"text": "far"}]}]}


def squad(paragraphs, in_article=2):
    """Returns the content of a file of questions."""
    groups = [paragraphs[i : i + in_article] for i in range(0, len(paragraphs), in_article)]
    return json.dumps({"version": "v2.0", "data": [{"title": "a", "paragraphs": x} for x in groups]}).encode()


def chinese(i):
    context = f"第{i}年，北京人住在上海。这是中国的城市。"
    found = {"text": "北京人", "answer_start": 0}  # wrong, as in some rows of CMRC
    return {
        "id": str(i),
        "context": context,
        "qas": [{"id": f"q{i}", "question": "谁住在上海？", "answers": [found]}],
    }


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
        sides.append([[dictionary[i] for i in found[k]] for k in range(len(found))])
    return list(zip(*sides, strict=True))


def lines(out, name):
    return (out / "text" / name).read_text(encoding="utf-8").splitlines()


def test_one_file_is_split_by_paragraphs(file, tmp_path, capsys):
    out = tmp_path / "out"
    prepare("squad", cut_flags(file, out, cut=(25, 10)))
    printed = capsys.readouterr().out
    assert "own.json: 12 questions have no answer and are skipped" in printed
    assert "rows: train 24, valid 9\n" in printed  # another paragraph would make it 27 and 12
    data = out / "bin"
    ready = (
        f"ready: fairseq-train {data} --task question_generation --source-lang source --target-lang question"
    )
    assert ready in printed and "word pieces learned from the training text, cased" in printed
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
    named = Namespace(task="translation", data=str(data), source_lang="source", target_lang="question")
    named.dataset_impl = "mmap"
    task = tasks.setup_task(named)
    assert (
        len(task.source_dictionary)
        == len(task.target_dictionary)
        == len(word_pieces.bert_token_ids(data / "vocab.txt"))
    )
    task.load_dataset("valid")
    assert len(task.datasets["valid"]) == 9


def test_preparation_is_deterministic(file, tmp_path, capsys):
    first, again = tmp_path / "first", tmp_path / "again"
    for out in (first, again):
        prepare("squad", cut_flags(file, out))
    for folder in ("bin", "text"):
        assert contents(first / folder) == contents(again / folder)
    assert len(contents(first / "bin")) == 15
    words = cut_flags(file, first)
    capsys.readouterr()
    prepare("squad", words[2:])  # without --from
    printed = capsys.readouterr().out
    assert f"already prepared: {first / 'bin'}" in printed and "rows: train 24, valid 9" in printed
    for other in (["--longest", 100], ["--cut", 24, 6], ["--pieces", 121]):
        message = error_of("squad", *words, *other)
        assert f"was made from {file}, 24 9 questions, 512 tokens in 120 pieces: use the same" in message


def test_learned_vocabularies_are_the_same_in_every_process(tmp_path):
    """The seed of hash tables differs between processes."""
    text = "".join(random.Random(0).choices("abcdef ", k=4000))
    (tmp_path / "text").write_text(text)
    code = "import sys; from pathlib import Path; from data_prep.bert_vocabulary import learn; "
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
    printed = capsys.readouterr().out
    assert "own.json: 1 answers were moved from answer_start to their nearest" in printed
    assert "valid: truncated 3 contexts, 1 answers and 1 questions" in printed
    found = rows(out / "bin", "valid")
    assert [len(source) for source, _ in found] == [64] * 3
    assert len(found[0][1]) == 50 and found[0][1][-1] == "</s>"
    assert found[1][0].index("</s>") == 31 == 1 + word_pieces.read_preparation(out / "bin")["longest_answer"]


def test_unanswerable_questions_and_answers_without_a_position_are_left_out(tmp_path, capsys):
    """The other answers keep their positions in a context with line separators and a mark."""
    context = "\ufeffOne\u2028Rome, two\r\nRome\x85 and \x0b three Rome."
    found = [context.find("Rome", i) for i in (0, 10, 20)]
    assert context.count("Rome") == len(set(found)) == 3
    asked = [(start, False) for start in found] + [(-1, False), (len(context), False), (found[0], True)]
    qas = [
        {
            "question": "What is it ?",
            "is_impossible": impossible,
            "answers": [{"text": "Rome", "answer_start": start}],
        }
        for start, impossible in asked
    ]
    content = b"\xef\xbb\xbf" + squad([{"context": context, "qas": qas}])
    rows = questions.paragraphs(write_files(tmp_path, {"own.json": content}) / "own.json", False)
    one_line = "\ufeffOne Rome, two Rome and three Rome."
    assert [row.begins for row in rows[one_line]] == [5, 15, 30]
    printed = capsys.readouterr().out
    assert "own.json: 1 questions have no answer and are skipped" in printed
    assert "own.json: 2 questions have an answer_start outside of the context and are skipped" in printed


def test_chinese_is_split_into_characters(tmp_path, capsys):
    file = write_files(tmp_path, {"own.json": squad([chinese(i) for i in range(10, 20)])}) / "own.json"
    out = tmp_path / "out"
    prepare("cmrc2018", cut_flags(file, out, cut=(8, 2), pieces=("--pieces", 60)))
    printed = capsys.readouterr().out
    assert "own.json: 10 answers were moved from answer_start" in printed and "lower-cased" in printed
    source, asked = rows(out / "bin", "train")[0]
    assert source[:5] == ["<s>", "北", "京", "人", "</s>"] and asked == [*"谁住在上海？", "</s>"]
    assert word_pieces.load(out / "bin").text(asked[:-1]) == lines(out, "train.question")[0] == "谁住在上海？"
    about = word_pieces.read_preparation(out / "bin")
    assert about["language"] == "zh" and about["lowercase"]


def bert(folder, config=None, types=TYPES):
    files = {"vocab.txt": "".join(f"{name}\n" for name in types).encode()}
    return write_files(folder, files | ({"tokenizer_config.json": config} if config is not None else {}))


@pytest.mark.parametrize(
    ("config", "lowercase"),
    [(None, True), (b'{"model_max_length": 512}', True), (b'{"do_lower_case": false}', False)],
)
def test_vocabulary_of_a_folder(config, lowercase, file, tmp_path, capsys):
    folder, out = bert(tmp_path / "bert", config), tmp_path / "out"
    words = cut_flags(file, out, pieces=("--bert", folder))
    prepare("squad", words)
    assert (
        f"{len(TYPES)} word pieces from {folder}, {'lower-cased' if lowercase else 'cased'}"
        in capsys.readouterr().out
    )
    about = word_pieces.read_preparation(out / "bin")
    assert about["pieces_of"] == str(folder) and about["lowercase"] == lowercase
    assert (out / "bin" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    assert rows(out / "bin", "train")[0][1][0] == ("who" if lowercase else "Who")
    assert (out / "bin" / "source.txt").read_text() == (
        f"{file}, 24 9 questions, 512 tokens, with word pieces of {folder}\n"
    )
    prepare("squad", words[2:])
    assert "already prepared" in capsys.readouterr().out


def test_invalid_vocabularies_are_errors(file, tmp_path):
    for folder, message in (
        (bert(tmp_path / "few", types=["the"]), "vocab.txt has no [CLS], [PAD]"),
        (bert(tmp_path / "config", b"[]"), "tokenizer_config.json is not a JSON object"),
    ):
        assert message in error_of("squad", *cut_flags(file, tmp_path / "out", pieces=("--bert", folder)))
    assert not (tmp_path / "out").exists()


class Hub(local_server.Mirrors):
    """Answers requests for the files of models as the Hugging Face hub does."""

    def do_GET(self):
        name, _, file = self.path.strip("/").partition("/resolve/main/")
        content = self.server.files.get(name, {}).get(file)
        self.send_response(200 if content is not None else 404)
        if content is None:
            known = name in self.server.files
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", f'"{hashlib.sha256(content or b"").hexdigest()}"')
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    do_HEAD = do_GET


@pytest.fixture
def hub(tmp_path):
    """{name of a model: {file: bytes}} of a hub, and a function that runs a process with this hub."""
    with local_server.Server(Hub) as server:

        def run(*words, offline="0"):
            # huggingface_hub reads these variables when it is imported.
            changed = {
                "HF_ENDPOINT": server.url("").removesuffix("/"),
                "HF_HOME": str(tmp_path / "home"),
                "HF_HUB_OFFLINE": offline,
            }
            changed["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
            words = [BIN / "python", *map(str, words)]
            return subprocess.run(words, env={**os.environ, **changed}, capture_output=True, text=True)

        yield server.files, run


ASK = """
import sys
from data_prep.bert_vocabulary import published
for name in sys.argv[1:]:
    try:
        print(published(name).lowercase)
    except ValueError as error:
        print(error)
"""


def test_vocabulary_from_the_hub(hub, file, tmp_path):
    models, run = hub
    files = contents(bert(tmp_path / "bert", b'{"do_lower_case": false}'))
    models["bert-base-cased"] = files
    models["some/uncased"] = {"vocab.txt": files["vocab.txt"]}
    models["some/other"] = {"tokenizer_config.json": b"{}"}
    done = run("-m", "fairseq_lrpe", "prepare", "squad", *cut_flags(file, tmp_path / "out", pieces=()))
    assert done.returncode == 0 and f"{len(TYPES)} word pieces from bert-base-cased, cased" in done.stdout
    assert word_pieces.read_preparation(tmp_path / "out" / "bin")["pieces_of"] == "bert-base-cased"

    done = run("-c", ASK, "bert-base-cased", "some/uncased", "some/other", "some/none", "a b")
    *good, other, none, wrong = (x for x in done.stdout.splitlines() if not x.startswith("Downloading"))
    assert good == ["False", "True"] and not done.stderr
    assert other.startswith("vocab.txt of some/other could not be downloaded from http://127.0.0.1:")
    assert "(404 Client Error" in other
    assert none.startswith("vocab.txt of some/none could not be downloaded") and wrong.startswith(
        "vocab.txt of a b "
    )
    # As if the hub were unreachable, but without half a minute of retries.
    done = run("-c", ASK, "some/third", "bert-base-cased", offline="1")
    third, kept = (x for x in done.stdout.splitlines() if not x.startswith("Downloading"))
    assert "An error happened while trying to locate" in third
    assert kept == "False" and not done.stderr
    for sentence in (other, none, wrong, third):
        assert sentence.endswith("with --bert FOLDER, or learn word pieces with --pieces N")


@pytest.fixture
def folder(tmp_path):
    """A folder with small files of all versions."""
    names = ("train-v2.0", "dev-v2.0", "train-v1.1", "dev-v1.1", "train", "dev", "test")
    made = {f"{name}.json": squad([paragraph(100 * k + i) for i in range(6)]) for k, name in enumerate(names)}
    return write_files(tmp_path / "given", made)


def test_a_folder_with_the_published_files(folder, tmp_path, capsys):
    content = (folder / "test.json").read_bytes()
    (folder / "test.json").write_text(json.dumps(json.loads(content)["data"]))
    for version, (first, splits) in {"2.0": (1000, 2), "1.1": (1200, 2), "du": (1400, 3)}.items():
        given = ["--version", version] if version != "2.0" else []
        words = ["--from", folder, "--out", tmp_path / version, "--pieces", "90", *given]
        prepare("squad", words)
        for k, split in enumerate(("train", "valid", "test")[:splits]):
            assert lines(tmp_path / version, f"{split}.context")[0].startswith(
                f"In {first + 100 * k} the Normans"
            )
            assert len(rows(tmp_path / version / "bin", split)) == 18
        assert (tmp_path / version / "text" / "test.question").exists() == (version == "du")
        prepare("squad", words[2:])
    printed = capsys.readouterr().out
    assert printed.count("already prepared") == 3
    assert "rows: train 18, valid 18; published: train 86,821, valid 5,928\n" in printed
    assert (
        "rows: train 18, valid 18, test 18; published: train 75,722, valid 10,570, test 11,877\n" in printed
    )
    assert "use the same source" in error_of("squad", *words, "--version", "1.1")


def test_published_files_are_downloaded(folder, publish, tmp_path, monkeypatch, capsys):
    """Their answers need not be in the context, unlike those of the user's own files."""
    odd = [paragraph(i) for i in range(6)]
    odd[0]["qas"][0]["answers"][0]["text"] = "nowhere"
    odd[0]["qas"][1]["question"] = " "
    (folder / "train-v2.0.json").write_bytes(squad(odd))
    facts = SOURCES["squad"]["versions"]["2.0"]
    for file in facts["files"].values():
        publish(file, (folder / file["name"]).read_bytes())
    monkeypatch.setitem(facts, "rows", {"train": 16, "valid": 18})
    for _ in range(2):
        prepare("squad", ["--out", tmp_path / "out", "--pieces", 90])
        assert len(publish.requests) == 4
    printed = capsys.readouterr().out
    assert "train-v2.0.json: 1 questions have an answer that is not in its context and are skipped" in printed
    assert "train-v2.0.json: 1 questions are blank and are skipped" in printed
    assert printed.count("rows: train 16, valid 18, as published") == 2
    (folder / "train-v2.0.json").write_bytes(squad(odd) + b"\n")  # not the published bytes
    error = error_of("squad", "--from", folder, "--out", tmp_path / "own", "--pieces", 90)
    assert "train-v2.0.json: question 0-0: the answer 'nowhere' is not in its context" in error


def test_interrupted_preparation_resumes(file, tmp_path, interrupt, capsys):
    out = tmp_path / "out"
    with interrupt(questions, "write_split"):
        prepare("squad", cut_flags(file, out))
    assert (out / "text").is_dir() and not (out / "bin").exists()
    file.unlink()
    prepare("squad", cut_flags(file, out)[2:])
    assert "rows: train 24, valid 9\n" in capsys.readouterr().out


def changed(**change):
    """Returns a file whose second paragraph has a changed question 5-2."""
    second = paragraph(5)
    second["qas"][2].update(change)
    return squad([paragraph(4), second])


LAYOUT = "of SQuAD's format: expected data > paragraphs > context and qas"
TWELVE = squad([paragraph(i) for i in range(12)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(answers=[{"text": "Rome", "answer_start": 8}]), "question 5-2: the answer 'Rome' is not in"),
        (changed(answers=[{"text": "Rome", "answer_start": 8}]), "; the text at answer_start 8 is 'the '"),
        (changed(answers=[{"text": " ", "answer_start": 8}]), "question 5-2: the answer is blank"),
        (
            changed(answers=[{"text": "the"}]),
            f"question 5-2, its answer lacks the key 'answer_start' {LAYOUT}",
        ),
        (changed(answers=None), f"question 5-2 lacks the key 'answers' {LAYOUT}"),
        (changed(id="", question=7), f"article 1, paragraph 2, question 3 lacks the key 'question' {LAYOUT}"),
        (TWELVE[:-9], "is not valid JSON ("),
        (b"\xff", "is not valid JSON ("),
        (b"1", "lacks the key 'data'"),
        (b'{"data": {}}', "lacks the key 'data'"),
        (b"[1]", "article 1 lacks the key 'paragraphs'"),
        (b'{"data": [{"title": "a"}]}', "article 1 lacks the key 'paragraphs'"),
        (b'{"data": [{"paragraphs": [{"qas": []}]}]}', "paragraph 1 lacks the key 'context'"),
        (squad([paragraph(1, count=0)]), "has no question with an answer"),
        (b'{"data": []}', "has no question with an answer"),
    ],
)
def test_invalid_files_are_errors(content, message, tmp_path):
    check_error(content, (2, 1), message, tmp_path)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ((30, 7), "has only 36 answerable questions, but --cut requests 30 + 7"),
        ((2, 9), "paragraph 1 has 3 questions, but --cut allows only 2 for train"),
        ((9, 2), "paragraph 4 has 3 questions, but --cut allows only 2 for valid"),
    ],
)
def test_invalid_cuts_are_errors(cut, message, tmp_path):
    check_error(TWELVE, cut, message, tmp_path)


def check_error(content, cut, message, tmp_path):
    path = write_files(tmp_path, {"bad.json": content}) / "bad.json"
    error = error_of("squad", *cut_flags(path, tmp_path / "out", cut=cut))
    assert str(path) in error and message in error and not (tmp_path / "out").exists()


def test_real_files_have_the_published_questions(published, capsys):
    def count(name, known=False):
        return sum(map(len, questions.paragraphs(published / name, known).values()))

    facts = SOURCES["cmrc2018"]["versions"]["2018"]
    assert count("cmrc2018/cmrc2018_dev.json") == facts["rows"]["valid"] == 3219
    assert "cmrc2018_dev.json: 3 answers were moved from answer_start" in capsys.readouterr().out
    assert questions.mismatch(published / "cmrc2018" / "cmrc2018_dev.json", facts["files"]["valid"]) is None
    assert count("squad/dev-v2.0-half.json") == 2910
    assert "dev-v2.0-half.json: 3,168 questions have no answer and are skipped" in capsys.readouterr().out
    assert (
        count("squad/du-split-test-v1.1.json") == SOURCES["squad"]["versions"]["du"]["rows"]["test"] == 11877
    )
    assert not capsys.readouterr().out


def test_real_chinese_in_learned_pieces(published, tmp_path):
    file = published / "cmrc2018" / "cmrc2018_trial.json"
    prepare(
        "cmrc2018", cut_flags(file, tmp_path, "--longest", 128, cut=(800, 200), pieces=("--pieces", 3000))
    )
    pieces, found = word_pieces.load(tmp_path / "bin"), rows(tmp_path / "bin", "train")
    back = [pieces.text(asked[:-1]) for _, asked in found]
    given = ["".join(line.lower().split()) for line in lines(tmp_path, "train.question")]
    same = [one == "".join(other.split()) for one, other in zip(given, back, strict=True)]
    assert sum(same) > 0.95 * len(same) and max(len(source) for source, _ in found) == 128
    for source, _ in found:
        middle = source.index("</s>")
        answer, context = source[1:middle], source[middle + 1 :]
        if len(answer) < 62:
            assert any(context[i : i + len(answer)] == answer for i in range(len(context)))
