"""The user's own text, or Python's documentation, in SentencePiece units."""

import io
import shutil

import sentencepiece
from fairseq.data import Dictionary
from small_corpora import SPLITS, error_of, prepare, sentences
from tiny import run_command

from data_prep.corpora import own_text
from fairseq_lrpe.utils import files


def options(source, out, *more):
    return ["--from", source, "--out", out, "--sentencepiece", 60, "--workers", 1, *more]


def test_own_text_is_encoded_by_sentencepiece_and_fairseq(text_folder, tmp_path, capsys):
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
    words = ["--only-source", *prefixes, "--destdir", expected, "--workers", 1]
    done = run_command("fairseq-preprocess", *words)
    assert done.returncode == 0, done.stderr
    for made in (part / "spm.model", *expected.glob("*.*")):
        assert made.suffix == ".log" or made.read_bytes() == (data / made.name).read_bytes()
    assert {path.name for path in data.iterdir()} >= {"spm.model", "dict.txt", "test.idx", "source.txt"}


def test_prepared_data_is_kept_and_not_mixed(text_folder, in_process, interrupt, tmp_path, capsys):
    """Also of an interrupted preparation, which resumes with the next step."""
    out = tmp_path / "out"
    with interrupt(own_text, "preprocess"):
        prepare("text", options(text_folder, out))
    before = (out / "train.spm").stat().st_mtime_ns
    (out / "valid.spm").unlink()
    assert not (out / "bin").exists()
    other = shutil.copytree(text_folder, tmp_path / "other")
    changed = options(other, out), options(text_folder, out, "--sentencepiece", 70)
    for _ in range(2):
        for given in changed:
            message = error_of("text", *given)
            assert (
                f"{out / 'text'} was made from {text_folder} in 60 sentence pieces: use the same source"
                in message
            )
        prepare("text", options(text_folder, out))
    assert (out / "train.spm").stat().st_mtime_ns == before
    assert len(sentences(out, "valid")) == len((text_folder / "valid.txt").read_text().splitlines())
    before = (out / "bin" / "spm.model").stat().st_mtime_ns
    prepare("text", options(text_folder, out)[2:])
    assert capsys.readouterr().out.count(f"already prepared: {out / 'bin'}") == 2
    assert (out / "bin" / "spm.model").stat().st_mtime_ns == before


def test_lines_that_are_too_long_are_errors(text_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 200)
    data = shutil.copytree(text_folder, tmp_path / "own")
    with (data / "valid.txt").open("a") as file:
        file.write("a" * 201)
    message = error_of("text", *options(data, tmp_path / "out"))
    assert f"{data / 'valid.txt'} line 41 exceeds the limit of 200 bytes" in message


def test_python_documentation_is_split_without_overlap(tmp_path):
    own_text.write_python_docs(tmp_path)
    lines = {s: (tmp_path / f"{s}.txt").read_text().splitlines() for s in SPLITS}
    everything = [line for split in lines.values() for line in split]
    assert len(everything) == len(set(everything)) and all(line.strip() for line in everything)
    sizes = {split: sum(map(len, part)) for split, part in lines.items()}
    total = sum(sizes.values())
    assert total > 300_000 and 0.75 < sizes["train"] / total < 0.9
    assert 0.04 < sizes["valid"] / total < 0.15 and 0.04 < sizes["test"] / total < 0.15


def test_the_default_is_the_python_documentation(in_process, tmp_path, monkeypatch, capsys):
    def write_short(folder):
        for split in SPLITS:
            (folder / f"{split}.txt").write_text("some of the prose\n" * 5)

    monkeypatch.setattr(own_text, "write_python_docs", write_short)
    for _ in range(2):
        prepare("text", ["--out", tmp_path, "--sentencepiece", 30, "--workers", 1])
    record = "the English prose inside Python in 30 sentence pieces\n"
    assert (tmp_path / "bin" / "source.txt").read_text() == record
    assert "already prepared" in capsys.readouterr().out
