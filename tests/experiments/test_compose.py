"""From an experiment's YAML to commands, and whether these say what the papers' tables say."""

import pytest
import torch
from fairseq import optim, options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import lr_scheduler
from fairseq.tasks.language_modeling import LanguageModelingTask

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.experiments import compose
from fairseq_lrpe.methods import METHODS


def command(experiment="lm/wikitext103", method="tmlr_type1", attention="linear", overrides=(), **launch):
    cfg = compose.load(experiment, overrides)
    return compose.train_command(cfg, method, attention, 1, **launch)


def flags(words):
    """{flag: value, or True} of a command."""
    found = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = True if after.startswith("--") else after
    return found


PAPER = {
    "--task": "language_modeling",
    "--arch": "linear_lm_tmlr_type1",
    "--decoder-layers": "6",
    "--decoder-embed-dim": "512",
    "--decoder-attention-heads": "8",
    "--decoder-ffn-embed-dim": "2048",
    "--activation-fn": "relu",
    "--tokens-per-sample": "512",
    "--max-update": "50000",
    "--warmup-updates": "4000",
    "--lr": "0.0005",
    "--lr-scheduler": "inverse_sqrt",
    "--optimizer": "adam",
    "--adam-eps": "1e-08",
    "--adam-betas": "(0.9, 0.98)",
    "--weight-decay": "0.01",
    "--clip-norm": "0.0",
    "--dropout": "0.1",
    "--attention-dropout": "0.0",
    # not the papers'
    "--user-dir": "fairseq_lrpe",
    "--sample-break-mode": "none",
    "--share-decoder-input-output-embed": True,
    "--warmup-init-lr": "1e-07",
    "--batch-size": "8",
    "--update-freq": "2",
    "--required-batch-size-multiple": "1",
    "--seed": "1",
    "--save-dir": "checkpoints",
    "--validate-interval-updates": "1000",
    "--validate-interval": "100000",
    "--save-interval-updates": "1000",
    "--save-interval": "100000",
    "--keep-interval-updates": "1",
    "--no-epoch-checkpoints": True,
    "--log-interval": "100",
    "--log-format": "json",
    "--distributed-world-size": "8",
    "--fp16": True,
}


@pytest.mark.parametrize("experiment", ["lm/wikitext103", "lm/books"])
def test_the_papers_configuration(experiment):
    words = command(experiment, gpus=8, precision="fp16")
    assert words[:2] == ["fairseq-train", f"data/{experiment[3:]}/bin"]
    assert flags(words) == PAPER
    assert compose.load(experiment).seeds == [1, 2, 3, 4, 5]


def test_type8_alone_clips_its_gradients():
    assert flags(command(method="iclr_type8"))["--clip-norm"] == "1.0"
    overridden = command(method="iclr_type8", overrides=["train.clip_norm=0.5"])
    assert flags(overridden)["--clip-norm"] == "0.5"


@pytest.mark.parametrize(
    "gpus, nodes, expected", [(0, 1, 16), (1, 1, 16), (2, 1, 8), (4, 1, 4), (8, 1, 2), (8, 2, 1)]
)
def test_every_number_of_gpus_makes_the_papers_batch(gpus, nodes, expected):
    words = command(gpus=gpus, nodes=nodes, rendezvous="first:29500")
    found = flags(words)
    assert found["--update-freq"] == str(expected)
    processes = int(found["--distributed-world-size"])
    sequences = int(found["--batch-size"]) * int(found["--update-freq"]) * processes
    assert processes == max(gpus, 1) * nodes and sequences == 128
    assert sequences * int(found["--tokens-per-sample"]) == 65_536
    assert ("--cpu" in found) == (gpus == 0)
    if nodes > 1:
        assert (
            words[:11]
            == (
                "torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint first:29500 --nproc_per_node 8 -m "
                "fairseq_cli.train"
            ).split()
        )


@pytest.mark.parametrize("gpus, nodes, overrides, numbers", [
    (3, 1, [], "128 sequences is no multiple of 3 GPUs × 8 sequences (batch.per_gpu) = 24"),
    (8, 4, [], "32 GPUs × 8 sequences (batch.per_gpu) = 256"),
    (0, 1, ["batch.per_gpu=3"], "one process × 3 sequences (batch.per_gpu) = 3"),
    (0, 1, ["batch.per_gpu=0"], "(batch.per_gpu) = 0"),
])  # fmt: skip
def test_a_batch_that_does_not_divide(gpus, nodes, overrides, numbers):
    with pytest.raises(ValueError) as refused:
        command(gpus=gpus, nodes=nodes, overrides=overrides)
    assert numbers in str(refused.value)


@pytest.mark.parametrize("override, message", [
    ("train.rate=1", "no key 'train.rate', an override is key=value with a key of train: tokens_per_sample"),
    ("updatse=1", "a key of the experiment: source, family"),
    ("updates", "an override is key=value"),
    ("updates.x=1", "has no key 'updates.x'"),
    ("updates=many", "updates is a number, such as 50000, not a text"),
    ("seeds=1", "seeds is a list"),
    ("batch=8", "batch is a section, override one of its keys: total, per_gpu"),
])  # fmt: skip
def test_wrong_overrides(override, message):
    with pytest.raises(ValueError) as refused:
        compose.load("lm/wikitext103", [override])
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_overrides_arrive():
    words = command(overrides=["train.lr=1e-3", "updates=7", "train.share_decoder_input_output_embed=false"])
    found = flags(words)
    assert found["--lr"] == "0.001" and found["--max-update"] == "7"
    assert "--share-decoder-input-output-embed" not in found
    evaluated = flags(
        compose.evaluate_command(compose.load("lm/mini", ["train.tokens_per_sample=64"]), "test")
    )
    assert evaluated["--tokens-per-sample"] == "64" and evaluated["--gen-subset"] == "test"


@pytest.mark.parametrize("experiment, method, attention, message", [
    ("lm/wikitext", "base", "linear", "no experiment 'lm/wikitext' in configs: choose from "),
    ("lm/mini", "bsae", "linear", "the method 'bsae' does not exist: choose from base, nope"),
    ("lm/mini", "t5", "linear", "'t5' does not exist in linear attention: choose from base, nope"),
    ("lm/mini", "fairseq", "linear", "'fairseq' does not exist in linear attention: choose from base"),
    ("lm/mini", "base", "cosine", "no attention 'cosine': choose from linear, softmax"),
])  # fmt: skip
def test_what_does_not_exist(experiment, method, attention, message):
    with pytest.raises(ValueError) as refused:
        command(experiment, method, attention)
    assert message in str(refused.value)


def test_methods_with_the_same_flags_are_one_run():
    assert compose.canonical("ablation_householder_unitary") == "tmlr_type1"
    assert compose.canonical("iclr_type2") == "tmlr_type2"
    assert compose.canonical("iclr_type1") == "iclr_type1"
    assert all(compose.canonical(compose.canonical(name)) == compose.canonical(name) for name in METHODS)


# --- the real model at the papers' size -------------------------------------------------------------


def parsed(data_bin, experiment, *launch, **kwargs):
    """fairseq's own reading of the composed command."""
    words = command(experiment, *launch, overrides=[f"data={data_bin}"], **kwargs)
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words[1:]))


def dictionary(size):
    found = Dictionary()
    for i in range(size - len(found)):
        found.add_symbol(f"w{i}")
    return found


LAYER = 4 * (512 * 512 + 512) + (512 * 2048 + 2048) + (2048 * 512 + 512) + 2 * 2 * 512
BODY = 6 * LAYER + 2 * 512  # and the last LayerNorm


@pytest.mark.parametrize("experiment, attention, method, vocabulary, own", [
    ("lm/wikitext103", "linear", "base", 267_744, 0),
    ("lm/wikitext103", "linear", "tmlr_type1", 267_744, 6 * (64 + 2 * 512)),
    ("lm/wikitext103", "softmax", "base", 267_744, 0),
    ("lm/books", "linear", "tmlr_type3", 50_264, 6 * 2 * 512),
])  # fmt: skip
def test_parameters_at_the_papers_size(data_bin, experiment, attention, method, vocabulary, own):
    """Embeddings, six layers of four projections and a feed-forward, and what the method adds: an angle
    for each of a head's 64 features, and the LayerNorm of linear attention."""
    cfg = parsed(data_bin, experiment, method, attention)
    task = LanguageModelingTask(cfg.task, dictionary(vocabulary))
    with torch.device("meta"):
        model = tasks.FairseqTask.build_model(task, cfg.model)
    assert sum(p.numel() for p in model.parameters()) == vocabulary * 512 + BODY + own
    assert vocabulary * 512 + BODY == {267_744: 156_000_256, 50_264: 44_650_496}[vocabulary]


def test_learning_rate_at_given_updates(data_bin):
    cfg = parsed(data_bin, "lm/wikitext103", "tmlr_type1", "linear")
    optimizer = optim.build_optimizer(cfg.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    schedule = lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, optimizer)
    rates = {1: 1e-7 + (5e-4 - 1e-7) / 4000, 4000: 5e-4, 16000: 2.5e-4, 50000: 5e-4 * (4000 / 50000) ** 0.5}
    for update, rate in rates.items():
        assert schedule.step_update(update) == pytest.approx(rate, rel=1e-6)
    group = optimizer.optimizer.param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-8, 0.01)
