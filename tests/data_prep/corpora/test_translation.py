"""Parallel text, from the user's files or the published archives to what fairseq's translation reads."""

import itertools
import json
import re
import tarfile
from functools import partial

import pytest
from fairseq.data import Dictionary, data_utils
from small_corpora import prepare

from data_prep import parallel
from data_prep.corpora import translation
from fairseq_lrpe.data import text_codec

multi30k = partial(prepare, "multi30k")
wmt14 = partial(prepare, "wmt14_en_de")

SIGHTS = [("dog", "Hund"), ("young man", "Junge"), ("child", "Spatz"), ("red-haired boy", "Rotschopf")]
ACTS = [("runs", "rennt"), ("isn't here", "fehlt heute"), ("costs $1,200.50", "kostet 1.200,50 CHF")]
PLACES = [
    ("in the park", "im Park"),
    ("on a street", "auf der Straße"),
    ('at "Joe & Co" now', "bei „Joe & Co“ nun"),
]
PAIRS = [
    (f"The {a} {b} {c}.", f"Der {x} {y} {z}.") for a, x in SIGHTS for b, y in ACTS for c, z in PLACES
]  # 36
SPLITS = {"train": PAIRS, "valid": PAIRS[::7], "test": PAIRS[::9]}
# The codec preserves these.
SENTENCES = {
    "en": [
        "Prices rose by 3.5% to $1,200 (about €1,100).",
        'He said: "I don\'t know!"',
        "Mr. Smith, aged 81, won't come; she'd better ask 漢字.",
    ],
    "de": [
        "Der 25-jährige Mann sagte: Das weiß ich nicht!",
        "Das kostet 1.200,50 CHF (am 3. Mai), z. B. in Zürich; ja?",
    ],
}


@pytest.fixture
def quick(in_process, monkeypatch):
    """Runs fairseq-preprocess in this process, and worker processes with a few lines at a time."""
    monkeypatch.setattr(parallel, "LINES", 5)


def write_pairs(folder, splits=SPLITS, names=("train", "valid", "test")):
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in zip(names, splits.values(), strict=True):
        for language, sentences in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (folder / f"{name}.{language}").write_bytes("".join(f"{x}\n" for x in sentences).encode())
    return folder


def flags(source, out, *more, types=60, workers=1):
    return ["--from", source, "--out", out, "--bpe-types", types, "--workers", workers, *more]


def decoded(data, split, language):
    """Returns the lines of a prepared split as raw text."""
    dictionary = Dictionary.load(str(data / f"dict.{language}.txt"))
    rows = data_utils.load_indexed_dataset(str(data / f"{split}.en-de.{language}"), dictionary)
    codec = text_codec.load(data)
    return [codec.decode(language, dictionary.string(row)) for row in rows]


def ascii_quotes(text):
    return re.sub("[„“]", '"', text)


def check_references(out):
    """Checks that the raw validation and test text has the sentences of the binarized data."""
    for split, language in itertools.product(("valid", "test"), ("en", "de")):
        lines = (out / "text" / f"{split}.{language}").read_text().splitlines()
        for found, line in zip(decoded(out / "bin", split, language), lines, strict=True):
            assert found == ascii_quotes(line) or "<unk>" in found


def test_pairs_are_prepared_for_translation(quick, tmp_path):
    source, out = write_pairs(tmp_path / "given"), tmp_path / "out"
    multi30k(flags(source, out))
    data = out / "bin"
    for i, language in enumerate(("en", "de")):
        for split in ("valid", "test"):
            assert decoded(data, split, language) == [ascii_quotes(pair[i]) for pair in SPLITS[split]]
            name = f"{split}.{language}"
            assert (out / "text" / name).read_bytes() == (source / name).read_bytes()
    kept = json.loads((data / "pairs.json").read_text())["train"]["kept"]
    pairs = list(zip(decoded(data, "train", "en"), decoded(data, "train", "de"), strict=True))
    given = [(ascii_quotes(one), ascii_quotes(other)) for one, other in PAIRS]
    assert len(pairs) == kept > 20 and [pair for pair in given if pair in pairs] == pairs
    names = {"tokenizer": "moses", "bpe": "subword_nmt"}
    preparation = json.loads((data / "preparation.json").read_text())
    assert preparation == {"source": "en", "target": "de", **names}

    # Translating encodes text as preparing it did.
    codec = text_codec.load(data)
    for i, language in enumerate(("en", "de")):
        encoded = (out / "text" / "pieces" / f"train.{language}").read_text().splitlines()
        assert [codec.encode(language, pair[i]) for pair in PAIRS] == encoded
        for line in SENTENCES[language]:
            assert codec.decode(language, codec.encode(language, line)) == line


def test_changes_by_moses(quick, tmp_path):
    multi30k(flags(write_pairs(tmp_path / "given"), tmp_path / "out"))
    codec = text_codec.load(tmp_path / "out" / "bin")
    for language, raw, written in (
        ("de", "„Ja“ – sagte er…", '"Ja" - sagte er...'),
        ("en", 'A "sign".', 'A "sign."'),
        ("en", "two\u00a0 blanks,\u2028a soft\u00adhyphen\u200b", "two blanks, a soft hyphen"),
        ("en", "me@x.org", "me @ x.org"),
        ("de", "Joe's 5 € da", "Joe 's 5 €da"),
    ):
        tokens = codec.encode(language, raw)
        assert codec.decode(language, tokens) == written
        assert codec.encode(language, written) == tokens  # encoding again changes nothing
    assert codec.encode("en", " \t ") == codec.decode("en", "") == ""


def test_uneven_and_long_training_pairs_are_removed(quick, tmp_path, capsys):
    for pair, expected in {
        ("a b", "c d e"): "kept",
        ("a b", "c d e f"): "of uneven length",
        ("c d e f", "a b"): "of uneven length",
        ("a " * 250, "b " * 250): "kept",
        ("a " * 251, "b " * 251): "too long",
        ("a", ""): "empty",
        ("", ""): "empty",
    }.items():
        assert translation.verdict(pair) == expected
    odd = [("One two three four", "Eins"), ("x " * 300, "y " * 300), ("Nothing", "\t"), ("", "Nichts")]
    source = write_pairs(tmp_path / "given", {**SPLITS, "train": PAIRS[:1] * 36 + odd, "valid": odd})
    multi30k(flags(source, tmp_path / "out", types=1000))
    printed = capsys.readouterr().out
    assert "train: 36 of 40 pairs kept, 2 empty, 1 of uneven length, 1 too long\nvalid: 4 pairs" in printed
    assert len(decoded(tmp_path / "out" / "bin", "valid", "en")) == 4


def test_interrupted_preparation_resumes(tmp_path, interrupt):
    """The files are named as Multi30k's, and one has no final newline."""
    source = write_pairs(tmp_path / "given", names=("train", "val", "test_2016_flickr"))
    path, out = source / "val.de", tmp_path / "out"
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    with interrupt(text_codec.Moses, "pieces"):
        multi30k(flags(source, out))
    assert not (out / "bin").exists() and not (out / "text" / "pieces" / "train.en").exists()
    before = (out / "text" / "codes").stat().st_mtime_ns
    multi30k(flags(source, out))  # with the command fairseq-preprocess itself
    assert (out / "text" / "codes").stat().st_mtime_ns == before
    assert decoded(out / "bin", "valid", "de") == [ascii_quotes(pair[1]) for pair in SPLITS["valid"]]
    (out / "codes").unlink()
    with pytest.raises(ValueError, match=r"codes.* is missing"):
        text_codec.load(out / "bin")


@pytest.fixture
def archives(tmp_path, publish):
    """A folder with archives of ``SPLITS`` that are accepted as WMT's."""
    folder, tree = tmp_path / "archives", tmp_path / "tree"
    folder.mkdir()
    facts = translation.Translation("wmt14_en_de").facts
    train = {name: PAIRS[i * 12 : (i + 1) * 12] for i, name in enumerate(facts["archives"]) if i < 3}
    for name, of_archive in facts["archives"].items():
        with tarfile.open(folder / name, "w:gz") as archive:
            for split, files in of_archive["files"].items():
                for i, file in enumerate(files.values()):
                    lines = [pair[i] for pair in train.get(name, SPLITS[split])]
                    if file.endswith(".sgm"):
                        lines = ["<doc>", *(f'<seg id="1"> {x} </seg>' for x in lines), "</doc>"]
                    path = tree / file
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text("".join(f"{line}\n" for line in lines))
                    archive.add(path, file)
        publish(of_archive, (folder / name).read_bytes())
    return folder


def test_wmt14_from_its_archives(archives, publish, quick, tmp_path):
    for name, source in (("copied", ["--from", archives]), ("downloaded", [])):
        out = tmp_path / name
        wmt14([*source, "--out", out, "--bpe-types", 60, "--workers", 1, "--valid", "newstest2013"])
        for split, pairs in SPLITS.items():
            for i, language in enumerate(("en", "de")):
                lines = (out / "text" / f"{split}.{language}").read_text().splitlines()
                assert lines == [pair[i] for pair in pairs]
        check_references(out)
        assert not list(out.glob("*.part"))
    assert len(publish.requests) == 8  # a missing mirror for each archive


def test_every_hundredth_training_pair_is_for_validation(
    archives, quick, interrupt, tmp_path, monkeypatch, capsys
):
    """As in fairseq's script, which counts the pairs of all corpora together, before any is removed."""
    assert translation.EVERY == 100
    monkeypatch.setattr(translation, "EVERY", 5)

    def verdict(pair):
        return "too long" if "dog" in pair[0].replace("@@ ", "") else "kept"

    monkeypatch.setattr(translation, "verdict", verdict)
    out = tmp_path / "out"
    words = ["--from", archives, "--out", out, "--bpe-types", 60, "--workers", 1]
    with interrupt(translation, "preprocess"):
        wmt14(words)
    wmt14(words)
    held, left = PAIRS[4::5], [pair for i, pair in enumerate(PAIRS, 1) if i % 5]
    kept = [pair for pair in held if "dog" not in pair[0]]
    assert 0 < len(kept) < len(held)
    for i, language in enumerate(("en", "de")):
        for split, pairs in (("train", left), ("valid", kept), ("test", SPLITS["test"])):
            path = out / "text" / f"{split}.{language}"
            assert path.read_text().splitlines() == [pair[i] for pair in pairs]
        assert not (out / "text" / f"every.{language}").exists()
    check_references(out)
    assert f"valid: {len(kept)} pairs, test: 4 pairs" in capsys.readouterr().out
