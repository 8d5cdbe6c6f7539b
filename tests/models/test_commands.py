"""fairseq's commands with our architectures."""

import json
import math
import re
from dataclasses import fields

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from tiny import BIN, PLUGIN, run_command, train_flags, train_here

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


def test_checkpoint_loads_safely_and_contains_its_method(trained):
    state = torch.load(trained / "linear_lm_tmlr_type1/checkpoint_last.pt", weights_only=True)
    model = state["cfg"]["model"]
    assert model["encoding"] == "lrpe" and model["lrpe_core"] == "unitary"
    assert model["lrpe_learn_theta"] is True and model["linear_norm"] == "layernorm"
    assert state["model"]["decoder.layers.0.self_attn.encoding.theta"].shape == (8,)


def test_eval_lm_and_validate_need_no_repeated_flags(checkpoint, data_bin, trained):
    shared = [data_bin, "--user-dir", PLUGIN, "--path", checkpoint, "--cpu"]
    flags = ["--batch-size", 8, "--tokens-per-sample", 32]  # a batch pads
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
    generated = run("fairseq-generate", checkpoint, *words)
    assert generated.returncode == 0, generated.stderr
    hypotheses = {line for line in generated.stdout.splitlines() if line.startswith("H-")}
    assert len(hypotheses) == 40 and all(len(line.split("\t")[2].split()) >= 8 for line in hypotheses)

    prompt = "".join(
        " ".join(line.split()[:2]) + "\n" for line in (text_folder / "test.txt").read_text().splitlines()[:5]
    )
    words = [data_bin, *flags, "--buffer-size", 5]
    interactive = run("fairseq-interactive", checkpoint, *words, text=prompt)
    assert interactive.returncode == 0, interactive.stderr
    answers = {line for line in interactive.stdout.splitlines() if line.startswith("H-")}
    by_id = {line.split("\t")[0]: line.split("\t")[2] for line in hypotheses}
    assert {line.split("\t")[0]: line.split("\t")[2] for line in answers} == {
        f"H-{i}": by_id[f"H-{i}"] for i in range(5)
    }


def test_search_scores_with_convolutional_positions(train, data_bin, tmp_path):
    flags = ["--token-positions", "convolution", "--max-update", 2, "--lr", 1]  # far from uniform
    done = train("softmax_lm_nope", tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "checkpoint_last.pt"
    flags = ["--user-dir", PLUGIN, "--task", "language_modeling", "--path", path, "--cpu", "--beam", 3]
    flags += ["--max-len-a", 0, "--max-len-b", 12, "--min-len", 8, "--prefix-size", 3, "--gen-subset", "test"]
    flags += ["--sample-break-mode", "eos", "--tokens-per-sample", 32, "--required-batch-size-multiple", 1]
    generated = run_command("fairseq-generate", data_bin, *flags, "--batch-size", 5)
    assert generated.returncode == 0, generated.stderr
    found = [line.split("\t") for line in generated.stdout.splitlines() if line[:2] in ("H-", "P-")]
    words, scores = ({x[0][2:]: x[-1].split() for x in found if x[0].startswith(kind)} for kind in "HP")
    assert len(words) == 40 and len({*map(tuple, words.values())}) > 5

    [model], _, task = load_model_ensemble_and_task([str(path)])
    end = task.dictionary.eos()
    for number, line in words.items():
        tokens = torch.tensor([end, *map(task.dictionary.index, line), end])
        with torch.no_grad():
            whole = model.eval()(tokens[None, :-1])[0].log_softmax(-1)[0] / math.log(2)
        expected = whole.gather(-1, tokens[1:, None])[:, 0].tolist()
        assert [float(x) for x in scores[number]] == pytest.approx(
            expected, abs=2e-4
        )  # printed with four digits


def test_interactive_sampling(checkpoint, data_bin):
    flags = ["--user-dir", PLUGIN, "--task", "language_modeling", "--path", checkpoint, "--cpu"]
    flags += ["--sampling", "--sampling-topk", 5, "--beam", 1, "--max-len-a", 0, "--max-len-b", 20]
    sampled = run_command("fairseq-interactive", data_bin, *flags, text="w1 w3\n")
    assert sampled.returncode == 0 and "\nH-0" in sampled.stdout, sampled.stderr


def test_hydra_train_uses_the_same_method(data_bin, tmp_path):
    sizes = {"embed_dim": 32, "ffn_embed_dim": 64, "layers": 2, "attention_heads": 4}
    done = run_command(
        "fairseq-hydra-train",
        f"common.user_dir={PLUGIN}",
        "task=language_modeling",
        f"task.data={data_bin}",
        "task.tokens_per_sample=32",
        "+model._name=linear_lm_iclr_type3",
        *(f"+model.decoder_{name}={value}" for name, value in sizes.items()),
        "dataset.batch_size=4",
        "optimization.max_update=2",
        "optimization.lr=[0.01]",
        "optimizer=adam",
        "lr_scheduler=fixed",
        "common.cpu=true",
        f"checkpoint.save_dir={tmp_path / 'checkpoints'}",
        f"hydra.run.dir={tmp_path / 'hydra'}",
    )
    assert done.returncode == 0, done.stderr
    state = torch.load(tmp_path / "checkpoints/checkpoint_last.pt", weights_only=True)
    fingerprint = json.loads(bytes(state["model"]["decoder.method.version"].tolist()))
    assert (
        fingerprint["lrpe_learn_householder"]
        and fingerprint["lrpe_learn_theta"]
        and fingerprint["linear_norm"] == "layernorm"
    )
    assert state["model"]["decoder.embed_tokens.weight"].size(1) == 32


def test_flags_override_the_method(train, tmp_path):
    off = train("linear_lm_tmlr_type2", tmp_path / "off", "--no-lrpe-learn-theta", "--max-update", 1)
    on = train("linear_lm_tmlr_type3", tmp_path / "on", "--linear-norm", "content", "--max-update", 1)
    assert off.returncode == 0 and on.returncode == 0, off.stderr + on.stderr
    names = torch.load(tmp_path / "off/checkpoint_last.pt", weights_only=True)["model"]
    assert not any(name.endswith("theta") for name in names)
    names = torch.load(tmp_path / "on/checkpoint_last.pt", weights_only=True)["model"]
    assert not any("self_attn.norm" in name for name in names)


def test_every_flag_has_help():
    shown = run_command("python", "-m", "fairseq_lrpe", "methods", "--flags")
    assert shown.returncode == 0, shown.stderr
    for f in fields(PositionConfig):
        if f.name != "_name":
            assert f.metadata["help"]
            assert f"\n  --{f.name.replace('_', '-')}" in shown.stdout
    assert "kind of self-attention: linear, softmax" in shown.stdout


INVALID = {
    "unknown encoding": ("linear_lm", ["--encoding", "ropee"], "rope"),
    "unknown attention": ("linear_lm", ["--attention", "cosine"], "linear, softmax"),
    "unknown norm": ("linear_lm", ["--linear-norm", "batch"], "denominator, layernorm, content"),
    "unknown feature map": ("linear_lm", ["--feature-map", "gelu"], "elu, relu"),
    "unknown core": ("linear_lm", ["--encoding", "lrpe", "--lrpe-core", "hermitian"], "unitary, orthogonal"),
    "unknown theta type": ("softmax_lm", ["--encoding", "lrpe", "--lrpe-theta-type", "d"], "a, b, c"),
    "fft with a real core": ("linear_lm_tmlr_type2", ["--lrpe-rotation", "fft"], "requires the unitary core"),
    "another's option": ("linear_lm_rope", ["--lrpe-core", "unitary"], "is an option of the encoding 'lrpe'"),
    "few buckets": ("softmax_lm_t5", ["--t5-buckets", 2], "multiple of 4 buckets"),
    "no clipping distance": ("softmax_lm_lfhc", ["--lfhc-k", 0], "at least 1, not 0"),
    "negative lambda": ("softmax_lm_gcdf", ["--gcdf-lambda", -1], "positive scale factor"),
    "additive in linear": ("linear_lm", ["--encoding", "t5"], "use softmax attention, or one of"),
    "unknown positions": ("linear_lm", ["--token-positions", "absolute"], "sinusoidal, learned, none"),
    "heads": ("linear_lm_rope", ["--decoder-attention-heads", 5], "32 is not divisible by 5"),
    "odd head dim": ("softmax_lm_rope", ["--decoder-attention-heads", 32], "must be even, not 1"),
    "odd orthogonal": ("linear_lm_iclr_type2", ["--decoder-embed-dim", 36], "must be even, not 9"),
    "mixed, too narrow": ("linear_lm_iclr_type1", ["--decoder-attention-heads", 16], "at least 3, not 2"),
}


def assert_rejected(done, message, save_dir):
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0
    assert last.startswith("fairseq_lrpe: ") and message in last
    assert "Traceback" not in done.stderr
    assert not save_dir.exists()


@pytest.mark.parametrize("case", INVALID)
def test_invalid_flags(case, data_bin, tmp_path):
    arch, flags, message = INVALID[case]
    flags = train_flags(data_bin, arch, tmp_path / "save", *flags, "--max-update", 1)
    assert_rejected(train_here(*flags), message, tmp_path / "save")


def test_missing_or_raw_data(text_folder, tmp_path):
    def started(data):
        return train_here(*train_flags(data, "linear_lm_base", tmp_path / "save"))

    gone = started(tmp_path / "nowhere")
    assert_rejected(gone, f"{tmp_path / 'nowhere'}' does not exist", tmp_path / "save")
    raw = started(text_folder)
    assert_rejected(raw, "is not binarized, dict.txt, train.bin", tmp_path / "save")


def test_further_data_folders_need_only_the_training_set(train, data_bin, tmp_path):
    shard = tmp_path / "shard"
    shard.mkdir()
    for name in ("train.bin", "train.idx"):
        (shard / name).write_bytes((data_bin / name).read_bytes())
    done = train("linear_lm_base", tmp_path / "save", "--max-update", 2, data=f"{data_bin}:{shard}")
    assert done.returncode == 0, done.stderr
    (shard / "train.bin").unlink()
    done = train("linear_lm_base", tmp_path / "new", data=f"{data_bin}:{shard}")
    assert_rejected(done, "is not binarized, train.bin missing", tmp_path / "new")


def test_resuming_with_another_method(trained, train, tmp_path):
    # base and nope have the same parameters: only the fingerprint tells them apart.
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
    """A program that imports the plugin may have flags like fairseq's."""
    done = run_command(BIN / "python" if before else "python", "-c", before + PROGRAM, *FOREIGN, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"{[str(x) for x in (*FOREIGN, *more)]} True\n")


@pytest.mark.parametrize("start", [["fairseq-train"], ["python", "-m", "fairseq_cli.train"]])
def test_unknown_method(start, data_bin, tmp_path):
    """torchrun uses the second form."""
    flags = train_flags(data_bin, "softmax_transformer_xxl", tmp_path / "save")
    message = "softmax_transformer has no method 'xxl' (did you mean 'xl'?): `lrpe methods`"
    assert_rejected(run_command(*start, *flags), message, tmp_path / "save")
