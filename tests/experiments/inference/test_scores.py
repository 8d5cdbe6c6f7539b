"""Log probabilities of texts, compared with the evaluation of the same text as one block."""

import math

import pytest
import torch
from support.commands import evaluated_loss
from support.documents import block
from support.tiny import preprocess, succeeded

import fairseq_lrpe
from fairseq_lrpe.experiments.inference.language_model import TextScore

LINES = ["w1 w3 w9 w28", "w2 unknown w4", "", "w7"]


@pytest.fixture(scope="module")
def text_as_split(data_bin, tmp_path_factory):
    """A data folder whose test split is the text."""
    folder = tmp_path_factory.mktemp("scores")
    (folder / "text").write_text("\n".join(LINES) + "\n")
    words = ["--only-source", "--testpref", folder / "text", "--srcdict", data_bin / "dict.txt"]
    preprocess(*words, "--destdir", folder / "bin")
    return folder / "bin"


@pytest.mark.parametrize("arch, flags", [
    ("linear_lm_tmlr_type1", []),
    ("softmax_lm_t5", ["--add-bos-token", "--max-target-positions", 64]),
    ("softmax_lm_alibi", ["--adaptive-softmax-cutoff", "8,16", "--criterion", "adaptive_loss",
                          "--ddp-backend", "legacy_ddp"]),
    ("linear_lm_rope", ["--randomized-positions", 64]),
])  # fmt: skip
def test_a_score_is_an_evaluation_of_one_block(arch, flags, train, text_as_split, tmp_path, caplog):
    succeeded(train(arch, tmp_path, "--max-update", 9, "--no-epoch-checkpoints", *flags))
    checkpoint = tmp_path / "checkpoint_last.pt"
    model = fairseq_lrpe.load_model(checkpoint, cpu=True)
    texts = ["\n".join(LINES), "w1", "\n".join(LINES) + "\n", ""]
    first, short, same, empty = model.score(texts)
    bos = [flag for flag in flags if flag == "--add-bos-token"]
    count = sum(len(line.split()) + 1 for line in LINES)
    bits = evaluated_loss(caplog, text_as_split, checkpoint, "--tokens-per-sample", count, *bos)
    assert first == same and first.tokens == count and short.tokens == 2 and empty.tokens == 1
    assert -first.log_probability / count / math.log(2) == pytest.approx(bits, abs=1e-4)
    assert first.perplexity == pytest.approx(2**bits, rel=1e-4)


def test_scores_are_log_probabilities(checkpoint):
    """Each token, and the end of the line, is predicted from those before it."""
    model = fairseq_lrpe.load_model(checkpoint, cpu=True)
    with torch.no_grad():
        p = model.model(model.encode("w1")[None])[0]
    p = p[0].softmax(-1)
    [score] = model.score(["w1"])
    first, end = model.encode("w1")[1], 2
    assert score == TextScore(pytest.approx((p[0, first].log() + p[1, end].log()).item(), abs=1e-5), 2)


def test_texts_that_have_no_score(checkpoint, train, tmp_path):
    model = fairseq_lrpe.load_model(checkpoint, cpu=True)
    with pytest.raises(ValueError, match=r"^expected a list of texts, not a single one: pass \[text\]$"):
        model.score("w1")
    assert model.score([]) == []
    flags = ["--token-positions", "learned", "--max-update", 1, "--disable-validation"]
    succeeded(train("softmax_lm_cosformer", tmp_path / "short", "--max-update", 1, "--disable-validation"))
    succeeded(train("linear_lm_rope", tmp_path / "learned", *flags))
    for name in ("short", "learned"):
        model = fairseq_lrpe.load_model(tmp_path / name / "checkpoint_last.pt", cpu=True)
        with pytest.raises(ValueError, match=r"32|33") as raised:
            model.score([" ".join(["w1"] * 32)])
        assert "\n" not in str(raised.value)
        assert model.score([" ".join(["w1"] * 31)])[0].tokens == 32
    memory = ["--task", "memory_lm", "--streams", 4, "--memory-length", 8, "--token-positions", "none"]
    done = train("softmax_lm_rope", tmp_path / "memory", *memory, "--max-update", 1, "--disable-validation")
    model = fairseq_lrpe.load_model(succeeded(done) and tmp_path / "memory/checkpoint_last.pt", cpu=True)
    with pytest.raises(ValueError, match="a model with a memory scores no single texts"):
        model.score(["w1"])


def test_example_of_the_documentation(checkpoint, capsys):
    example = block("python", "model.score(")
    folder = "results/lm/mini/linear_rope/seed-1"
    assert folder in example
    exec(example.replace(folder, str(checkpoint)), {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(tokens) for _, tokens, _ in lines] == [8, 8]
