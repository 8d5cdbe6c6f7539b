"""fairseq's commands with our architectures."""

import math
import re
from dataclasses import fields

import pytest
import torch
from commands import generated_lines, load_last_checkpoint
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from tiny import BIN, PLUGIN, run_command, train_flags

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.config import PositionConfig


def run(name, checkpoint, *arguments, text=None):
    """Runs a command for the linear model in a new process, and for the other one in a fork."""
    return run_command(BIN / name if "linear_lm" in str(checkpoint) else name, *arguments, text=text)


@pytest.fixture(scope="module")
def trained(data_bin, tmp_path_factory):
    """Checkpoints of a linear and a softmax model after a few updates."""
    folder = tmp_path_factory.mktemp("trained")
    for arch in ("linear_lm_tmlr_type1", "softmax_lm_rope"):
        flags = train_flags(data_bin, arch, folder / arch, "--max-update", 6, "--no-epoch-checkpoints")
        done = run("fairseq-train", folder / arch, *flags)
        assert done.returncode == 0, done.stderr
        (folder / arch / "log").write_text(done.stdout)
    return folder


@pytest.fixture(params=["linear_lm_tmlr_type1", "softmax_lm_rope"])
def checkpoint(request, trained):
    return trained / request.param / "checkpoint_last.pt"


def test_eval_lm_and_validate_need_no_repeated_flags(checkpoint, data_bin, trained):
    shared = [data_bin, "--user-dir", PLUGIN, "--path", checkpoint, "--cpu"]
    flags = ["--batch-size", 8, "--tokens-per-sample", 32]  # batches have padding
    done = run("fairseq-eval-lm", checkpoint, *shared, *flags)
    assert done.returncode == 0, done.stderr
    loss = float(done.stderr.rsplit("Loss (base 2): ", 1)[1].split(",")[0])

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

    shared += ["--batch-size", 4, "--required-batch-size-multiple", 1, "--task", "language_modeling"]
    done = run("fairseq-validate", checkpoint, *shared, "--valid-subset", "test")
    assert done.returncode == 0, done.stderr
    validated = float(re.findall(r"'test' subset \| loss ([\d.]+)", done.stdout)[-1])
    assert validated == pytest.approx(loss, abs=1e-3)  # printed with three digits


def test_generate_and_interactive_give_the_same_hypotheses(checkpoint, data_bin, text_folder, tmp_path):
    flags = ["--user-dir", PLUGIN, "--task", "language_modeling", "--path", checkpoint, "--cpu"]
    flags += ["--beam", 3, "--max-len-a", 0, "--max-len-b", 30, "--min-len", 8]
    flags += ["--sample-break-mode", "eos", "--tokens-per-sample", 32, "--batch-size", 5]
    flags += ["--required-batch-size-multiple", 1]  # fairseq drops a last batch that is no multiple of 8
    words = [data_bin, *flags, "--gen-subset", "test", "--prefix-size", 2]
    hypotheses = generated_lines(run("fairseq-generate", checkpoint, *words), "H")
    assert len(hypotheses) == 40 and all(len(text.split()) >= 8 for text in hypotheses.values())

    lines = (text_folder / "test.txt").read_text().splitlines()[:5]
    prompt = "".join(" ".join(line.split()[:2]) + "\n" for line in lines)
    words = [data_bin, *flags, "--buffer-size", 5]
    answers = generated_lines(run("fairseq-interactive", checkpoint, *words, text=prompt), "H")
    assert answers == {i: hypotheses[i] for i in range(5)}


@pytest.mark.parametrize("positions", ["convolution", "rnn"])
def test_search_scores_with_positions_that_depend_on_earlier_tokens(positions, train, data_bin, tmp_path):
    flags = ["--token-positions", positions, "--max-update", 2, "--lr", 1]  # far from uniform
    done = train("softmax_lm_nope", tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "checkpoint_last.pt"
    flags = ["--user-dir", PLUGIN, "--task", "language_modeling", "--path", path, "--cpu", "--beam", 3]
    flags += ["--max-len-a", 0, "--max-len-b", 12, "--min-len", 8, "--prefix-size", 3, "--gen-subset", "test"]
    flags += ["--sample-break-mode", "eos", "--tokens-per-sample", 32, "--required-batch-size-multiple", 1]
    generated = run_command("fairseq-generate", data_bin, *flags, "--batch-size", 5)
    texts, scores = generated_lines(generated, "H"), generated_lines(generated, "P")
    assert len(texts) == 40 and len({*texts.values()}) > 5

    [model], _, task = load_model_ensemble_and_task([str(path)])
    end = task.dictionary.eos()
    for number, text in texts.items():
        tokens = torch.tensor([end, *map(task.dictionary.index, text.split()), end])
        with torch.no_grad():
            whole = model.eval()(tokens[None, :-1])[0].log_softmax(-1)[0] / math.log(2)
        expected = whole.gather(-1, tokens[1:, None])[:, 0].tolist()
        printed = [float(x) for x in scores[number].split()]
        assert printed == pytest.approx(expected, abs=2e-4)  # printed with four digits


def test_flags_override_the_method(train, tmp_path):
    off = train("linear_lm_tmlr_type2", tmp_path / "off", "--no-lrpe-learn-theta", "--max-update", 1)
    on = train("linear_lm_tmlr_type3", tmp_path / "on", "--linear-norm", "content", "--max-update", 1)
    assert off.returncode == 0 and on.returncode == 0, off.stderr + on.stderr
    assert not any(name.endswith("theta") for name in load_last_checkpoint(tmp_path / "off")["model"])
    assert not any("self_attn.norm" in name for name in load_last_checkpoint(tmp_path / "on")["model"])


def test_every_flag_has_help():
    shown = run_command("python", "-m", "fairseq_lrpe", "methods", "--flags")
    assert shown.returncode == 0, shown.stderr
    for f in fields(PositionConfig):
        if f.name != "_name":
            assert f.metadata["help"]
            assert f"\n  --{f.name.replace('_', '-')}" in shown.stdout
    assert "kind of self-attention: linear, softmax" in shown.stdout


def test_resuming_with_another_method(trained, train, tmp_path):
    # Models with elu and relu have the same parameters: only the fingerprint differs.
    assert train("linear_lm_base", tmp_path / "base", "--max-update", 1).returncode == 0
    before = (tmp_path / "base/checkpoint_last.pt").read_bytes()
    other = train("linear_lm", tmp_path / "base", "--feature-map", "relu", "--max-update", 2)
    last = other.stderr.strip().splitlines()[-1]
    assert other.returncode != 0 and "feature_map elu" in last and "feature_map relu" in last
    assert (tmp_path / "base/checkpoint_last.pt").read_bytes() == before

    restored = trained / "softmax_lm_rope/checkpoint_last.pt"
    other = train("linear_lm_tmlr_type1", tmp_path / "new", "--restore-file", restored, "--max-update", 9)
    assert other.returncode != 0 and "another method" in other.stderr.strip().splitlines()[-1]
    assert not list((tmp_path / "new").glob("*.pt"))


PROGRAM = """
import sys
import fairseq_lrpe.models
from fairseq.models import ARCH_MODEL_REGISTRY
print(sys.argv[1:], "linear_lm_base" in ARCH_MODEL_REGISTRY)
"""
FOREIGN = ["--arch", "linear_lm_nonsense", "--source-lang", "xx", "--target-lang", "yy"]


NAMED = f"""
from argparse import Namespace
from fairseq.utils import import_user_module
import_user_module(Namespace(user_dir={str(PLUGIN)!r}))
"""


@pytest.mark.parametrize("before", ["", NAMED])
@pytest.mark.parametrize("more", [[], ["--user-dir", PLUGIN]])
def test_other_programs_keep_their_command_line(before, more):
    """Programs that import the plugin may have flags with the same names as fairseq's."""
    done = run_command(BIN / "python" if before else "python", "-c", before + PROGRAM, *FOREIGN, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"{[str(x) for x in (*FOREIGN, *more)]} True\n")
