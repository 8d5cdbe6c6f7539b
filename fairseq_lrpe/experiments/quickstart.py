"""Train five small language models with linear attention and compare them: ``scripts/quickstart.sh``."""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

import matplotlib
from rich.console import Console
from rich.table import Table

from fairseq_lrpe.experiments import commands, corpus

METHODS = ("base", "nope", "rope", "tmlr_type1", "tmlr_type2")
VOCAB_SIZE = 2000
CONTEXT = "--tokens-per-sample 256 --batch-size 8 --num-workers 0 --data-buffer-size 0 --cpu"
TRAIN = f"""
    --task language_modeling {CONTEXT} --required-batch-size-multiple 1 --seed 1
    --decoder-layers 3 --decoder-embed-dim 128 --decoder-ffn-embed-dim 512 --decoder-attention-heads 4
    --share-decoder-input-output-embed --dropout 0.1
    --optimizer adam --adam-betas (0.9,0.98) --weight-decay 0.01 --clip-norm 0.0
    --lr 5e-3 --lr-scheduler inverse_sqrt --warmup-updates 100
    --validate-interval-updates 40 --validate-interval 1000
    --save-interval-updates 40 --save-interval 1000 --keep-interval-updates 1 --no-epoch-checkpoints
    --log-format simple --log-interval 20
"""
SHOWN = r"train_inner \| .*|valid \| .*"


def train_and_evaluate(method, data, updates, folder):
    """Train, then evaluate on both splits; result.json is written last, and a finished run is not repeated.

    An interrupted run goes on from its last checkpoint.
    """
    plugin = [data, "--user-dir", commands.PLUGIN]
    arguments = [*plugin, "--arch", f"linear_lm_{method}", "--max-update", updates, *TRAIN.split()]
    result, settings = folder / "result.json", folder / "settings.json"
    wanted = json.dumps([*map(str, arguments), data.stat().st_mtime])
    if settings.exists() and settings.read_text() != wanted:
        shutil.rmtree(folder)  # of other settings or other data: nothing to go on from
    if result.exists():
        print(f"    finished before: {folder}")
        return json.loads(result.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    settings.write_text(wanted)

    log, checkpoints = folder / "train.log", folder / "checkpoints"
    commands.run("train", [*arguments, "--save-dir", checkpoints], log, show=SHOWN)
    measured = {
        "curve": commands.validation_curve(log),
        "tokens_per_second": commands.tokens_per_second(log),
    }
    for split in ("valid", "test"):
        flags = ["--path", checkpoints / "checkpoint_best.pt", "--gen-subset", split, *CONTEXT.split()]
        commands.run("eval-lm", [*plugin, *flags], folder / f"eval-{split}.log")
        measured[split] = commands.evaluated_perplexity(folder / f"eval-{split}.log")
    part = result.with_suffix(".part")
    part.write_text(json.dumps(measured))
    os.replace(part, result)
    return measured


def show_table(results, updates):
    table = Table(title=f"Linear attention after {updates} updates")
    table.add_column("method")
    for column in ("valid ppl", "test ppl", "tokens/s", "relative speed"):
        table.add_column(column, justify="right")
    for method, r in results.items():
        speed = r["tokens_per_second"]
        relative = speed / results["base"]["tokens_per_second"]
        table.add_row(method, f"{r['valid']:.2f}", f"{r['test']:.2f}", f"{speed:,.0f}", f"{relative:.2f}")
    Console().print(table)


def draw(results, path):
    """Validation perplexity over updates, one line a method."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import ScalarFormatter

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for method, r in results.items():
        axes.plot(*zip(*r["curve"], strict=True), marker=".", label=f"{method} ({r['curve'][-1][1]:.1f})")
    axes.set(xlabel="updates", ylabel="validation perplexity", yscale="log", title="Linear attention")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())
    axes.grid(alpha=0.3, which="both")
    axes.legend(title="method (last)")
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(prog="quickstart.sh", description=__doc__)
    parser.add_argument(
        "--data", type=Path, help="a folder with train.txt, valid.txt and test.txt of your own"
    )
    parser.add_argument(
        "--updates", type=int, default=400, help="updates of each training (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="where everything goes (default: results/quickstart[-DATA])")
    args = parser.parse_args()
    source = args.data or "the English prose inside Python"
    out = args.out or Path("results", f"quickstart-{args.data.resolve().name}" if args.data else "quickstart")
    text, data, started = args.data or out / "text", out / "data-bin", time.time()
    try:
        if args.updates < 1:  # fairseq takes 0 for no end
            raise ValueError(f"--updates must be at least 1, not {args.updates}")
        if args.data:
            corpus.check_text(args.data)
        if not data.exists():
            print(f"Preparing {source} in {out}", flush=True)
            if not args.data:
                corpus.write_python_docs(text)
            corpus.binarise(text, data, VOCAB_SIZE)
        results = {}
        for number, method in enumerate(METHODS, 1):
            print(f"[{number}/{len(METHODS)}] linear_lm_{method}", flush=True)
            results[method] = train_and_evaluate(method, data, args.updates, out / method)
    except (ValueError, commands.CommandFailed) as error:
        sys.exit(f"quickstart: {error}")
    show_table(results, args.updates)
    draw(results, out / "valid_ppl.png")
    print(f"{out / 'valid_ppl.png'} shows validation perplexity over updates.")
    print(f"{time.time() - started:.0f} s in all")


if __name__ == "__main__":
    main()
