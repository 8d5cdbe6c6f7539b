"""Word vectors in GloVe's format."""

import pytest

from data_prep.labeled_words import with_vectors
from fairseq_lrpe.data import word_vectors

LINES = ["the 0.1 -2e-3 3", "of 4 5 6", ". . . 7 8 9", "at name@domain.com 1 1 1", "été 1 2 3", "of 0 0 0"]


def write(folder, lines):
    (folder / "vectors").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder / "vectors"


def test_vectors_of_a_vocabulary(tmp_path):
    path, target = write(tmp_path, LINES), tmp_path / "target"
    assert word_vectors.dimension(path) == 3
    # A part of a word with spaces is not a word; of two vectors, the first is used.
    words = ["été", "of", "at", "name@domain.com", ".", "unseen"]
    found = {word: vector.tolist() for word, vector, _ in word_vectors.read(path, words)}
    assert found == {"of": [4, 5, 6], "été": [1, 2, 3]}
    assert with_vectors(words, path, target) == ["été", "of"]
    assert target.read_text(encoding="utf-8").splitlines() == ["of 4 5 6", "été 1 2 3"]


def test_a_byte_order_mark_is_not_a_part_of_a_word(tmp_path):
    path = write(tmp_path, ["\ufeffthe 1 2\r", "o\u2028f 3 4\r"])
    found = {word: vector.tolist() for word, vector, _ in word_vectors.read(path, ["the", "o\u2028f"])}
    assert found == {"the": [1, 2], "o\u2028f": [3, 4]}


@pytest.mark.parametrize("lines, message", [
    (["the 1 2", "of 1"], "line 2 has 1 fields after its word instead of 2"),
    (["2 2", "the 1 2", "of 1 2"], "line 2 has 2 fields after its word instead of 1"),
    (["the 1 2", "of nan 2"], "line 2 has 'nan' instead of a finite number"),
    ([], "line 1 is not a word and a vector"),
    (["The 1 2", "OF 1 2"], "has vectors for none of the 2 words"),
])  # fmt: skip
def test_invalid_lines_are_errors(lines, message, tmp_path):
    path = write(tmp_path, lines)
    with pytest.raises(ValueError) as error:
        list(word_vectors.read(path, ["of", "the"]))
    assert str(error.value).startswith(f"{path} ") and message in str(error.value)
