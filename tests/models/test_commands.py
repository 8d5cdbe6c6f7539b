"""fairseq's commands with our architectures."""

import io
import math
import re

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from support.commands import EVALUATIONS, generated_lines, validated
from support.tiny import BIN, PLUGIN, run_command, run_here, succeeded, train_flags

ARCHITECTURES = ("linear_lm_tmlr_type1", "softmax_lm_rope")
GENERATION = (
    f"--user-dir {PLUGIN} --task language_modeling --cpu --beam 3 --max-len-a 0 --min-len 8 "
    "--sample-break-mode eos --tokens-per-sample 32 --batch-size 5 --required-batch-size-multiple 1"
).split()


@pytest.fixture(scope="module")
def trained(train, data_bin, tmp_path_factory):
    """Checkpoints of a linear and a softmax model, the first trained in a new process."""
    folder = tmp_path_factory.mktemp("trained")
    linear, softmax = ARCHITECTURES
    flags = train_flags(data_bin, linear, folder / linear, "--max-update", 6, "--no-epoch-checkpoints")
    succeeded(run_command(BIN / "fairseq-train", *flags))
    succeeded(train(softmax, folder / softmax, "--max-update", 6, "--no-epoch-checkpoints"))
    return folder


@pytest.fixture(params=ARCHITECTURES)
def checkpoint(request, trained):
    return trained / request.param / "checkpoint_last.pt"


def run(name, *arguments):
    return succeeded(run_here(EVALUATIONS[name], *arguments))


def test_eval_lm_and_validate_need_no_repeated_flags(checkpoint, data_bin, caplog):
    flags = ["--user-dir", PLUGIN, "--path", checkpoint, "--cpu", "--batch-size", 8]  # batches have padding
    with caplog.at_level("INFO"):
        run("fairseq-eval-lm", data_bin, *flags, "--tokens-per-sample", 32)
    loss = float(re.findall(r"Loss \(base 2\): ([\d.]+)", caplog.text)[-1])

    [model], _, task = load_model_ensemble_and_task([str(checkpoint)])
    model.eval()
    task.load_dataset("test")
    total, tokens = 0.0, 0
    with torch.no_grad():
        for item in task.dataset("test"):
            scores = model(item["source"][None])[0].log_softmax(-1)
            total -= scores[0].gather(-1, item["target"][:, None]).sum().item()
            tokens += len(item["target"])
    assert loss == pytest.approx(total / tokens / math.log(2), abs=2e-4)  # printed with four digits

    found = validated(data_bin, checkpoint, "--task", "language_modeling", "--valid-subset", "test")
    assert found["loss"] == pytest.approx(loss, abs=1e-3)


def test_generate_and_interactive_give_the_same_hypotheses(checkpoint, data_bin, text_folder, monkeypatch):
    flags = [*GENERATION, "--path", checkpoint, "--max-len-b", 30]
    done = run("fairseq-generate", data_bin, *flags, "--gen-subset", "test", "--prefix-size", 2)
    hypotheses = generated_lines(done, "H")
    assert len(hypotheses) == 40 and all(len(text.split()) >= 8 for text in hypotheses.values())

    lines = (text_folder / "test.txt").read_text().splitlines()[:5]
    prompt = "".join(" ".join(line.split()[:2]) + "\n" for line in lines)
    monkeypatch.setattr("sys.stdin", io.StringIO(prompt))
    answers = generated_lines(run("fairseq-interactive", data_bin, *flags, "--buffer-size", 5), "H")
    assert answers == {i: hypotheses[i] for i in range(5)}
