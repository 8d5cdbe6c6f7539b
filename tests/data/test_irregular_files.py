"""Devices in place of input files; pipes and sockets are refused alike, but reading them would wait."""

import json
from argparse import Namespace

import pytest

from fairseq_lrpe.data import layout, line_codec, text_codec, word_pieces, word_vectors
from fairseq_lrpe.experiments.definition.experiment import read_yaml
from fairseq_lrpe.models.data_validation import check_data
from fairseq_lrpe.tasks import answer_problems
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import file_exists, read_file, read_lines


def read_as_training_data(folder):
    check_data(Namespace(task="language_modeling", data=str(folder)), ["train"])


READERS = {
    "file": [file_exists, read_file, lambda path: [*read_lines(path)], read_yaml],
    "vectors.txt": [word_vectors.dimension, lambda path: [*word_vectors.read(path, ["a"])]],
    "vocab.txt": [word_pieces.read_types, word_pieces.bert_token_ids],
    "dict.txt": [
        layout.vocabulary_size,
        lambda path: layout.check_shards([path.parent, path.parent]),
        lambda path: answer_problems.read_symbols(str(path.parent)),
        lambda path: read_as_training_data(path.parent),
    ],
    "train.label.npy": [layout.check_file],
    "train.idx": [layout.check_file, lambda path: read_as_training_data(path.parent)],
    "train.bin": [lambda path: layout.check_binary(path.with_suffix(""))],
    line_codec.SENTENCEPIECE: [lambda path: line_codec.load(path.parent, ["a"])],
    "gpt2_bpe/encoder.json": [lambda path: line_codec.load(path.parents[1] / "bin", ["1"])],
    "gpt2_bpe/vocab.bpe": [lambda path: line_codec.BytePairs(path.parent).encode("a")],
}


@pytest.mark.parametrize(("name", "read"), [(name, read) for name in READERS for read in READERS[name]])
def test_devices_are_errors(name, read, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("/dev/null")
    with pytest.raises(UserError, match=f"^{path} is not a regular file: replace it with a regular file$"):
        read(path)


def test_merges_of_translation_data(tmp_path):
    (tmp_path / "bin").mkdir()
    preparation = json.dumps({"bpe": text_codec.Moses.facts["bpe"]})
    (tmp_path / "bin" / text_codec.PREPARATION).write_text(preparation)
    codes = text_codec.Moses(tmp_path).path
    codes.symlink_to("/dev/null")
    with pytest.raises(UserError, match=f"^{codes} is not a regular file"):
        text_codec.load(tmp_path / "bin")
