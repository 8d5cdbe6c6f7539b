"""Measures the decoding speed of translation models beside fairseq's own ``transformer``.

``python -m fairseq_lrpe.measure.decoding`` searches translations of the same batches with models of
random weights, ours and fairseq's in turn, through fairseq's beam search. Every search has as many steps as
its batch's longest source has tokens, so that all models do the same work. Linear attention is in encoder
and decoder.
"""

import argparse
import logging
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import torch
from fairseq import tasks, utils
from fairseq.sequence_generator import SequenceGenerator
from rich.progress import Progress
from rich.table import Table

import fairseq_lrpe.models  # noqa: F401  (fairseq imports a plugin's models only if it is the first to import it)
from fairseq_lrpe.measure.shared import refuse_less, seconds, show_wide
from fairseq_lrpe.measure.speed import FAMILIES, settings, translation_batch
from fairseq_lrpe.methods import ATTENTIONS, FAIRSEQS, METHODS

WARM_UP = 8
"""Steps."""


def build(arch: str, args: Namespace, **flags):
    """Returns a task and a model in evaluation mode, with the data's vocabulary or ``args.vocab_size``."""
    size = {"encoder_layers": args.layers, "decoder_layers": args.layers}
    if args.data:
        data, family = [args.data], {"task": "translation", **size}
    else:
        family = FAMILIES["transformer"].flags(args.length, args.layers)
        data, family = (), {"task": "dummy_mt", "dict_size": args.vocab_size - 4, **family}
    cfg = settings({"arch": arch, **family, **flags}, data)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model).eval()
    return task, model.cuda() if torch.cuda.is_available() else model


def batches(task, args: Namespace) -> list[dict]:
    """Returns ``args.rounds`` batches: random tokens, or the data's test split, from its shortest sentences
    to its longest."""
    if not args.data:
        found = [translation_batch(args, task.source_dictionary.pad()) for _ in range(args.rounds)]
    else:
        task.load_dataset("test")
        found = list(
            task.get_batch_iterator(
                task.dataset("test"), max_sentences=args.batch_size, required_batch_size_multiple=1
            ).next_epoch_itr(shuffle=False)
        )
        step = max(1, len(found) // args.rounds)
        found = found[step // 2 :: step][: args.rounds]
    return [utils.move_to_cuda(batch) for batch in found] if torch.cuda.is_available() else found


def search_seconds(generator, batch, steps=None) -> float:
    """Times a beam search with as many steps as the longest source has tokens, or ``steps``."""
    steps, found = steps or batch["net_input"]["src_tokens"].size(1), []
    generator.max_len_a, generator.max_len_b, generator.min_len = 0, steps, steps
    taken = seconds(lambda: found.extend(generator.generate([], batch)))
    assert all(len(beam[0]["tokens"]) == steps + 1 for beam in found)
    return taken


def compare(arch: str, args: Namespace, advance: Callable, **flags) -> list[tuple[float, float, int]]:
    """Returns [(seconds of ``arch``, of fairseq's, sentences)] of every batch, after a warm-up of each."""
    searches = []
    for name, more in ((arch, flags), (FAIRSEQS["transformer"], {})):
        torch.manual_seed(1)
        task, model = build(name, args, **more)
        searches.append(SequenceGenerator([model], task.target_dictionary, beam_size=args.beam))
    times, found = [], batches(task, args)
    for search in searches:
        search_seconds(search, found[0], WARM_UP)
    for number, batch in enumerate(found):
        order = (0, 1) if number % 2 else (1, 0)
        taken = {i: search_seconds(searches[i], batch) for i in order}
        times.append((taken[0], taken[1], len(batch["net_input"]["src_tokens"])))
        advance()
    return times


def show(measured, args):
    """Prints what was measured, one row a model."""
    what = f"{Path(args.data).resolve()}, test" if args.data else f"{args.length} random tokens"
    table = Table(
        title=f"{what}: {args.layers} + {args.layers} layers, beam {args.beam}, batch {args.batch_size}, "
        f"{len(next(iter(measured.values())))} interleaved batches",
        caption="relative: median over the batches of fairseq's time / the model's; spread: least to largest",
    )
    table.add_column("model")
    for column in ("sentences/s", "fairseq's", "relative", "spread"):
        table.add_column(column, justify="right")
    for name, times in measured.items():
        ratios = sorted(theirs / ours for ours, theirs, _ in times)
        ours, theirs, sentences = (sum(x) for x in zip(*times, strict=True))
        table.add_row(
            name,
            f"{sentences / ours:.2f}",
            f"{sentences / theirs:.2f}",
            f"{statistics.median(ratios):.2f}",
            f"{ratios[0]:.2f}-{ratios[-1]:.2f}",
        )
    show_wide(table)


def main():
    parser = argparse.ArgumentParser(prog="python -m fairseq_lrpe.measure.decoding", description=__doc__)
    parser.add_argument("--attention", choices=ATTENTIONS, help="only this one (default: both)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD", default=["base"])
    parser.add_argument("--data", help="the folder of fairseq-preprocess whose test split is translated")
    parser.add_argument("--length", type=int, default=512, help="without --data (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=42720, help="without --data: %(default)s")
    parser.add_argument("--batch-size", type=int, default=32, help="sentences (default: %(default)s)")
    parser.add_argument("--beam", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=8, help="batches (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="of encoder and decoder (default: %(default)s)")
    args = parser.parse_args()
    refuse_less(parser, args, length=1, vocab_size=5, batch_size=1, beam=1, rounds=1, layers=1)
    for method in args.methods:
        if args.attention and args.attention not in METHODS[method].attentions():
            parser.error(f"{method} works in {', '.join(METHODS[method].attentions())} attention alone")
    if args.data and not any(Path(args.data).glob("test.*-*.*.bin")):
        sys.exit(
            f"decoding: {args.data} holds no binarised test split: "
            "bash data_prep/prepare.sh multi30k makes one"
        )
    logging.disable(logging.INFO)
    plan = [
        f"{attention}_transformer_{method}"
        for attention in ([args.attention] if args.attention else ATTENTIONS)
        for method in args.methods
        if attention in METHODS[method].attentions()
    ]
    measured = {}
    with Progress() as progress:
        bar = progress.add_task("", total=len(plan) * args.rounds)
        for arch in plan:
            progress.update(bar, description=arch)
            attention = arch.partition("_")[0]
            both = {"decoder_attention": attention, "encoding_in": "both"}
            measured[arch] = compare(arch, args, lambda: progress.advance(bar), **both)
    show(measured, args)


if __name__ == "__main__":
    main()
