"""A person's own text, or the prose inside Python, in SentencePiece's pieces."""

import io
import shutil

import pytest
import sentencepiece
from fairseq.data import Dictionary
from small_corpora import prepare, refused, sentences
from tiny import run_command

from data_prep.corpora import own_text
from fairseq_lrpe.utils import files

SPLITS = ("train", "valid", "test")


def options(source, out, *more):
    return ["--from", source, "--out", out, "--sentencepiece", 60, "--workers", 1, *more]


def test_own_text_is_what_sentencepiece_and_fairseq_make_of_it(text_folder, tmp_path, capsys):
    out, expected = tmp_path / "out", tmp_path / "expected"
    prepare("text", options(text_folder, out))
    data = out / "bin"
    printed = capsys.readouterr().out
    size = len(Dictionary.load(str(data / "dict.txt")))
    assert f"vocabulary: {size} types" in printed and f"ready: fairseq-train {data} --task" in printed

    part = tmp_path / "part"
    part.mkdir()
    learned = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((text_folder / "train.txt").read_text().splitlines()),
        model_writer=learned,
        vocab_size=60,
        model_type="bpe",
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (part / "spm.model").write_bytes(learned.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(part / "spm.model"))
    for split in SPLITS:
        lines = (text_folder / f"{split}.txt").read_text().splitlines()
        encoded = "".join(" ".join(pieces.encode(line, out_type=str)) + "\n" for line in lines)
        (part / f"{split}.spm").write_text(encoded)
        assert [pieces.decode(line.split()) for line in sentences(out, split)] == lines
    prefixes = [x for split in SPLITS for x in (f"--{split}pref", part / f"{split}.spm")]
    done = run_command(
        "fairseq-preprocess", "--only-source", *prefixes, "--destdir", expected, "--workers", 1
    )
    assert done.returncode == 0, done.stderr
    for made in (part / "spm.model", *expected.glob("*.*")):
        assert made.suffix == ".log" or made.read_bytes() == (data / made.name).read_bytes()
    assert {path.name for path in data.iterdir()} >= {"spm.model", "dict.txt", "test.idx", "source.txt"}


def test_own_text_is_kept_and_not_mixed(text_folder, tmp_path, capsys):
    out = tmp_path / "out"
    prepare("text", options(text_folder, out))
    before = (out / "bin" / "spm.model").stat().st_mtime_ns
    for again in (options(text_folder, out), options(text_folder, out)[2:]):
        prepare("text", again)
        assert f"already there: {out / 'bin'}" in capsys.readouterr().out
    assert (out / "bin" / "spm.model").stat().st_mtime_ns == before
    other = shutil.copytree(text_folder, tmp_path / "other")
    for given in (options(other, out), options(text_folder, out, "--sentencepiece", 70)):
        message = refused("text", *given)
        assert f"{out / 'text'} was made from {text_folder} in 60 sentence pieces: give that" in message


@pytest.mark.parametrize(
    "broken, message", [(None, "is missing"), (b" \n", "is empty"), (b"\xff\xfe", "is not UTF-8 text")]
)
def test_text_that_cannot_be_used(broken, message, text_folder, tmp_path):
    data = tmp_path / "mine"
    data.mkdir()
    for split in ("train", "valid"):
        shutil.copy(text_folder / f"{split}.txt", data)
    if broken:
        (data / "test.txt").write_bytes(broken)
    assert f"{data / 'test.txt'} {message}" in refused("text", *options(data, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_line_that_is_too_long(text_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 200)
    data = shutil.copytree(text_folder, tmp_path / "mine")
    with (data / "valid.txt").open("a") as file:
        file.write("a" * 201)
    assert f"{data / 'valid.txt'} line 41 exceeds the limit of 200 bytes" in refused(
        "text", *options(data, tmp_path / "out")
    )


def test_numbers_of_pieces_that_cannot_be(text_folder, tmp_path):
    out = tmp_path / "out"
    given = options(text_folder, out, "--sentencepiece", 3)
    assert "cannot make 3 pieces of the training text, try another --sentencepiece" in refused("text", *given)
    assert not (out / "text").exists()


def test_what_was_interrupted_goes_on_with_the_next_step(text_folder, at_once, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(own_text, "preprocess", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        prepare("text", options(text_folder, out))
    before = (out / "train.spm").stat().st_mtime_ns
    assert not (out / "bin").exists()
    other = options(text_folder, out, "--sentencepiece", 50)
    assert "was made from" in refused("text", *other)
    (out / "valid.spm").unlink()
    prepare("text", options(text_folder, out))
    assert (out / "train.spm").stat().st_mtime_ns == before
    assert len(sentences(out, "valid")) == len((text_folder / "valid.txt").read_text().splitlines())


def test_python_docs_are_split_without_overlap(tmp_path):
    own_text.write_python_docs(tmp_path)
    lines = {s: (tmp_path / f"{s}.txt").read_text().splitlines() for s in SPLITS}
    everything = [line for split in lines.values() for line in split]
    assert len(everything) == len(set(everything)) and all(line.strip() for line in everything)
    sizes = {split: sum(map(len, part)) for split, part in lines.items()}
    total = sum(sizes.values())
    assert total > 300_000 and 0.75 < sizes["train"] / total < 0.9
    assert 0.04 < sizes["valid"] / total < 0.15 and 0.04 < sizes["test"] / total < 0.15


def test_without_a_folder_it_is_the_prose_inside_python(at_once, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    monkeypatch.setattr(own_text, "write_python_docs", lambda folder: write_short(folder))
    flags = ["--out", out, "--sentencepiece", 30, "--workers", 1]
    prepare("text", flags)
    assert (out / "bin" / "source.txt").read_text() == (
        "the English prose inside Python in 30 sentence pieces\n"
    )
    prepare("text", flags)
    assert "already there" in capsys.readouterr().out


def write_short(folder):
    for split in SPLITS:
        (folder / f"{split}.txt").write_text("some of the prose\n" * 5)
