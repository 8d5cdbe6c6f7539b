"""Penn Treebank tokenization."""

import pytest

from fairseq_lrpe.data.penn_treebank import tokenize_penn


@pytest.mark.parametrize("text, words", [
    ("It's good, isn't it?", "It 's good , is n't it ?"),
    ("I CAN'T and they'll, I'd've", "I CA N'T and they 'll , I 'd 've"),
    ("I cannot; he's gonna. 'Tis", "I can not ; he 's gon na . 'T is"),
    ("the dogs' and 'quoted' words", "the dogs ' and ' quoted ' words"),
    ("it’s “so” (good) [x]", "it 's “ so ” ( good ) [ x ]"),
    ("Mr. Smith of the U.S. left. I.e. gone.", "Mr. Smith of the U.S. left . I.e. gone ."),
    ("No. He made the U.S.", "No . He made the U.S."),
    ("well--done ... yes..", "well -- done ... yes .."),
    ("1,000,000 for a,b", "1,000,000 for a , b"),
    ("and/or 10/10 film-makers", "and/or 10/10 film-makers"),
    ("<s> & # $5 50%", "< s > & # $ 5 50 %"),
    ("does n't already ''split'' .", "does n't already '' split '' ."),
    ("  two\u00a0blanks\t", "two blanks"),
    ("", ""),
    (".", "."),
])  # fmt: skip
def test_tokens(text, words):
    assert tokenize_penn(text) == words
