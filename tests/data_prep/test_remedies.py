"""Messages of lrpe prepare name only options that the command has."""

import ast
import re
from pathlib import Path

import pytest
from fairseq import options

import data_prep
from data_prep import gpt2_bpe
from data_prep.prepare import parser
from fairseq_lrpe.data.corpora import CORPORA
from fairseq_lrpe.utils.errors import UserError

FOLDER = Path(data_prep.__file__).parent
OTHERS = {"--num-classes", "--regression-target", "--user-dir", "--shm-size"}
"""Options of fairseq-train and, in the message about a small /dev/shm, of docker."""
MODULES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py"))


def flags_of(name):
    """Returns the options of ``lrpe prepare NAME``."""
    module, kind = CORPORA[name].implementation.split(":")
    corpus = getattr(__import__(f"data_prep.corpora.{module}", fromlist=[kind]), kind)(name)
    return set(parser(corpus)._option_string_actions)


def named(path):
    """Returns the options in the strings of a module."""
    constants = [
        node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
    ]
    texts = [text for text in constants if isinstance(text, str)]
    return {flag for text in texts for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)}


@pytest.mark.parametrize("module", MODULES)
def test_options_in_messages_exist(module):
    """In a module of corpora, those of its corpora; in others, those of any corpus."""
    names = [x for x, row in CORPORA.items() if f"corpora/{row.implementation.split(':')[0]}.py" == module]
    known = set(options.get_preprocessing_parser()._option_string_actions)
    for name in names or CORPORA:
        known |= flags_of(name)
    assert named(FOLDER / module) <= known | OTHERS


def test_a_download_of_bpe_files_that_fails_names_their_option(monkeypatch, tmp_path):
    monkeypatch.setitem(gpt2_bpe.FILES, "encoder.json", gpt2_bpe.FILES["encoder.json"] | {"mirrors": []})
    with pytest.raises(UserError, match=r"no mirror provides encoder\.json.*see --bpe in --help"):
        gpt2_bpe.provide(tmp_path)
