"""Penn Treebank tokenization of English text, compatible with GloVe's vocabulary.

The rules are those of Robert MacIntyre's tokenizer.sed and of CoreNLP, except that brackets and quotes are
kept, as in GloVe. NLTK's tokenizer has other rules. sacremoses' MosesTokenizer.penn_tokenize raises an
AttributeError (its issue 151). The list of abbreviations is that of sacremoses.
"""

import re
from functools import cache

from sacremoses.corpus import NonbreakingPrefixes

_RULES = [
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"[’‘]", "'"),
        (r"''+|\.{2,}|--+|[\"“”«»…—;:@#$%&?!\[\](){}<>]", r" \g<0> "),
        (r",(?!\d)|(?<!\d),", " , "),
        (r"(?<=\w)(n't|'(?:s|m|d|ll|re|ve))(?!\w)", r" \1"),
        # Quotes at word boundaries; 's and the like are already separate tokens.
        (r"(?<!\S)'(?=\w)(?!(?:s|m|d|ll|re|ve|em|tis|twas)\b)|(?<=[^\s'])'(?!\S)", " ' "),
        (r"\b(can)(not)\b|\b(gon|wan)(na)\b|\b(got)(ta)\b|\b(gim|lem)(me)\b|(?<!\S)('t)(is|was)\b", None),
    )
]
_INITIALS = re.compile(r"[A-Za-z](\.[A-Za-z])+")


@cache
def _abbreviations():
    return frozenset(NonbreakingPrefixes().words("en"))


def tokenize_penn(text: str) -> str:
    """Returns the Penn Treebank tokens of a text, separated by single spaces."""
    for pattern, replacement in _RULES:
        text = pattern.sub(_in_two if replacement is None else replacement, text)
    tokens = text.split()
    words = []
    for index, token in enumerate(tokens):
        is_last = index == len(tokens) - 1
        if _ends_sentence(token, is_last):
            words += [token[:-1], "."]
        else:
            words.append(token)
    return " ".join(words)


def _ends_sentence(token, is_last):
    """Returns whether a token ends with a period that is not part of an abbreviation."""
    stem = token[:-1]
    has_period = token.endswith(".") and token.strip(".")
    if not has_period or _INITIALS.fullmatch(stem):
        return False
    # The period of an abbreviation at the end of a text also ends the sentence.
    return is_last or stem not in _abbreviations()


def _in_two(match):
    return " ".join(part for part in match.groups() if part)
