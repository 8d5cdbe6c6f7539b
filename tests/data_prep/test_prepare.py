"""The command that lists corpora and makes them."""

import re
import subprocess
from importlib import import_module

import pytest
from tiny import REPOSITORY, run_command

from data_prep import prepare as command
from data_prep.corpus import Corpus

NAMES = "wikitext103 wikitext103_bpe wikitext_mini wikitext_mini_chars wikitext_mini_bpe books wikibook"
NAMES += " wikipedia glue glue_words"
NAMES += " imdb snli sentences squad cmrc2018 lra_text lra_image lra_retrieval lra_retrieval_mini"
NAMES += " imagenet cifar10 listops pathfinder wmt14_en_de multi30k text"
MINI = "glue_mini glue_words_mini snli_mini mnli_mini squad_mini cmrc2018_mini lra_image_mini cifar10_mini"
MINI += " listops_mini pathfinder_mini"


def test_without_a_name_it_lists_every_corpus(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "REPOSITORY", tmp_path)
    for folder in (
        "wikitext_mini/bin",
        "squad_mini/bin",
        "glue_mini/RTE/bin",
        "glue/RTE/bin",
        "glue/CoLA/bin",
        "books/bin.part",
    ):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for arguments in ([], ["--help"]):
        command.main(arguments)
        usage, *shown = capsys.readouterr().out.splitlines()
        table = {
            row[0]: row
            for line in shown
            if (row := [x.strip() for x in re.split("[│┃]", line)[1:-1]]) and row[0]
        }
        assert "prepare.sh NAME" in usage
        assert table.pop("name") == ["name", "description", "origin", "folder", "state"]
        assert list(table) == [*NAMES.split(), *MINI.split()]
        states = {name: row[4] for name, row in table.items()}
        assert states.pop("glue") == "prepared: CoLA RTE" and states.pop("glue_mini") == "prepared: RTE"
        assert states.pop("wikitext_mini") == states.pop("squad_mini") == "prepared"
        assert set(states.values()) == {"-"}
        assert table["wikitext103"][2] == "downloaded" and table["multi30k"][2] == "needs --from"
        assert table["text"][3] == "data/text/bin" and table["glue"][3] == "data/glue/TASK/bin"


def test_the_name_of_a_small_version_gets_the_command_that_makes_it():
    with pytest.raises(SystemExit) as ended:
        command.main(["lra_image_mini"])
    given = "bash data_prep/prepare.sh lra_image --size 16 --out data/lra_image_mini"
    assert ended.value.code == f"prepare: {given} prepares lra_image_mini"


def test_an_unknown_corpus():
    done = run_command("python", "-m", "fairseq_lrpe", "prepare", "wikitext", "--out", "x")
    assert done.returncode == 1 and not done.stdout
    listing = "`bash data_prep/prepare.sh` lists the corpora"
    assert done.stderr == f"prepare: unknown corpus 'wikitext' (did you mean 'wikitext103'?): {listing}\n"


@pytest.mark.parametrize("name", command.CORPORA)
def test_help_shows_the_options_of_a_corpus(name, capsys):
    module, kind = command.CORPORA[name].implementation.split(":")
    assert issubclass(getattr(import_module(f"data_prep.corpora.{module}"), kind), Corpus)
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--help"])
    captured = capsys.readouterr()
    assert ended.value.code == 0 and not captured.err
    assert captured.out.startswith(f"usage: prepare {name} ")
    for option in ("--from", "--out", "--workers", f"data/{name}"):
        assert option in captured.out
    own = {"glue": "WNLI", "wikibook": "--shards", "text": "--sentencepiece N", "multi30k": "--bpe-types"}
    own |= {"imdb": "--vectors FILE", "snli": "--cut TRAIN VALID TEST", "lra_image": "--size N"}
    own |= {"squad": "--version {2.0,1.1,du}", "cmrc2018": "--bert NAME_OR_FOLDER"}
    own |= {"listops": "--length MIN MAX", "pathfinder": "--contour-length N"}
    assert own.get(name, "") in captured.out


NUMBERS = [(name, "--workers") for name in command.CORPORA]
NUMBERS += [("glue", "--train-rows"), ("multi30k", "--bpe-types"), ("wikibook", "--shards")]
NUMBERS += [("sentences", "--train-rows"), ("lra_image", "--size"), ("text", "--sentencepiece")]
NUMBERS += [("wikipedia", "--sentencepiece"), ("squad", "--pieces"), ("imagenet", "--train-rows")]


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
    assert script.read_text().endswith('exec python -m fairseq_lrpe prepare "$@"\n')
