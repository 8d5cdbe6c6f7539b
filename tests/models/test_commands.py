"""fairseq's commands with our architectures."""

import io

import pytest
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from support.commands import EVALUATIONS, evaluated_loss, generated_lines, loss_of_samples, validated
from support.tiny import BIN, PLUGIN, run_command, run_here, succeeded, train_flags

GENERATION = (
    f"--user-dir {PLUGIN} --task language_modeling --cpu --beam 3 --max-len-a 0 --min-len 8 "
    "--sample-break-mode eos --tokens-per-sample 32 --batch-size 5 --required-batch-size-multiple 1"
).split()


@pytest.fixture(scope="module")
def linear(data_bin, tmp_path_factory):
    """A model that was trained in a new process."""
    folder = tmp_path_factory.mktemp("linear")
    flags = train_flags(data_bin, "linear_lm_tmlr_type1", folder, "--max-update", 6, "--no-epoch-checkpoints")
    succeeded(run_command(BIN / "fairseq-train", *flags))
    return folder


@pytest.fixture(scope="module")
def softmax(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("softmax")
    succeeded(train("softmax_lm_rope", folder, "--max-update", 6, "--no-epoch-checkpoints"))
    return folder


@pytest.fixture(scope="module")
def delta(train, tmp_path_factory):
    """A model whose training was resumed after two updates."""
    folder = tmp_path_factory.mktemp("delta")
    rotated = ("--encoding", "lrpe", "--lrpe-core", "unitary", "--no-epoch-checkpoints")
    succeeded(train("linear_lm_kda", folder, "--max-update", 2, *rotated))
    succeeded(train("linear_lm_kda", folder, "--max-update", 6, *rotated))
    return folder


@pytest.fixture(
    params=[
        "linear",
        pytest.param("softmax", marks=pytest.mark.slow),
        pytest.param("delta", marks=pytest.mark.slow),
    ]
)
def checkpoint(request):
    return request.getfixturevalue(request.param) / "checkpoint_last.pt"


def run(name, *arguments):
    return succeeded(run_here(EVALUATIONS[name], *arguments))


def test_eval_lm_and_validate_need_no_repeated_flags(checkpoint, data_bin, caplog):
    flags = ["--tokens-per-sample", 32, "--batch-size", 8]  # batches have padding
    loss = evaluated_loss(caplog, data_bin, checkpoint, *flags)
    [model], _, task = load_model_ensemble_and_task([str(checkpoint)])
    assert loss == pytest.approx(loss_of_samples(model, task), abs=2e-4)  # printed with four digits
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
