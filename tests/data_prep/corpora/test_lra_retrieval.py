"""Pairs of documents by bytes: LRA's files, and segments of WikiText articles."""

import pytest
from small_corpora import classified, run, write_files

from data_prep.corpora import lra_retrieval

NAMES = lra_retrieval.FILES
LINES = [
    b'1.0\tP1\tP2\ta "paper\tanother',
    b"0\tP3\tP4\tt\xc3\xa9xt \xff\tb\r",
    b"0.0\tP1\tP4\t" + b"long" * 1500 + b"\tc",
]


def texts(row):
    return [bytes(int(value, 16) for value in text.split()) for text in row[:-1]]


def write_papers(folder, **changes):
    contents = {name: b"\n".join([*LINES, b""]) for name in NAMES.values()}
    return write_files(folder, contents | {NAMES[split]: content for split, content in changes.items()})


def test_papers(tmp_path):
    data = run("lra_retrieval", write_papers(tmp_path / "given"), tmp_path / "out")
    for split in NAMES:
        rows = classified(data, split)
        assert [label for *_, label in rows] == ["yes", "no", "no"]
        assert texts(rows[0]) == [b'a "paper', b"another"]
        assert texts(rows[1]) == [b"t\xc3\xa9xt \xff", b"b"]
        assert texts(rows[2]) == [b"long" * 1000, b"c"]


@pytest.mark.parametrize("content, message", [
    (b"1\ta\tb\tc\n", "line 1 has 4 fields instead of 5"),
    (b"label\tid1\tid2\ttext1\ttext2\n", "line 1 has the label 'label' instead of 0 or 1"),
    (b"1\ta\tb\t\tc\n", "line 1 has an empty text"),
])  # fmt: skip
def test_broken_papers_are_left_out_and_counted(content, message, tmp_path, capsys):
    contents = content + b"\n".join(LINES)
    folder = write_papers(tmp_path / "given", valid=contents)
    data = run("lra_retrieval", folder, tmp_path / "out")
    assert [label for *_, label in classified(data, "valid")] == ["yes", "no", "no"]
    path = folder / "new_aan_pairs.eval.tsv"
    assert capsys.readouterr().out.count(f"{path}: left out 1 of 4 rows: {message}") == 1


def article(name, length):
    """Returns an article with headings whose words are unique."""
    places = [f"{name}{i:07}" for i in range(length // 5)]
    first, second = " ".join(places[::2]), " ".join(places[1::2])
    return f" \n = {name} = \n \n {first} \n = no title = \n \n = = History = = \n \n {second} \n"


@pytest.mark.parametrize("name", ["{}.txt", "wiki.{}.tokens"])
def test_segments_of_articles(name, tmp_path, monkeypatch):
    monkeypatch.setattr(lra_retrieval, "PAIRS", {"train": 80, "valid": 40, "test": 21})
    contents = {}
    for split in NAMES:
        articles = (article(f"{split[:2]}{i}", 2000 * i) for i in range(5))
        contents[name.format(split)] = "".join(articles).encode()
    data = run("lra_retrieval_mini", write_files(tmp_path / "given", contents), tmp_path / "out")
    for split, count in zip(NAMES, (80, 40, 20), strict=True):
        rows = classified(data, split)
        assert len(rows) == count
        whole = (tmp_path / "given" / name.format(split)).read_bytes()
        pairs = [texts(row) for row in rows]
        assert len({frozenset(pair) for pair in pairs}) == len(pairs)
        assert [label for *_, label in rows] == ["no", "yes"] * (len(rows) // 2)
        for (first, second), (*_, label) in zip(pairs, rows, strict=True):
            assert len(first) == len(second) == 256 and whole.count(first) == whole.count(second) == 1
            assert abs(whole.index(first) - whole.index(second)) >= 256
            one, other = ({i for i in range(5) if f"{split[:2]}{i}0".encode() in x} for x in (first, second))
            assert (one == other) == (label == "yes") and len(one) == len(other) == 1
