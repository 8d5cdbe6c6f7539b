"""The command that lists corpora and makes them."""

import subprocess
from importlib import import_module

import pytest
from tiny import REPOSITORY, run_command

from data_prep import __main__ as command
from data_prep.corpus import Corpus

NAMES = "wikitext103 wikitext103_bpe wikitext_mini wikitext_mini_bpe books wikibook glue wmt14_en_de multi30k"
NAMES += " text"


def test_without_a_name_it_lists_every_corpus(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "REPOSITORY", tmp_path)
    for folder in ("wikitext_mini/bin", "glue/RTE/bin", "glue/CoLA/bin", "books/bin.part"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for arguments in ([], ["--help"]):
        command.main(arguments)
        usage, header, *rows = capsys.readouterr().out.splitlines()
        assert "prepare.sh NAME" in usage and header.split() == ["name", "what", "from", "folder", "state"]
        states = {row.split()[0]: row.split("/bin")[1].strip() for row in rows}
        assert list(states) == NAMES.split()
        assert states.pop("glue") == "prepared: CoLA RTE" and states.pop("wikitext_mini") == "prepared"
        assert set(states.values()) == {"-"}
        table = {row.split()[0]: row for row in rows}
        assert "  downloaded  " in table["wikitext103"] and "  needs --from  " in table["multi30k"]
        assert "  data/text/bin  " in table["text"] and "  data/glue/TASK/bin  " in table["glue"]


def test_an_unknown_corpus():
    done = run_command("python", "-m", "data_prep", "wikitext", "--out", "x")
    choices = NAMES.replace(" ", ", ")
    assert done.returncode == 1 and not done.stdout
    assert done.stderr == f"prepare: there is no corpus wikitext: choose from {choices}\n"


@pytest.mark.parametrize("name", command.CORPORA)
def test_help_shows_the_options_of_a_corpus(name, capsys):
    module, kind = command.CORPORA[name].made_by.split(":")
    assert issubclass(getattr(import_module(f"data_prep.{module}"), kind), Corpus)
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--help"])
    captured = capsys.readouterr()
    assert ended.value.code == 0 and not captured.err
    assert captured.out.startswith(f"usage: prepare {name} ")
    for option in ("--from", "--out", "--workers", f"data/{name}"):
        assert option in captured.out
    own = {"glue": "WNLI", "wikibook": "--shards", "text": "--sentencepiece N", "multi30k": "--bpe-types"}
    assert own.get(name, "") in captured.out


NUMBERS = [(name, "--workers") for name in command.CORPORA]
NUMBERS += [("glue", "--train-rows"), ("multi30k", "--bpe-types"), ("wikibook", "--shards")]
NUMBERS += [("text", "--sentencepiece")]


@pytest.mark.parametrize(("name", "option"), NUMBERS)
def test_numbers_from_1_on(name, option, tmp_path, capsys):
    out = tmp_path / "out"
    for number in ("0", "-3", "two"):
        with pytest.raises(SystemExit) as ended:
            command.main([name, "--out", str(out), f"{option}={number}"])
        sentence = (
            f"prepare {name}: error: argument {option}: must be a whole number from 1 on, not '{number}'"
        )
        assert ended.value.code == 2 and capsys.readouterr().err.splitlines()[-1] == sentence
    assert not out.exists()


def test_the_script_is_the_command():
    script = REPOSITORY / "data_prep" / "prepare.sh"
    assert sorted((REPOSITORY / "data_prep").glob("*.sh")) == [script]
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    assert script.read_text().endswith('exec python -m data_prep "$@"\n')
