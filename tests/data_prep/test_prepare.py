"""The command that lists corpora and prepares them."""

import re
from importlib import import_module

import pytest

from data_prep import prepare as command
from data_prep.corpus import Corpus


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
