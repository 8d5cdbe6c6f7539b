"""Helpers for tests: calls of commands, flags and text of a tiny language model, and run folders."""

import io
import json
import logging
import os
import random
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import torch
from omegaconf import OmegaConf

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = REPOSITORY / "fairseq_lrpe"
BIN = Path(sys.executable).parent  # before conftest.py replaces sys.executable
FLAGS = (
    "--task language_modeling --decoder-layers 2 --decoder-embed-dim 32 --decoder-ffn-embed-dim 64 "
    "--decoder-attention-heads 4 --tokens-per-sample 32 --batch-size 4 --optimizer adam --lr 0.01 "
    "--num-workers 0 --data-buffer-size 0 --cpu --required-batch-size-multiple 1"
).split()


def run_command(name, *arguments, text=None, folder=REPOSITORY, **environment):
    """Runs a command such as fairseq-train in a folder, with ``text`` as standard input.

    The command runs as a fork (see forks.py), or in a new process if its name is given as ``BIN / name``.
    ``environment`` is variables that are set in addition to those of this process.
    """
    command, env = [Path(sys.executable).parent / name, *map(str, arguments)], os.environ | environment
    return subprocess.run(command, cwd=folder, env=env, input=text, capture_output=True, text=True)


def run_here(main, *arguments):
    words, before = list(map(str, arguments)), os.environ.copy()
    logger, disabled, code = logging.getLogger(main.__module__), logging.root.manager.disable, 0
    handlers = list(logger.handlers)
    try:
        with (
            patch.object(sys, "argv", [main.__module__, *words]),
            redirect_stdout(io.StringIO()) as out,
            redirect_stderr(io.StringIO()) as err,
        ):
            try:
                main()
            except SystemExit as end:
                code = end.code
                if isinstance(code, str):
                    print(code, file=err)
                    code = 1
    finally:  # a failing test must not affect later ones
        for handler in set(logger.handlers) - set(handlers):  # fairseq-preprocess writes a log
            logger.removeHandler(handler)
            handler.close()
        logging.disable(disabled)
        os.environ.clear()
        os.environ.update(before)
    return subprocess.CompletedProcess(words, code or 0, out.getvalue(), err.getvalue())


def succeeded(done):
    """Asserts that a command succeeded, and returns its completed process."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def output_of(main, *arguments):
    """Calls a command that must succeed, and returns its standard output."""
    return succeeded(run_here(main, *arguments)).stdout


def preprocess(*arguments):
    from fairseq_cli.preprocess import cli_main

    output_of(cli_main, *arguments)


def train_here(*flags):
    """Runs fairseq-train in this process; the result does not include its log."""
    from fairseq_cli.train import cli_main

    import fairseq_lrpe.models  # noqa: F401  (fairseq imports them only if it is the first to import the plugin)

    return run_here(cli_main, *flags)


def train_flags(data, arch, save_dir, *flags):
    return [data, "--user-dir", PLUGIN, *FLAGS, "--arch", arch, "--save-dir", save_dir, *flags]


TINY_EXTENSION = """\
from fairseq_lrpe.encodings import START, Encoding, register_encoding
from fairseq_lrpe.methods import register_method


@register_encoding("mine", speed="an option")
class Mine(Encoding):
    def __init__(self, *, speed=1.0, **shared):
        super().__init__(**shared)

    def forward(self, q, k, context=START):
        return q, k


register_method("mine", {"encoding": "mine"}, "a test")
"""
"""A module outside the package that registers an encoding and a method."""
SMALL_LM = (
    "batch.total=4 batch.per_gpu=4 train.tokens_per_sample=32 train.decoder_layers=2 "
    "train.decoder_embed_dim=32 train.decoder_ffn_embed_dim=64"
).split()
"""Overrides that make an experiment's language model small."""
SMALL_ENCODER = (
    "train.encoder_layers=1 train.encoder_embed_dim=16 train.encoder_ffn_embed_dim=16 "
    "train.encoder_attention_heads=2"
).split()


def job_of(
    experiment, method, attention="linear", overrides=(), seed=1, results=REPOSITORY / "results", **more
):
    """Returns the job of a method's only run, or of the first one if the experiment has a grid."""
    from fairseq_lrpe.experiments.definition.experiment import Experiment
    from fairseq_lrpe.experiments.execution.job import Job

    loaded = Experiment.load(experiment, overrides)
    return Job(loaded, loaded.runs(attention, method, [seed])[0], results, **more)


def read(folder, name="evaluation.json"):
    """Returns the content of a JSON file in a run's folder."""
    return json.loads((folder / name).read_text())


def copy_plugin(folder):
    """Copies the plugin and configs to a folder, in which ``run_copy`` runs them."""
    for name in ("fairseq_lrpe", "configs"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def run_copy(folder, *words):
    """Runs ``lrpe`` with the plugin that :func:`copy_plugin` has copied to a folder."""
    command = [sys.executable, "-m", "fairseq_lrpe", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def write_configs(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(content, folder / f"{name}.yaml")
    return folder


def write_run(folder, curve, valid=None, updates=None):
    """Writes a run folder with the validations ``curve`` {number of updates: perplexity}.

    ``valid`` is the perplexity in the final evaluation, or None if the run is unfinished. The other settings
    are those in configs, if the experiment is defined there.
    """
    folder.mkdir(parents=True)
    config, evaluated = configured(folder)
    config = (config or {"updates": 100}) | ({} if updates is None else {"updates": updates})
    settings = {"kind": "lm", "updates": config.get("updates", 100), "config": config}
    (folder / "run.json").write_text(json.dumps(settings))
    log = [{"kind": "valid", "valid_num_updates": n, "valid_ppl": ppl} for n, ppl in curve.items()]
    log += [{"kind": "train_inner", "num_updates": n, "ppl": ppl} for n, ppl in curve.items()]
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    if valid is not None:
        split = {"bits": 1.0, "perplexity": valid, "tokens": 9, "settings": evaluated}
        evaluation = {"evaluations": {"valid": split}, "finished": "2020-01-01T00:00:00"}
        (folder / "evaluation.json").write_text(json.dumps(evaluation))


def configured(folder):
    """Returns the settings in configs of a run's folder, and those of its evaluation "valid", or {}."""
    from fairseq_lrpe.experiments.definition.config_files import experiments
    from fairseq_lrpe.experiments.definition.experiment import Experiment
    from fairseq_lrpe.experiments.execution.job import Job
    from fairseq_lrpe.experiments.reporting.records import read_run

    name = next((name for name in experiments() if f"/{name}/" in str(folder)), None)
    if name is None:
        return {}, {}
    results = Path(str(folder).rpartition(f"/{name}/")[0])
    job = Job(Experiment.load(name), read_run(folder, results).run, results)
    valid = "valid" in job.kind.evaluations(job.cfg)
    return job.recorded_config, job.evaluation_settings("valid") if valid else {}


def pretend_gpus(monkeypatch, cards, built_for):
    """Makes torch report GPUs {name: compute capability} and the architectures that it was built for."""
    names, capabilities = list(cards), list(cards.values())
    fakes = {"is_available": lambda: True, "device_count": lambda: len(cards)}
    fakes |= {"get_arch_list": lambda: built_for, "get_device_name": lambda i: names[_index(i)]}
    fakes |= {"get_device_capability": lambda i: capabilities[_index(i)]}
    for name, function in fakes.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def _index(device):
    return device if isinstance(device, int) else device.index or 0


def write_text(folder):
    """Writes train.txt, valid.txt and test.txt, in which each word has four possible successors."""
    draw = random.Random(0)
    for split, sentences in (("train", 200), ("valid", 40), ("test", 40)):
        lines = []
        for _ in range(sentences):
            line = [draw.randrange(40)]
            for _ in range(draw.randrange(4, 20)):
                line.append((line[-1] * 3 + draw.randrange(4)) % 40)
            lines.append(" ".join(f"w{i}" for i in line))
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")


def write_byte_pairs(folder):
    """Writes encoder.json, vocab.bpe and dict.txt of a tiny GPT-2 BPE with 256 bytes and four merges."""
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "th")]
    types = [*bytes_to_unicode().values(), *("".join(pair) for pair in merges)]
    (folder / "encoder.json").write_text(json.dumps({x: i for i, x in enumerate(types)}))
    (folder / "vocab.bpe").write_text(
        "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8"
    )
    (folder / "dict.txt").write_text("".join(f"{i} {1000 - i}\n" for i in range(len(types))))
