"""BERT's word pieces compared with transformers', the two orders of ids, and windows around answers."""

import json
import string

import pytest
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer

from fairseq_lrpe.data import text_codec, word_pieces
from fairseq_lrpe.data.word_pieces import NUM_SEPARATORS, SPECIALS, WordPieces
from fairseq_lrpe.utils.errors import UserError

CHINESE = "中国北京上海大学的是在一三这那有不人和年月日"
WORDS = ["the", "The", "norm", "##an", "##ing", "run", "##ner", "é", "##é", "ü", "北京", "##人"]
# Line separators are types of BERT's own Chinese vocabulary; special types stand among others there.
TYPES = ["[unused1]", "\u2028", "[UNK]", "[CLS]", *string.punctuation, "[SEP]", *"，。《》“”"]
TYPES = ["[PAD]", *TYPES, *string.digits, *string.ascii_letters, *CHINESE, *WORDS, "[MASK]"]
TYPES += [f"##{x}" for x in string.ascii_letters + string.digits]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return write(tmp_path_factory.mktemp("bert") / "vocab.txt", TYPES)


def write(path, types):
    path.write_text("".join(f"{name}\n" for name in types), encoding="utf-8")
    return path


LETTERS = st.sampled_from(
    string.printable + CHINESE + "éüÉÜß，。《》“”…—\u2028\u3000\xa0\u200b\x00\ufffd𠀀龍Ωж"
)
TEXTS = st.one_of(
    st.text(LETTERS, max_size=40),
    st.lists(
        st.sampled_from(["The", "norman", "runner's", "running", "北京人", "3.5%", "x" * 101]), max_size=8
    ).map(" ".join),
)


@pytest.mark.parametrize("lowercase", [False, True])
def test_pieces_equal_those_of_transformers(lowercase, vocabulary):
    ours = WordPieces(vocabulary, lowercase)
    theirs = BertTokenizer.from_pretrained(str(vocabulary.parent), do_lower_case=lowercase)

    @settings(max_examples=300, deadline=None)
    @given(TEXTS)
    def check(text):
        assert ours.pieces(text) == [SPECIALS.get(piece, piece) for piece in theirs.tokenize(text)]

    check()
    assert ours.pieces("Running in 北京!") == [
        *(["run", "##n", "##ing"] if lowercase else ["R", "##u", "##n", "##n", "##ing"]),
        *("i", "##n", "北", "京", "!"),
    ]
    assert ours.pieces("ж é") == ["<unk>", "e" if lowercase else "é"]


def test_ids_in_both_orders(vocabulary, tmp_path):
    names = word_pieces.fairseq_types(vocabulary)
    write(tmp_path / "dict.txt", [f"{name} 1" for name in names])
    dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
    ids = word_pieces.bert_token_ids(vocabulary)
    theirs = {name: i for i, name in enumerate(TYPES)}
    # Some versions of transformers skip types that are white space.
    read = BertTokenizer.from_pretrained(str(vocabulary.parent)).get_vocab()
    theirs.update({name: i for name, i in read.items() if name.strip()})
    assert len(dictionary) == len(TYPES) == len(ids) and sorted(ids) == list(range(len(TYPES)))
    berts = {ours: bert for bert, ours in SPECIALS.items()}
    for number, name in enumerate(dictionary.symbols):
        assert theirs[berts.get(name, name)] == ids[number]
    assert [dictionary[i] for i in range(4)] == list(SPECIALS.values())


@pytest.mark.parametrize("types, message", [
    ([x for x in TYPES if x != "[UNK]"], r"has no \[UNK\]: expected BERT's vocab.txt"),
    ([*TYPES, "the"], "has 'the', which is repeated, blank or a special"),
    ([*TYPES, "", "more"], "has '', which is repeated, blank or a special"),
])  # fmt: skip
def test_invalid_vocabularies_are_errors(types, message, tmp_path):
    path = write(tmp_path / "vocab.txt", types)
    with pytest.raises(ValueError, match=message):
        WordPieces(path, True)


@pytest.mark.parametrize("text", [
    "《战国无双3》是由哪两个公司合作开发的？",
    "共有364.6公里，2006年人口为185,525人（amarillo）。",
    'He said: "I don\'t know (yet)!" It costs $1,200.50, or 3.5% at 10:30.',
])  # fmt: skip
def test_text_is_restored(text, vocabulary, tmp_path):
    path = write(
        tmp_path / "vocab.txt", dict.fromkeys([*TYPES, *text, *(f"##{x}" for x in text if x != " ")])
    )
    pieces = WordPieces(path, lowercase=False)
    assert pieces.text(pieces.pieces(text)) == text


SOURCE_WORDS = st.lists(
    st.sampled_from(["norman", "runner", "the", "3.5", "北京", "ж"]), min_size=1, max_size=60
)


@settings(deadline=None)
@given(SOURCE_WORDS, st.integers(16, 80), st.data())
def test_sources_contain_their_answer(vocabulary, words, longest, data):
    pieces = WordPieces(vocabulary, lowercase=True)
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first + 1, len(words)))
    answer, context = " ".join(words[first:last]), " ".join(words)
    begins = len(" ".join([*words[:first], ""]))
    assert context[begins:].startswith(answer)
    room = word_pieces.max_answer_tokens(longest)
    tokens, answer_cut, context_cut = pieces.source(answer, context, longest, room, begins)
    assert len(tokens) <= longest
    assert tokens[0] == "<s>" and tokens[-1] == "</s>" and tokens.count("</s>") == 2
    middle = tokens.index("</s>")
    of_answer, of_context = tokens[1:middle], tokens[middle + 1 : -1]
    assert of_answer == pieces.pieces(answer)[:room] and answer_cut == (len(pieces.pieces(answer)) > room)
    # At this position, not at another one with the same words.
    before, whole = len(pieces.pieces(context[:begins])), pieces.pieces(context)
    start = before - max(longest - NUM_SEPARATORS - 2 * len(of_answer), 0) // 2
    start = max(min(start, len(whole) - (longest - NUM_SEPARATORS - len(of_answer))), 0)
    assert of_context == whole[start : start + longest - NUM_SEPARATORS - len(of_answer)]
    assert start <= before and before + len(of_answer) <= start + len(of_context)
    assert context_cut == (len(of_context) < len(whole))
    if context_cut:
        assert len(tokens) == longest


def test_answers_inside_of_words(vocabulary):
    pieces = WordPieces(vocabulary, lowercase=True)
    assert pieces.source("orma", "the norman a", 16, 6).tokens == [
        *("<s>", "o", "##r", "##m", "##a", "</s>"),
        *("the", "norm", "##an", "a", "</s>"),
    ]
    tokens = pieces.source("nerx", "a " * 9 + "runnerx" + " a" * 9, 16, 6).tokens
    assert len(tokens) == 16 and {"##ner", "##x"} <= set(tokens[tokens.index("</s>") :])


def test_answers_are_found(vocabulary):
    pieces = WordPieces(vocabulary, lowercase=False)
    tokens = ["<s>", "北", "京", "</s>", "在", "北", "京", "。", "</s>"]
    assert pieces.source("北京", "在北京。", 16, 6) == (tokens, False, False)
    assert pieces.source(" the\n", "a  the the", 16, 6) == pieces.source("the", "a the the", 16, 6, 2)
    assert [word_pieces.find_answer("a", "a b a b a", near) for near in (0, 1, 3, 6, 9)] == [0, 0, 4, 4, 8]
    assert word_pieces.find_answer("aa", "aaaa", 1) == 1
    for answer, message in (("Paris", "^the answer 'Paris' is not in its context 'The n"), (" ", "is blank")):
        with pytest.raises(ValueError, match=message):
            pieces.source(answer, "The normans" + " and more" * 9, 16, 6)


def test_damaged_preparations_and_those_for_other_tasks_are_errors(vocabulary, tmp_path):
    write(tmp_path / "vocab.txt", TYPES)
    note = tmp_path / "preparation.json"
    note.write_text('{"source": "en", "target": "de", "tokenizer": "moses", "bpe": "subword_nmt"}')
    with pytest.raises(UserError, match=r"preparation\.json is missing.* question generation needs data of"):
        word_pieces.load(tmp_path)
    note.write_text(json.dumps({"tokenizer": "bert", "lowercase": True, "language": "zh", "longest": 192}))
    assert word_pieces.load(tmp_path).pieces("THE") == ["the"]
    with pytest.raises(UserError, match=r"preparation\.json is missing.*: prepare a corpus for translation"):
        text_codec.load(tmp_path)
    for content in ("{", "[]"):
        note.write_text(content)
        for load in (word_pieces.load, text_codec.load):
            with pytest.raises(UserError, match="is missing, damaged or for another task"):
                load(tmp_path)
