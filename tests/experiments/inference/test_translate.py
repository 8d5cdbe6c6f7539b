"""Translating raw text with a trained model."""

import pytest
from tiny import run_command

from fairseq_lrpe.data import text_codec
from fairseq_lrpe.experiments.spec.kinds.translation import parse_hypotheses


def generate(checkpoint, text, *flags):
    arguments = ["python", "-m", "fairseq_lrpe", "generate", checkpoint, "--cpu", *flags]
    return run_command(*arguments, text=text)


def test_translations_are_those_of_the_evaluation(translating, corpus):
    run, _ = translating
    checkpoint = run / "checkpoints/checkpoint_best.pt"
    result = generate(checkpoint, "\n" + (corpus / "text/test.en").read_text(), "--beam", "2")
    assert result.returncode == 0 and "@@" not in result.stdout, result.stderr
    blank, *translated = result.stdout.splitlines()
    log = parse_hypotheses((run / "eval-test.log").read_text())["H"]
    codec = text_codec.load(corpus / "bin")
    assert not blank and translated == [codec.decode("de", log[i]) for i in range(20)]


def error_of(checkpoint):
    result = generate(checkpoint, "a\n")
    [line] = result.stderr.strip().splitlines()
    assert result.returncode == 1 and line.startswith("generate: ") and not result.stdout
    return line


def test_errors_have_one_line(tmp_path):
    missing = error_of(tmp_path / "none.pt")
    assert "none.pt does not exist: train one with `lrpe train lm/...`" in missing
    (tmp_path / "broken.pt").write_text("x")
    assert "is not a readable checkpoint of fairseq" in error_of(tmp_path / "broken.pt")
    with pytest.raises(ValueError, match=r"preparation\.json is missing"):
        text_codec.load(tmp_path)
