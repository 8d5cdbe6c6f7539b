"""WikiText-103 and the small corpus of it, to fairseq's binaries."""

from argparse import Namespace
from pathlib import Path

import pytest
from fairseq import tasks
from fairseq.data import Dictionary
from small_corpora import SPLITS, decoded, error_of, prepare, sentences, write_tokens, write_zip

from data_prep import binarize
from data_prep.corpora import wikitext
from fairseq_lrpe.data import layout
from fairseq_lrpe.data.line_codec import Characters


def test_wikitext103_from_a_folder(tmp_path, capsys, monkeypatch):
    """Also resumes after an interruption, which leaves no OUT/bin."""
    source, out = write_tokens(tmp_path / "given"), tmp_path / "out"
    flags = ["--from", source, "--out", out, "--workers", 2]

    def interrupted(command, *_):
        part = Path(command[command.index("--destdir") + 1])
        assert part == out / "bin.part"
        (part / "dict.txt").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_info:
        patch.setattr(binarize, "run_command", interrupted)
        prepare("wikitext103", flags)
    assert exit_info.value.code == 130 and "run the same command to resume" in capsys.readouterr().err
    assert not (out / "bin").exists()
    prepare("wikitext103", flags)
    assert not (out / "bin.part").exists()
    printed = capsys.readouterr().out
    size = len(Dictionary.load(str(out / "bin" / "dict.txt")))
    assert size % 8 == 0 and layout.vocabulary_size(out / "bin" / "dict.txt") == size
    assert f"vocabulary: {size} types; the full training set has 267,744" in printed
    assert f"{out / 'bin'} --task" in printed
    lines = (source / "wiki.valid.tokens").read_text().splitlines()
    assert sentences(out, "train")[:4] == ["", "= train 0 =", "", "The train 0 is a <unk> thing ."]
    assert len(sentences(out, "valid")) == len(lines)
    other = write_tokens(tmp_path / "other")
    assert f"was made from {source}" in error_of("wikitext103", "--from", other, "--out", out)


@pytest.mark.parametrize("workers", [1, 3])
def test_words_of_text_with_other_line_ends(workers, tmp_path):
    """With fairseq's own command: byte order marks are removed, and only newlines end lines."""
    line = "one two\u2028one\x85two\rone\x0ctwo"
    text = "\ufeff" + f"{line}\r\none two \n" * 20
    source = tmp_path / "given"
    source.mkdir()
    for split in SPLITS:
        (source / f"wiki.{split}.tokens").write_text(text, encoding="utf-8", newline="")
    out = tmp_path / "out"
    prepare("wikitext103", ["--from", source, "--out", out, "--workers", workers])
    for split in SPLITS:
        assert sentences(out, split) == ["one two one two one two", "one two"] * 20
    assert Dictionary.load(str(out / "bin" / "dict.txt")).symbols[4:6] == ["one", "two"]


def write_archive(tmp_path, suffix="tokens", folder="wikitext-103"):
    files = write_tokens(tmp_path / "zipped", suffix=suffix).iterdir()
    return write_zip(tmp_path / "archive.zip", {f"{folder}/{x.name}": x.read_bytes() for x in files})


@pytest.mark.parametrize("name", ["wikitext_mini", "wikitext_mini_chars"])
def test_the_small_corpus_from_the_archive(name, publish, tmp_path, capsys):
    publish(wikitext.Mini(name).facts, write_archive(tmp_path).read_bytes())
    for _ in range(2):
        prepare(name, ["--out", tmp_path / "out"])
    printed = capsys.readouterr().out
    assert "already prepared" in printed and len(publish.requests) == 2
    out, tokens = tmp_path / "out", tmp_path / "zipped"
    text = {x: (out / "text" / f"{x}.txt").read_text() for x in SPLITS}
    assert text["train"] == (tokens / "wiki.test.tokens").read_text()
    assert text["valid"] + text["test"] == (tokens / "wiki.valid.tokens").read_text()
    assert text["test"].startswith(" = valid 4 = \n \n")  # the first title after the middle of the fourth
    if name == "wikitext_mini":
        words = {line.split()[0] for line in (out / "bin" / "dict.txt").read_text().splitlines()}
        assert "five" in words and "four" not in words
        assert sentences(out, "valid")[1] == "= <unk> <unk> ="
    else:
        for line, found in zip(text["test"].splitlines(), sentences(out, "test"), strict=True):
            for unit, character in zip(found.split(), Characters().encode(line).split(), strict=True):
                assert unit in (character, "<unk>")
        assert sentences(out, "test")[0].startswith("= ▁ v a <unk> i <unk> ▁ ")  # l and d are rare
        assert "characters that occur five times or more in the training text" in printed


def test_characters():
    assert Characters().encode(" a <unk> b-c \n") == "a ▁ <unk> ▁ b - c"


def test_the_small_corpus_from_split_texts(text_folder, tmp_path):
    prepare("wikitext_mini", ["--from", text_folder, "--out", tmp_path / "out"])
    assert len(sentences(tmp_path / "out", "test")) == 40 and not (tmp_path / "out" / "text").exists()


@pytest.mark.parametrize("name", ["wikitext103", "wikitext_mini"])
@pytest.mark.parametrize(
    ("content", "message"),
    [(b" \n\n", "is empty"), (b"word\n" * 9999 + b"caf\xe9\n", "is not UTF-8 text"), (None, "is missing")],
)
def test_invalid_files_are_errors(name, content, message, tmp_path):
    path = write_tokens(tmp_path / "given") / "wiki.test.tokens"
    path.write_bytes(content) if content else path.unlink()
    assert f"{path} {message}" in error_of(name, "--from", path.parent, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_split_texts_are_errors(tmp_path):
    (tmp_path / "train.txt").write_text("a")
    needed = "valid.txt is missing: expected train.txt, valid.txt and test.txt"
    assert needed in error_of("wikitext_mini", "--from", tmp_path, "--out", tmp_path / "out")


def stripped(path):
    return "".join(line.strip() + "\n" for line in path.read_text().splitlines())


def test_raw_wikitext103_from_a_folder(tiny_bpe, tmp_path, capsys):
    source, out = write_tokens(tmp_path / "given", suffix="raw"), tmp_path / "out"
    prepare("wikitext103_bpe", ["--from", source, "--bpe", tiny_bpe, "--out", out, "--workers", 2])
    last = capsys.readouterr().out.splitlines()[-2:]
    mask = "with the <mask> of fairseq's masked_lm 265, not the papers' 50,265"
    assert last[0] == f"vocabulary: 264 types; {mask}"
    assert last[1] == f"ready: fairseq-train {out / 'bin'} --task masked_lm --user-dir fairseq_lrpe ..."
    for split in SPLITS:
        assert decoded(out / "bin", split) == stripped(source / f"wiki.{split}.raw")


def test_raw_wikitext103_from_the_archive(tiny_bpe, publish, interrupt, tmp_path):
    """Also resumes after the encoding, without a further download."""
    archive, out = write_archive(tmp_path, "raw", "wikitext-103-raw"), tmp_path / "out"
    publish(wikitext.RawBytePairs("wikitext103_bpe").facts, archive.read_bytes())
    flags = ["--bpe", tiny_bpe, "--out", out, "--workers", 1]
    with interrupt(wikitext.RawBytePairs, "write_bin"):
        prepare("wikitext103_bpe", flags)
    assert not (out / "bin").exists()
    before = (out / "train.bpe").stat().st_mtime_ns
    prepare("wikitext103_bpe", ["--from", archive, *flags])
    assert len(publish.requests) == 2 and (out / "train.bpe").stat().st_mtime_ns == before
    assert decoded(out / "bin", "test") == stripped(tmp_path / "zipped" / "wiki.test.raw")


def test_the_small_corpus_in_bpe(text_folder, tiny_bpe, interrupt, tmp_path):
    source, out = write_tokens(tmp_path / "wikitext-103"), tmp_path / "out"
    flags = ["--bpe", tiny_bpe, "--workers", 1]
    prepare("wikitext_mini_bpe", ["--from", source, *flags, "--out", out])
    assert decoded(out / "bin", "train") == stripped(source / "wiki.test.tokens")
    assert decoded(out / "bin", "test").startswith("= valid 4 =\n")
    split = tmp_path / "split"
    with interrupt(wikitext.MiniBytePairs, "write_bin"):
        prepare("wikitext_mini_bpe", ["--from", text_folder, *flags, "--out", split])
    assert (split / "text" / "source.txt").read_text() == f"{text_folder}\n"
    for name in ("train.txt", "valid.txt", "test.txt"):
        assert (split / "text" / name).read_bytes() == (text_folder / name).read_bytes()


def test_masked_lm_has_the_vocabulary_of_the_papers(published, tmp_path, capsys):
    source, bpe = published / "wikitext-mini", published / "gpt2_bpe"
    prepare("wikitext_mini_bpe", ["--from", source, "--bpe", bpe, "--out", tmp_path, "--workers", 2])
    mask = "with the <mask> of fairseq's masked_lm 50,265, as in the papers"
    assert f"vocabulary: 50,264 types; {mask}" in capsys.readouterr().out
    assert decoded(tmp_path / "bin", "valid") == stripped(source / "valid.txt")
    options = {"data": str(tmp_path / "bin"), "tokens_per_sample": 64, "seed": 1}
    task = tasks.setup_task(Namespace(task="masked_lm", **options))
    assert len(task.source_dictionary) == 50_265 and task.mask_idx == 50_264
    task.load_dataset("valid")
    item = task.datasets["valid"][0]
    assert task.mask_idx in item["net_input.src_tokens"]
    known = item["target"].ne(task.source_dictionary.pad())
    assert 0 < known.sum() < len(known)
