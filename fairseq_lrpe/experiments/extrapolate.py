"""Perplexity of a trained language model at other lengths than its training's: ``scripts/extrapolate.sh``.

The test split is cut into blocks of each length that do not overlap, so that every length predicts the same
tokens; fairseq-eval-lm measures each. The numbers go to RUN/extrapolation.json.
"""

import argparse
import json
import logging
import math
import os
import pickle
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from fairseq_lrpe.experiments import commands
from fairseq_lrpe.experiments.compose import REPOSITORY

SPLIT = "test"
TABLES = ("learned", "multiplicative", "hierarchical")
"""Token positions whose parameters have a row for each position of training."""


def trained_length(model):
    """The longest sequence that the model of these flags was built for."""
    return model["max_target_positions"] or model["tokens_per_sample"]


def longest(model):
    """(length, reason): the longest sequence that a trained model of these flags can read, and why.

    ``model`` is a checkpoint's ``cfg["model"]``. To read more than it was built for, fairseq has to build
    the model for that length (max_target_positions): what depends on it can not go on.
    """
    trained, positions = trained_length(model), model["token_positions"]
    if model["decoder_learned_pos"]:
        positions = "learned"
    if positions in TABLES:
        return trained, f"its {positions} token positions are a table of the {trained} positions of training"
    if model["encoding"] == "cosformer":
        return (
            trained,
            f"cosformer's cos(π(i−j)/2M) has M = {trained} in it and is negative beyond that distance",
        )
    fixed = (
        model["encoding"] == "lrpe" and model["lrpe_core"] != "permutation" and not model["lrpe_learn_theta"]
    )
    if fixed and model["lrpe_theta_type"] in ("b", "c"):
        kind = model["lrpe_theta_type"]
        return trained, f"its fixed angles of type {kind} are made from the {trained} positions of training"
    if positions == "none" or model["no_token_positional_embeddings"]:
        return math.inf, "nothing in it has a length"
    return 100_000, "fairseq's token positions end there"


def find_checkpoint(run):
    """(path, its settings). ValueError where there is no checkpoint of a language model."""
    if not run.is_dir():
        raise ValueError(
            f"the run folder {run} does not exist: give one like results/lm/mini/linear_rope/seed-1"
        )
    for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
        path = run / "checkpoints" / name
        if path.is_file():
            break
    else:
        raise ValueError(
            f"{run}/checkpoints has no checkpoint_best.pt or checkpoint_last.pt: train the run first"
        )
    try:
        cfg = torch.load(path, map_location="cpu", weights_only=True)["cfg"]
        if cfg["task"]["_name"] != "language_modeling" or "token_positions" not in cfg["model"]:
            raise ValueError(
                f"{path} is not one of fairseq_lrpe's language models: only those have a perplexity"
            )
    except (RuntimeError, EOFError, OSError, KeyError, TypeError, pickle.UnpicklingError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"{path} cannot be read as fairseq's checkpoint ({reason}): train the run again"
        ) from None
    return path, cfg


def count_tokens(data):
    """The number of tokens of the test split."""
    from fairseq.data.indexed_dataset import make_dataset

    if not (data / f"{SPLIT}.idx").is_file():
        raise ValueError(
            f"the data that the run was trained on has no {SPLIT} split: {data}/{SPLIT}.idx is missing"
        )
    split = make_dataset(str(data / SPLIT), impl="mmap")  # its sizes are gone when it is
    return int(split.sizes.sum())


def check(lengths, model, tokens):
    """ValueError for a length that cannot be measured."""
    limit, reason = longest(model)
    for length in lengths:
        if length < 1:
            raise ValueError(f"a length must be at least 1, not {length}")
        if length > limit:
            raise ValueError(f"this model reads at most {limit:,} tokens, not {length:,}: {reason}")
        if length > tokens:
            raise ValueError(f"the {SPLIT} split has {tokens:,} tokens, too few for a block of {length:,}")


def evaluate(length, path, data, trained, tokens, log):
    """{"loss" (base 2), "perplexity", "tokens"} of fairseq-eval-lm with blocks of ``length``."""
    # One process: each of several would evaluate a part of the split and report it alone.
    flags = f"""--gen-subset {SPLIT} --tokens-per-sample {length} --sample-break-mode none
        --max-tokens {max(length, 2048)} --required-batch-size-multiple 1 --num-workers 0
        --distributed-world-size 1"""
    if length > trained:
        flags += f" --model-overrides {{'max_target_positions':{length}}}"
    log.unlink(missing_ok=True)
    commands.run("eval-lm", [data, "--user-dir", commands.PLUGIN, "--path", path, *flags.split()], log)
    text = log.read_text()
    evaluated = int(re.findall(r"Evaluated ([\d,]+) tokens", text)[-1].replace(",", ""))
    if evaluated != tokens:  # fairseq leaves out silently what it finds too long
        raise ValueError(
            f"fairseq-eval-lm read {evaluated:,} of {tokens:,} tokens in blocks of {length:,}: see {log}"
        )
    loss, perplexity = re.findall(r"Loss \(base 2\): (\S+), Perplexity: (\S+)", text)[-1]
    return {"loss": float(loss), "perplexity": float(perplexity), "tokens": evaluated}


def extrapolate(run, lengths):
    """Evaluate and write RUN/extrapolation.json, whole or not at all."""
    path, cfg = find_checkpoint(run)
    # A relative path is meant from the repository, where trainings run.
    data, trained = REPOSITORY / cfg["task"]["data"].split(os.pathsep)[0], trained_length(cfg["model"])
    tokens = count_tokens(data)
    check(lengths, cfg["model"], tokens)
    measured = {}
    for number, length in enumerate(lengths, 1):
        print(f"[{number}/{len(lengths)}] blocks of {length:,} tokens", file=sys.stderr, flush=True)
        log = run / f"extrapolation-{length}.log"
        measured[length] = evaluate(length, path, data, trained, tokens, log)
    result = {
        "checkpoint": path.name,
        "split": SPLIT,
        "trained_length": trained,
        "lengths": measured,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    target = run / "extrapolation.json"
    part = target.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1))
    os.replace(part, target)
    return result


def show(result, run):
    tokens = next(iter(result["lengths"].values()))["tokens"]
    print(
        f"{run}, {result['checkpoint']}, trained on blocks of {result['trained_length']:,} tokens: "
        f"the {tokens:,} tokens of the {result['split']} split in other blocks"
    )
    table = Table()
    for column in ("tokens a block", "× training", "perplexity"):
        table.add_column(column, justify="right")
    for length, measured in result["lengths"].items():
        times = length / result["trained_length"]
        table.add_row(f"{length:,}", f"{times:.3g}", f"{measured['perplexity']:.2f}")
    Console().print(table)


def draw(result, title, path):
    """Perplexity over the block length."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lengths = list(result["lengths"])
    figure, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    axes.plot(lengths, [m["perplexity"] for m in result["lengths"].values()], marker="o", color="#0072B2")
    trained = result["trained_length"]
    axes.axvline(trained, color="0.5", linestyle="--", linewidth=1)
    axes.text(
        *(trained, 0.98, "length of training "),
        transform=axes.get_xaxis_transform(),
        **{"rotation": 90, "ha": "right", "va": "top", "color": "0.4", "fontsize": 8},
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set(xlabel="tokens a block", ylabel=f"{result['split']} perplexity", title=title)
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(prog="extrapolate.sh", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, with a checkpoint")
    parser.add_argument("lengths", type=int, nargs="+", metavar="LENGTH", help="tokens a block")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="perplexity over the length")
    args = parser.parse_args()
    logging.disable(logging.INFO)  # importing fairseq turns on every library's
    try:
        result = extrapolate(args.run, sorted(set(args.lengths)))
    except (ValueError, commands.CommandFailed) as error:
        sys.exit(f"extrapolate: {error}")
    show(result, args.run)
    if args.plot:
        draw(result, "/".join(args.run.parts[-3:]), args.plot)


if __name__ == "__main__":
    main()
