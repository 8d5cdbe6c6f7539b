"""Running text in words, characters, GPT-2 BPE and SentencePiece units, to what fairseq's tasks read."""

import itertools
import json
import random
import shutil

import pytest
import sentencepiece
from fairseq.data import Dictionary
from small_corpora import SPLITS, decoded, error_of, prepare, run, sentences, write_files, write_zip

from data_prep import binarize, text_corpus
from data_prep.corpora import own_text, text, wikitext
from fairseq_lrpe.data.line_codec import Characters

MARKED = "\ufeff" + "one two\u2028one\x85two\rone\x0ctwo\r\none two \n" * 20
"""Text with a byte order mark, in which other characters than newlines end no lines."""

# Its headings and the line "= so =" are not titles of articles.
ARTICLE = (
    " \n = {0} = \n \n The {0} is a <unk> thing . \n \n"
    " = = History = = \n \n It was \n = so = \n a thing . \n \n"
    " = = Now = = \n \n It goes on . \n \n"
)


def stripped(path):
    return "".join(line.strip() + "\n" for line in path.read_text().splitlines())


@pytest.mark.parametrize("workers", [1, 3])
def test_only_newlines_end_lines_of_words(workers, tmp_path):
    """With fairseq's own command."""
    source = write_files(tmp_path / "given", {f"wiki.{x}.tokens": MARKED.encode() for x in SPLITS})
    prepare("wikitext103", ["--from", source, "--out", tmp_path / "out", "--workers", workers])
    for split in SPLITS:
        assert sentences(tmp_path / "out", split) == ["one two one two one two", "one two"] * 20
    dictionary = Dictionary.load(str(tmp_path / "out" / "bin" / "dict.txt"))
    assert dictionary.symbols[4:6] == ["one", "two"]


def write_archive(tmp_path, suffix="tokens", folder="wikitext-103"):
    """Writes small files in the format of WikiText to the folder "zipped", and returns an archive of them."""
    files = {}
    for split in SPLITS:
        articles = "".join(ARTICLE.format(f"{split} {i}") for i in range(7))
        files[f"wiki.{split}.{suffix}"] = f"{articles}{' four' * 4}{' five' * 5} \n".encode()
    write_files(tmp_path / "zipped", files)
    return write_zip(tmp_path / "archive.zip", {f"{folder}/{name}": x for name, x in files.items()})


@pytest.mark.parametrize("name", ["wikitext_mini", "wikitext_mini_chars"])
def test_the_small_corpus_from_the_archive(name, publish, in_process, tmp_path, capsys):
    publish(wikitext.Mini(name).facts, write_archive(tmp_path).read_bytes())
    for _ in range(2):
        prepare(name, ["--out", tmp_path / "out", "--workers", 1])
    assert "already prepared" in capsys.readouterr().out and len(publish.requests) == 2
    out, tokens = tmp_path / "out", tmp_path / "zipped"
    texts = {x: (out / "text" / f"{x}.txt").read_text() for x in SPLITS}
    assert texts["train"] == (tokens / "wiki.test.tokens").read_text()
    assert texts["valid"] + texts["test"] == (tokens / "wiki.valid.tokens").read_text()
    assert texts["test"].startswith(" = valid 4 = \n \n")  # the first title after the middle of the fourth
    if name == "wikitext_mini":
        words = {line.split()[0] for line in (out / "bin" / "dict.txt").read_text().splitlines()}
        assert "five" in words and "four" not in words
        assert sentences(out, "valid")[1] == "= <unk> <unk> ="
    else:
        for line, found in zip(texts["test"].splitlines(), sentences(out, "test"), strict=True):
            for unit, character in zip(found.split(), Characters().encode(line).split(), strict=True):
                assert unit in (character, "<unk>")
        assert sentences(out, "test")[0].startswith("= ▁ v a <unk> i <unk> ▁ ")  # l and d are rare


def test_raw_wikitext103_from_the_archive(tiny_bpe, publish, in_process, tmp_path):
    archive, out = write_archive(tmp_path, "raw", "wikitext-103-raw"), tmp_path / "out"
    publish(wikitext.RawBytePairs("wikitext103_bpe").facts, archive.read_bytes())
    prepare("wikitext103_bpe", ["--bpe", tiny_bpe, "--out", out, "--workers", 1])
    for split in SPLITS:
        assert decoded(out / "bin", split) == stripped(tmp_path / "zipped" / f"wiki.{split}.raw")


def wikitext_rows(lines, tokens):
    """Returns lines with so many tokens, including line ends, and an article title in their second half."""
    rows = [" \n"] * lines
    rows[3 * lines // 4] = " = Title = \n"
    rows[0] = " word" * (tokens - lines - 3) + " \n"
    return rows


ROWS = {"valid": (3760, 217_646), "test": (4358, 245_569)}  # published numbers of lines and of tokens


@pytest.mark.parametrize(("ending", "shown"), [
    ("", "valid 217,646, test 245,569, as published"),
    ("\n", "valid 221,406, test 249,927; published: valid 217,646, test 245,569"),
])  # fmt: skip
def test_numbers_of_tokens_are_compared_with_the_published_ones(ending, shown, in_process, tmp_path, capsys):
    """Rows of a dataset end with a line break, to which another one is added easily."""
    files = {}
    for split, (lines, tokens) in ROWS.items():
        rows = [row + ending for row in wikitext_rows(lines, tokens)]
        files[f"wiki.{split}.tokens"] = "".join(rows).encode()
    run("wikitext_mini", write_files(tmp_path / "given", files), tmp_path / "out")
    assert f"tokens of wikitext-103: {shown}\n" in capsys.readouterr().out


def write_books(folder, names):
    return write_files(folder, {name: f"the book {name}\n\nits end".encode() for name in names})


def test_whole_books_are_split_deterministically(tmp_path):
    folder = write_books(tmp_path / "many", [f"book{i}.txt" for i in range(350)])
    parts = text.find_books(folder)
    assert {split: len(files) for split, files in parts.items()} == {"train": 344, "valid": 3, "test": 3}
    assert sorted(itertools.chain(*parts.values())) == sorted(folder.glob("*.txt"))
    names = ["a.train.txt", "b-train.txt", "valid.txt", "x_test.txt", "README.txt"]
    parts = text.find_books(write_books(tmp_path / "named", names))
    found = [[path.name for path in parts[split]] for split in SPLITS]
    assert found == [["a.train.txt", "b-train.txt"], ["valid.txt"], ["x_test.txt"]]


def test_missing_books_are_errors(tiny_bpe, tmp_path):
    source = write_books(tmp_path / "given", ["train.txt", "test.txt"])
    message = error_of("books", "--from", source, "--bpe", tiny_bpe, "--out", tmp_path / "out")
    assert f"{source} has 2 *.txt files, but none for valid" in message


def test_books_with_marks_hidden_files_and_links(tiny_bpe, in_process, tmp_path):
    source = write_books(tmp_path / "given", ["a.txt", "b.txt"])
    for name in "ab":
        path = source / f"{name}.txt"
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        (source / f"._{name}.txt").write_bytes(b"\0\5\x16\7")
    (source / "c.txt").symlink_to(write_books(tmp_path / "elsewhere", ["c.txt"]) / "c.txt")
    data = run("books", source, tmp_path / "out", "--bpe", tiny_bpe)
    texts = {decoded(data, split) for split in SPLITS}
    assert texts == {f"the book {name}.txt\n\nits end\n" for name in "abc"}


def test_bookcorpus_is_split_by_lines(datasets_package, tiny_bpe, in_process, tmp_path, capsys):
    datasets_package([f"the line {i}" for i in range(1000)])
    prepare("books", ["--bpe", tiny_bpe, "--out", tmp_path, "--workers", 1])
    lines = [(tmp_path / "text" / f"{split}.txt").read_text().splitlines() for split in SPLITS]
    assert [*itertools.chain(*lines)] == [f"the line {i}" for i in range(1000)]
    assert list(map(len, lines)) == [980, 10, 10]
    assert "bookcorpus/bookcorpus: rows 1,000; published: rows 74,004,228\n" in capsys.readouterr().out


def test_wikipedia_is_split_by_articles(datasets_package, in_process, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "EVERY", 10)
    article = "Article {} is it.\n\n\n  History \n It was   so {}.\n"
    datasets_package([article.format(100 + i, i) for i in range(35)])
    prepare("wikipedia", ["--out", tmp_path, "--sentencepiece", 40, "--workers", 2])
    splits = {"valid": [0, 10, 20, 30], "test": [1, 11, 21, 31]}
    splits["train"] = [i for i in range(35) if i % 10 > 1]
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "bin" / "spm.model"))
    for split, numbers in splits.items():
        lines = (tmp_path / "text" / f"{split}.txt").read_text().split("\n")
        expected = [(f"Article {100 + i} is it.", "History", f"It was so {i}.", "") for i in numbers]
        assert lines == [*itertools.chain.from_iterable(expected), ""]
        assert [model.decode(line.split()) for line in sentences(tmp_path, split)] == lines[:-1]


def test_own_text_in_sentencepiece_units(text_folder, in_process, interrupt, tmp_path):
    """Also resumes an interrupted preparation with the next step, and does not mix data."""
    out = tmp_path / "out"
    words = ["--from", text_folder, "--out", out, "--sentencepiece", 60, "--workers", 1]
    with interrupt(binarize, "run_command"):
        prepare("text", words)
    before = (out / "text" / "train.spm").stat().st_mtime_ns
    (out / "text" / "valid.spm").unlink()
    other = shutil.copytree(text_folder, tmp_path / "other")
    changed = error_of("text", *words, "--from", other), error_of("text", *words, "--sentencepiece", 70)
    assert f"{out / 'text'} was made with --from {text_folder}: use the same" in changed[0]
    assert f"{out / 'text'} was made with --sentencepiece 60: use the same" in changed[1]
    prepare("text", words)
    assert (out / "text" / "train.spm").stat().st_mtime_ns == before
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(out / "bin" / "spm.model"))
    for split in SPLITS:
        lines = (text_folder / f"{split}.txt").read_text().splitlines()
        assert sentences(out, split) == [" ".join(pieces.encode(line, out_type=str)) for line in lines]
    assert pieces.vocab_size() <= 60


def test_pieces_are_learned_from_lines_of_any_length(tmp_path):
    """The model is that of the same words in short lines; characters of long words and lines have pieces."""
    draw, short, long = random.Random(0), tmp_path / "short.txt", tmp_path / "long.txt"
    words = ["".join(draw.choices("abcdefg", k=draw.randrange(1, 9))) for _ in range(3000)]
    short.write_text("".join(f"{word}\n" for word in words))
    long.write_text(f"{' '.join(words[:2000])}\n{' '.join(words[2000:])}\n")
    model = text_corpus.learn_pieces(200, short)
    assert text_corpus.learn_pieces(200, long) == model
    long.write_text(f"a short line\nx {' '.join(words)}\n{'y' * 9000}\n{'字' * 3000}\n\u2585 z\n")
    pieces = sentencepiece.SentencePieceProcessor(model_proto=text_corpus.learn_pieces(200, long))
    assert pieces.unk_id() not in pieces.encode("x y 字 z")


def test_lines_that_sentencepiece_accepts_are_passed_unchanged():
    lines = ["", "two  blanks\t", "é" * (text_corpus.MAX_BYTES // 2), "a " * (text_corpus.MAX_BYTES // 2)]
    assert [*text_corpus.sentences(lines)] == lines


def test_tales_of_the_package_are_split_without_overlap():
    lines = {path.stem: path.read_text("utf-8").splitlines() for path in own_text.GRIMM.glob("*.txt")}
    assert lines.keys() == set(SPLITS)
    everything = [line for split in lines.values() for line in split]
    assert all(line == " ".join(line.split()) for line in everything)
    sizes = {split: sum(map(len, part)) for split, part in lines.items()}
    total = sum(sizes.values())
    assert total > 300_000 and 0.75 < sizes["train"] / total < 0.9
    assert 0.04 < sizes["valid"] / total < 0.15 and 0.04 < sizes["test"] / total < 0.15
    long = {split: {line for line in part if len(line) > 60} for split, part in lines.items()}
    assert not long["train"] & (long["valid"] | long["test"])


@pytest.fixture
def binaries(tiny_bpe, in_process, tmp_path, monkeypatch):
    """A folder with three shards, which are accepted as all published ones, and their texts."""
    monkeypatch.setitem(text.WikiBook("wikibook").facts, "shards", 3)
    texts = []
    for i in range(3):
        lines = {f"{split}.txt": f"the {split} {i}\n\nthe end\n".encode() for split in ("train", "valid")}
        source = write_files(tmp_path / f"text{i}", lines)
        data = run("wikibook", source, tmp_path / f"out{i}", "--bpe", tiny_bpe)
        shutil.copytree(data, tmp_path / "published" / f"bin-shard{i}-8")
        texts.append(lines["train.txt"].decode())
    return tmp_path / "published", texts


def test_published_shards(binaries, tiny_bpe, tmp_path, monkeypatch, capsys):
    (published, texts), flags = binaries, ["--bpe", tiny_bpe, "--workers", 1, "--out"]
    blob = tmp_path / "blob"  # as in the cache of Hugging Face
    (published / "bin-shard1-8" / "train.bin").rename(blob)
    (published / "bin-shard1-8" / "train.bin").symlink_to(blob)
    downloads = []

    def snapshot_download(dataset, **options):
        downloads.append(options["revision"])
        return shutil.copytree(published, options["local_dir"])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    for name, source in (("given", ["--from", published]), ("downloaded", [])):
        prepare("wikibook", [*source, *flags, tmp_path / name])
        shards = [tmp_path / name / shard for shard in ("bin", "bin1", "bin2")]
        assert [decoded(shard, "train", tiny_bpe) for shard in shards] == texts
        assert f"ready: fairseq-train {':'.join(map(str, shards))} " in capsys.readouterr().out
    assert len(downloads) == 1
    assert (tmp_path / "given" / "bin1" / "train.bin").samefile(blob)


def test_shards_with_another_dictionary_are_errors(binaries, tiny_bpe, tmp_path):
    (binaries[0] / "bin-shard2-8" / "dict.txt").write_text("the 1\n")
    flags = ["--from", binaries[0], "--bpe", tiny_bpe, "--out", tmp_path / "new"]
    assert "dict.txt is not the published dict.txt" in error_of("wikibook", *flags)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("missing", ["bin-shard2-8", "bin-shard0-8", "bin-shard1-8/train.idx"])
def test_incomplete_copies_are_errors(missing, binaries, tiny_bpe, tmp_path):
    path = binaries[0] / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    flags = ["--from", binaries[0], "--bpe", tiny_bpe, "--out", tmp_path / "new"]
    assert f"{path} is missing" in error_of("wikibook", *flags) and not (tmp_path / "new").exists()


@pytest.mark.parametrize("source", ["published/bin-shard0-8", "text0"])
def test_shards_of_another_source_are_errors(source, binaries, tiny_bpe, tmp_path):
    """Such as those of an interrupted preparation, which a run would read after the new ones."""
    flags = ["--bpe", tiny_bpe, "--out", tmp_path / "out", "--workers", 1]
    prepare("wikibook", ["--from", binaries[0], *flags])
    shutil.rmtree(tmp_path / "out" / "bin")
    error = error_of("wikibook", "--from", tmp_path / source, *flags)
    assert f"{tmp_path / 'out' / 'bin1'} was made with --from {binaries[0]}: use the same" in error


def test_published_text_is_the_recorded_one(published, tmp_path):
    """With the published numbers of tokens and of types, in words and in GPT-2 BPE."""
    source, bpe = published / "wikitext-103", published / "gpt2_bpe"
    prepare("wikitext_mini", ["--from", source, "--out", tmp_path / "mini", "--workers", 2])
    for split in SPLITS:
        expected = (published / "wikitext-mini" / f"{split}.txt").read_bytes()
        assert (tmp_path / "mini" / "text" / f"{split}.txt").read_bytes() == expected
    assert len(Dictionary.load(str(tmp_path / "mini" / "bin" / "dict.txt"))) == 5384
    log = (tmp_path / "mini" / "preprocess.log").read_text()
    assert "245569 tokens" in log  # WikiText's test set
    data = run("books", published / "books", tmp_path / "books", "--bpe", bpe)
    for split in SPLITS:
        assert decoded(data, split) == stripped(published / "books" / f"grimm.{split}.txt")
    assert len(Dictionary.load(str(data / "dict.txt"))) == 50_264
    assert json.loads((data / "source.json").read_text())["from"]
