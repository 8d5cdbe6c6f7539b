"""The command that lists corpora and prepares them."""

import errno
import re
import subprocess
from argparse import Namespace
from importlib import import_module

import pytest
from small_corpora import contents, error_of, prepare, write_files, write_zip
from support.tiny import BIN

from data_prep import prepare as command
from data_prep import text_corpus
from data_prep.corpora import glue, questions, translation
from data_prep.corpus import Corpus
from fairseq_lrpe.utils.errors import UserError


def test_without_a_name_all_corpora_are_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "REPOSITORY", tmp_path)
    prepared = "wikitext_mini/bin squad_mini/bin glue_mini/RTE/bin glue/RTE/bin glue/CoLA/bin books/bin.part"
    for folder in prepared.split():
        (tmp_path / "data" / folder).mkdir(parents=True)
    command.main([])
    usage, *shown = capsys.readouterr().out.splitlines()
    rows = [[x.strip() for x in re.split("[│┃]", line)[1:-1]] for line in shown]
    table = {row[0]: row[1:] for row in rows if row and row[0]}
    assert "prepare.sh NAME" in usage
    assert table.pop("name") == ["description", "origin", "folder", "state"]
    assert list(table) == [*command.CORPORA, *command.MINI]
    states = {name: row[3] for name, row in table.items()}
    assert states.pop("glue") == "prepared: CoLA RTE" and states.pop("glue_mini") == "prepared: RTE"
    assert states.pop("wikitext_mini") == states.pop("squad_mini") == "prepared"
    assert set(states.values()) == {"-"}
    assert table["wikitext103"][1] == "downloaded" and table["multi30k"][1] == "needs --from"
    assert table["text"][2] == "data/text/bin" and table["glue"][2] == "data/glue/TASK/bin"


def test_small_versions_show_their_command():
    with pytest.raises(SystemExit) as exit_info:
        command.main(["lra_image_mini"])
    expected = "`bash data_prep/prepare.sh lra_image --size 16 --out data/lra_image_mini`"
    assert exit_info.value.code.endswith(f"is a small version of a corpus: prepare it with {expected}")


@pytest.mark.parametrize("name", command.CORPORA)
def test_help_shows_the_options_of_a_corpus(name, capsys):
    module, kind = command.CORPORA[name].implementation.split(":")
    assert issubclass(getattr(import_module(f"data_prep.corpora.{module}"), kind), Corpus)
    with pytest.raises(SystemExit) as exit_info:
        command.main([name, "--help"])
    captured = capsys.readouterr()
    assert exit_info.value.code == 0 and not captured.err
    assert captured.out.startswith(f"usage: lrpe prepare {name} ")
    for option in ("--from", "--out", "--workers", f"data/{name}"):
        assert option in captured.out


REVIEWS = {f"{x}/{y}/{i}.txt": b"a text" for x in ("train", "test") for y in ("neg", "pos") for i in range(2)}


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}"])
@pytest.mark.parametrize(("corpus", "file"), [
    (glue.Glue("glue"), "rows.json"),
    (questions.Questions("squad"), "rows.json"),
    (translation.Translation("multi30k"), "pairs.json"),
])  # fmt: skip
def test_damaged_counts_are_errors(corpus, file, content, tmp_path):
    write_files(tmp_path, {f"bin/{file}": content})
    with pytest.raises(UserError, match=f"bin/{file} is missing, damaged or for another task: remove its"):
        corpus.report(Namespace(out=tmp_path))


@pytest.mark.parametrize("source", ["out/unpacked", "given.zip"])
def test_only_what_was_unpacked_is_removed(source, tmp_path):
    """Not a folder that existed before, also if it is the source."""
    folder, out = write_files(tmp_path / "out" / "unpacked", REVIEWS), tmp_path / "out"
    write_zip(tmp_path / "given.zip", REVIEWS)
    prepare("lra_text", ["--from", tmp_path / source, "--out", out])
    found = {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*.txt")}
    assert found == REVIEWS and {path.name for path in out.iterdir()} == {"unpacked", "bin"}


@pytest.mark.parametrize("content", [{"a.txt": b"a"}, {"../a.txt": b"a"}])
def test_unpacked_archives_of_failed_preparations_are_removed(content, tmp_path):
    archive = write_zip(tmp_path / "a.zip", content)
    error_of("imdb", "--from", archive, "--out", tmp_path / "far" / "out")
    assert list(tmp_path.iterdir()) == [archive]


LOCK = "import sys, pathlib; from data_prep.prepare import locked\n"
LOCK += "with locked(pathlib.Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"


def test_one_process_at_a_time_prepares_a_folder(text_folder, in_process, tmp_path):
    words = ["--from", text_folder, "--out", tmp_path, "--sentencepiece", 60, "--workers", 1]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([BIN / "python", "-c", LOCK, tmp_path], **pipes) as other:
        assert other.stdout.readline() == "locked\n"
        before = set(tmp_path.iterdir())
        message = f"another process is preparing {tmp_path}: wait until it ends, or change --out"
        assert message in error_of("text", *words)
        assert set(tmp_path.iterdir()) == before
        other.kill()  # its lock file stays
    prepare("text", words)
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "text"}


def test_a_lock_that_another_process_has_just_removed_is_in_use(tmp_path, monkeypatch):
    flock = command.fcntl.flock

    def late(file, operation):
        (tmp_path / "prepare.lock").unlink()
        flock(file, operation)

    monkeypatch.setattr(command.fcntl, "flock", late)
    with pytest.raises(UserError, match="another process is preparing"), command.locked(tmp_path):
        pass


def test_folders_that_cannot_be_locked_are_errors(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(command.fcntl, "flock", unsupported)
    message = error_of("listops", "--out", tmp_path / "out")
    assert f"{tmp_path / 'out'} cannot be locked (No locks available): choose --out in a file" in message
    assert not list(tmp_path.iterdir())


def test_the_text_of_an_earlier_call_survives_an_invalid_option(tiny_bpe, text_folder, interrupt, tmp_path):
    words = ["--from", text_folder, "--out", tmp_path / "out", "--workers", 1]
    with interrupt(text_corpus, "preprocess"):
        prepare("books", [*words, "--bpe", tiny_bpe])
    before = contents(tmp_path / "out" / "text")
    assert "train.bpe" in before
    assert "encoder.json cannot be read" in error_of("books", *words, "--bpe", tmp_path)
    wrong = write_files(tmp_path / "wrong", {**contents(tiny_bpe), "vocab.bpe": b"-"})
    assert "is not the published vocab.bpe" in error_of("books", *words, "--bpe", wrong)
    assert contents(tmp_path / "out" / "text") == before
