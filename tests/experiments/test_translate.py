"""Asking a trained translation model, from raw text to raw text."""

import pytest
from tiny import run_command

from fairseq_lrpe import text_codec
from fairseq_lrpe.experiments.kinds.translation import found_in


def ask(checkpoint, text, *flags):
    words = ["python", "-m", "fairseq_lrpe.experiments.translate", checkpoint, "--cpu", *flags]
    return run_command(*words, text=text)


def test_a_model_is_asked(translating, corpus):
    run, _ = translating
    checkpoint = run / "checkpoints/checkpoint_best.pt"
    asked = ask(checkpoint, "\n" + (corpus / "text/test.en").read_text(), "--beam", "2")
    assert asked.returncode == 0 and "@@" not in asked.stdout, asked.stderr
    blank, *translated = asked.stdout.splitlines()
    # What was generated in the evaluation is what the raw sentences give now.
    log = found_in((run / "eval-test.log").read_text())["H"]
    codec = text_codec.load(corpus / "bin")
    assert not blank and translated == [codec.decode("de", log[i]) for i in range(20)]


def refusal(checkpoint):
    done = ask(checkpoint, "a\n")
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 1 and line.startswith("translate: ") and not done.stdout
    return line


def test_wrong_requests_get_one_sentence(tmp_path, train):
    missing = refusal(tmp_path / "none.pt")
    assert "none.pt does not exist: scripts/train.sh mt/... makes one" in missing
    (tmp_path / "broken.pt").write_text("x")
    assert "is no checkpoint of fairseq" in refusal(tmp_path / "broken.pt")
    assert train("linear_lm_base", tmp_path, "--max-update", 1).returncode == 0
    other = refusal(tmp_path / "checkpoint_last.pt")
    assert "is of the task language_modeling: one of translation is needed" in other
    with pytest.raises(ValueError, match=r"preparation\.json is missing"):
        text_codec.load(tmp_path)
