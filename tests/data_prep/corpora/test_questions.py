"""Questions with their answers, from SQuAD's layout to what fairseq's tasks read of them."""

import hashlib
import http.server
import json
import os
import random
import subprocess
import threading
from argparse import Namespace

import pytest
from fairseq import tasks
from fairseq.data import Dictionary, data_utils
from local_server import Server
from small_corpora import contents, prepare, refused, write_files
from tiny import BIN, REPOSITORY

from data_prep.corpora import questions
from data_prep.fetch import SOURCES
from fairseq_lrpe.data import word_pieces

TYPES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"?.,'",
    "Who",
    "who",
    "in",
    "norman",
    "##s",
    "live",
    "Rome",
]
SPLITS = ("train", "valid")


def paragraph(i, count=3, filler=9):
    """A paragraph about year 1000 + i, with ``count`` questions that have an answer and one that has none."""
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
    """A file of questions."""
    groups = [paragraphs[i : i + in_article] for i in range(0, len(paragraphs), in_article)]
    return json.dumps({"version": "v2.0", "data": [{"title": "a", "paragraphs": x} for x in groups]}).encode()


def chinese(i):
    context = f"第{i}年，北京人住在上海。这是中国的城市。"
    found = {"text": "北京人", "answer_start": 0}  # as some of CMRC's, somewhere else
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
    """(tokens of the source, tokens of the question) of each row, as fairseq reads them."""
    sides = []
    for side in questions.SIDES:
        dictionary = Dictionary.load(str(data / f"dict.{side}.txt"))
        found = data_utils.load_indexed_dataset(str(data / f"{split}.source-question.{side}"), dictionary)
        sides.append([[dictionary[i] for i in found[k]] for k in range(len(found))])
    return list(zip(*sides, strict=True))


def lines(out, name):
    return (out / "text" / name).read_text(encoding="utf-8").splitlines()


def test_one_file_is_cut_by_paragraph(file, tmp_path, capsys):
    out = tmp_path / "out"
    prepare("squad", cut_flags(file, out, cut=(25, 10)))
    printed = capsys.readouterr().out
    assert "own.json: 12 questions have no answer and are skipped" in printed
    assert "rows: train 24, valid 9\n" in printed  # a paragraph more would be 27 and 12
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
            # What a person gives later is the same as what was prepared.
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


def test_another_run_makes_the_same_bytes(file, tmp_path, capsys):
    first, again = tmp_path / "first", tmp_path / "again"
    words = list(map(str, cut_flags(file, first)))
    prepare("squad", words)
    prepare("squad", cut_flags(file, again))
    assert contents(first / "bin") == contents(again / "bin") and contents(first / "text") == contents(
        again / "text"
    )
    assert len(contents(first / "bin")) == 14
    # The seed of tables differs from process to process.
    text = "".join(random.Random(0).choices("abcdef ", k=4000))
    (tmp_path / "text").write_text(text)
    code = "import sys; from pathlib import Path; from data_prep.bert_vocabulary import learn; "
    code += "learn(Path(sys.argv[1]).read_text().split('  '), 200, True, Path(sys.argv[2]))"
    made = []
    for name in "abc":
        subprocess.run([BIN / "python", "-c", code, tmp_path / "text", tmp_path / name], check=True)
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1] == made[2] and made[0].count(b"\n") == 200

    capsys.readouterr()
    prepare("squad", words)
    prepare("squad", words[2:])  # without --from
    printed = capsys.readouterr().out
    assert (
        printed.count(f"already there: {first / 'bin'}") == 2
        and printed.count("rows: train 24, valid 9") == 2
    )
    for other in (["--longest", "100"], ["--cut", "24", "6"], ["--pieces", "121"]):
        sentence = refused("squad", *words, *other)
        assert f"was made from {file}, 24 9 questions, 512 tokens in 120 pieces: give that" in sentence


def test_what_is_too_long_is_cut(tmp_path, capsys):
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


def test_chinese_is_by_characters(tmp_path, capsys):
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
def test_the_vocabulary_of_a_folder(config, lowercase, file, tmp_path, capsys):
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
    assert "already there" in capsys.readouterr().out


def test_vocabularies_that_cannot_be_used(file, tmp_path):
    out = tmp_path / "out"

    def bad(folder, name="squad"):
        sentence = refused(name, *cut_flags(file, out, pieces=("--bert", folder)))
        assert not out.exists()
        return sentence

    empty = write_files(tmp_path / "empty", {"x": b""})
    assert f"{empty / 'vocab.txt'} is missing: --bert takes a folder with BERT's vocab.txt" in bad(empty)
    assert f"{file} is no folder: --bert takes a folder with BERT's vocab.txt or a model name" in bad(file)
    assert "has no [MASK], " not in bad(bert(tmp_path / "few", types=["the"]))
    assert "tokenizer_config.json is not a JSON object" in bad(bert(tmp_path / "config", b"[]"))
    assert "--pieces 20 is too few: the training text has" in refused(
        "squad", *cut_flags(file, out, pieces=("--pieces", 20))
    )
    assert not out.exists()


class Hub(http.server.BaseHTTPRequestHandler):
    """What Hugging Face's hub answers of a model's files."""

    def do_GET(self):
        name, _, file = self.path.strip("/").partition("/resolve/main/")
        content = self.server.models.get(name, {}).get(file)
        self.send_response(200 if content is not None else 404)
        if content is None:
            known = name in self.server.models
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", f'"{hashlib.sha256(content or b"").hexdigest()}"')
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path):
    """{name of a model: {file: bytes}} of a hub, and ``asked``, a process that asks this one."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        server.models, url = {}, f"http://127.0.0.1:{server.server_address[1]}"

        def asked(*words, offline="0"):
            # The package reads where the hub is when it is imported.
            changed = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": offline}
            changed["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
            words = [BIN / "python", *map(str, words)]
            return subprocess.run(words, env={**os.environ, **changed}, capture_output=True, text=True)

        yield server.models, asked
        server.shutdown()


ASK = """
import sys
from data_prep.bert_vocabulary import published
for name in sys.argv[1:]:
    try:
        print(published(name).lowercase)
    except ValueError as error:
        print(error)
"""


def test_the_vocabulary_of_the_hub(hub, file, tmp_path):
    models, asked = hub
    files = contents(bert(tmp_path / "bert", b'{"do_lower_case": false}'))
    models["bert-base-cased"] = files
    models["some/uncased"] = {"vocab.txt": files["vocab.txt"]}
    models["some/other"] = {"tokenizer_config.json": b"{}"}
    done = asked("-m", "fairseq_lrpe", "prepare", "squad", *cut_flags(file, tmp_path / "out", pieces=()))
    assert done.returncode == 0 and f"{len(TYPES)} word pieces from bert-base-cased, cased" in done.stdout
    assert word_pieces.read_preparation(tmp_path / "out" / "bin")["pieces_of"] == "bert-base-cased"

    done = asked("-c", ASK, "bert-base-cased", "some/uncased", "some/other", "some/none", "a b")
    *good, other, none, wrong = (x for x in done.stdout.splitlines() if not x.startswith("Downloading"))
    assert good == ["False", "True"] and not done.stderr
    assert other.startswith("vocab.txt of some/other could not be downloaded from http://127.0.0.1:")
    assert "(the model has no vocab.txt): try again later" in other
    assert none.startswith("vocab.txt of some/none could not be downloaded") and wrong.startswith(
        "vocab.txt of a b "
    )
    # As where the hub does not answer, but without the half a minute in which the package tries again.
    done = asked("-c", ASK, "some/third", "bert-base-cased", offline="1")
    third, kept = (x for x in done.stdout.splitlines() if not x.startswith("Downloading"))
    assert "(it is unreachable, and the file is not cached)" in third
    assert kept == "False" and not done.stderr
    for sentence in (other, none, wrong, third):
        assert sentence.endswith("with --bert FOLDER, or learn word pieces with --pieces N")


@pytest.fixture
def folder(tmp_path):
    """The files of all versions, small."""
    names = ("train-v2.0", "dev-v2.0", "train-v1.1", "dev-v1.1", "train", "dev", "test")
    made = {f"{name}.json": squad([paragraph(100 * k + i) for i in range(6)]) for k, name in enumerate(names)}
    return write_files(tmp_path / "given", made)


def test_a_folder_of_the_published_files(folder, tmp_path, capsys):
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
    assert printed.count("already there") == 3
    assert "rows: train 18, valid 18; published: train 86,821, valid 5,928\n" in printed
    assert (
        "rows: train 18, valid 18, test 18; published: train 75,722, valid 10,570, test 11,877\n" in printed
    )
    assert "give that to --from" in refused("squad", *words, "--version", "1.1")


def test_the_published_files_are_downloaded(folder, tmp_path, monkeypatch, capsys):
    # The published bytes may have an answer that is nowhere.
    odd = [paragraph(i) for i in range(6)]
    odd[0]["qas"][0]["answers"][0]["text"] = "nowhere"
    odd[0]["qas"][1]["question"] = " "
    (folder / "train-v2.0.json").write_bytes(squad(odd))
    with Server() as server:
        facts = SOURCES["squad"]["versions"]["2.0"]
        monkeypatch.setitem(SOURCES["squad"], "mirrors", [server.url("gone")])
        for split, file in facts["files"].items():
            content = (folder / file["name"]).read_bytes()
            server.files[split] = content
            known = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for key, value in {**known, "mirrors": [server.url("gone"), server.url(split)]}.items():
                monkeypatch.setitem(file, key, value)
        monkeypatch.setitem(facts, "rows", {"train": 16, "valid": 18})
        words = ["--out", tmp_path / "out", "--pieces", "90"]
        prepare("squad", words)
        prepare("squad", words)
        assert len(server.asked) == 4
    printed = capsys.readouterr().out
    assert "train-v2.0.json: 1 answers are not in their context and are skipped" in printed
    assert "train-v2.0.json: 1 questions are blank and are skipped" in printed
    assert printed.count("rows: train 16, valid 18, as published") == 2
    (folder / "train-v2.0.json").write_bytes(squad(odd) + b"\n")  # a person's own
    assert "train-v2.0.json: question 0-0: the answer 'nowhere' is not in its context" in refused(
        "squad", "--from", folder, "--out", tmp_path / "own", "--pieces", "90"
    )


def test_an_interrupted_preparation_goes_on(file, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(questions, "write_split", interrupted)
        with pytest.raises(SystemExit) as ended:
            prepare("squad", cut_flags(file, out))
    assert ended.value.code == 130 and (out / "text").is_dir() and not (out / "bin").exists()
    file.unlink()
    prepare("squad", cut_flags(file, out)[2:])
    assert "rows: train 24, valid 9\n" in capsys.readouterr().out


def test_what_cannot_be_used(folder, file, tmp_path):
    out = tmp_path / "out"

    def bad(content=None, cut=(2, 1), **change):
        if content is None:
            changed = paragraph(5)
            changed["qas"][2].update(change)
            content = squad([paragraph(4), changed])
        path = write_files(tmp_path, {"bad.json": content}) / "bad.json"
        sentence = refused("squad", *cut_flags(path, out, cut=cut))
        assert str(path) in sentence and not out.exists()
        return sentence.removeprefix(f"prepare squad: {path}")

    assert bad(answers=[{"text": "Rome", "answer_start": 8}]) == (
        ": question 5-2: the answer 'Rome' is not in its context "
        "'In 1005 the Normans lived in town 5, ...'; at answer_start, 8, is 'the '"
    )
    assert bad(answers=[{"text": " ", "answer_start": 8}]).startswith(": question 5-2: the answer is blank")
    layout = "of SQuAD's format: data > paragraphs > context and qas"
    assert bad(answers=[{"text": "the"}]).startswith(
        f": question 5-2, its answer lacks 'answer_start' {layout}"
    )
    assert f"question 5-2 lacks 'answers' {layout}" in bad(answers=None)
    assert f"article 1, paragraph 2, question 3 lacks 'question' {layout}" in bad(id="", question=7)
    assert " is not JSON (" in bad(squad([paragraph(1)])[:-9]) and " is not JSON (" in bad(b"\xff")
    assert "lacks 'data'" in bad(b"1") and "lacks 'data'" in bad(b'{"data": {}}')
    assert "article 1 lacks 'paragraphs'" in bad(b"[1]")
    assert "article 1 lacks 'paragraphs'" in bad(b'{"data": [{"title": "a"}]}')
    assert "paragraph 1 lacks 'context'" in bad(b'{"data": [{"paragraphs": [{"qas": []}]}]}')
    assert "has no question with an answer" in bad(squad([paragraph(1, count=0)]))
    assert "has no question with an answer" in bad(b'{"data": []}')
    content = file.read_bytes()
    assert "has 36 questions with an answer: --cut asks for 30 + 7" in bad(content, cut=(30, 7))
    assert "paragraph 1 has 3 questions: --cut asks for 2 at most for train" in bad(content, cut=(2, 9))
    assert "paragraph 4 has 3 questions: --cut asks for 2 at most for valid" in bad(content, cut=(9, 2))

    flags = ["--out", out, "--pieces", "90"]
    assert f"{file} is one file: --cut TRAIN VALID says" in refused("squad", "--from", file, *flags)
    (folder / "dev.json").unlink()
    sentence = refused("squad", "--from", folder, "--version", "du", *flags)
    assert f"{folder / 'dev.json'} is missing: a copy of the published dev.json is needed" in sentence
    assert not out.exists()


@pytest.mark.skipif("LRPE_DATA" not in os.environ, reason="LRPE_DATA names no folder of data")
def test_the_published_files_have_their_questions(published, capsys):
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


@pytest.mark.skipif("LRPE_DATA" not in os.environ, reason="LRPE_DATA names no folder of data")
def test_chinese_in_pieces_of_its_own(published, tmp_path):
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
