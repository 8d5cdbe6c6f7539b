"""Training speed of every method relative to the base of the same attention.

``python -m fairseq_lrpe.experiments.speed`` measures whole training steps of fairseq's trainer (forward,
backward, update) at the size of the papers' language models, each method interleaved with the base, and
prints them beside the published ratios.
"""

import argparse
import logging
import statistics
import time

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import fairseq_lrpe.models  # noqa: F401  (fairseq imports a plugin's models only if it is the first to import it)
from fairseq_lrpe.experiments.commands import PLUGIN
from fairseq_lrpe.methods import ATTENTIONS, METHODS

PUBLISHED = {
    # LRPE TMLR Table 6, bidirectional language model, linear attention.
    "TMLR Table 6": {
        "linear": {
            **{"rope": 0.86, "spe": 0.61, "per": 0.94},
            **{"tmlr_type1": 0.82, "tmlr_type2": 0.82, "tmlr_type3": 0.89},
        }
    },
    # LRPE ICLR Table 9, on a GTX 1060; its "LRPE" is one row, and most of its vanilla column is unreadable.
    "ICLR Table 9": {
        "linear": {"rope": 0.97, "spe": 0.42, "per": 0.88, "iclr_type2": 0.91},
        "softmax": {"rope": 0.95, "spe": 0.41},
    },
}


class Step:
    """One training step of an architecture on random tokens, again and again."""

    def __init__(self, arch, args):
        flags = [
            "--user-dir",
            PLUGIN,
            "--task",
            "dummy_lm",
            "--arch",
            arch,
            "--dict-size",
            args.vocab_size - 4,
        ]
        flags += ["--tokens-per-sample", args.length, "--batch-size", args.batch_size]
        flags += ["--decoder-layers", args.layers]
        flags += ["--optimizer", "adam", "--lr", "5e-4", "--save-dir", "/nonexistent"]
        flags += [] if torch.cuda.is_available() else ["--cpu"]
        parser = options.get_training_parser(default_task="dummy_lm")
        cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, list(map(str, flags))))
        task = tasks.setup_task(cfg.task)
        self.trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
        task.load_dataset("train")
        self.trainer.begin_epoch(1)
        tokens = torch.randint(4, args.vocab_size, (args.batch_size, args.length + 1))
        self.batch = {
            "id": torch.arange(args.batch_size),
            "net_input": {
                "src_tokens": tokens[:, :-1].contiguous(),
                "src_lengths": torch.full((args.batch_size,), args.length),
            },
            "target": tokens[:, 1:].contiguous(),
            "nsentences": args.batch_size,
            "ntokens": args.batch_size * args.length,
        }

    def seconds(self):
        start = time.perf_counter()
        self.trainer.train_step([self.batch])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start


def compare(arch, base, args, advance):
    """Interleaved step times [(arch, base)], after one warm-up of each."""
    pair = Step(arch, args), Step(base, args)
    for step in pair:
        step.seconds()
    times = []
    for _ in range(args.rounds):
        times.append(tuple(step.seconds() for step in pair))
        advance()
    return times


def show(attention, measured, args):
    table = Table(
        title=f"{attention} attention: {args.layers} layers, {args.batch_size} × {args.length} tokens, "
        f"vocabulary {args.vocab_size}, {args.rounds} interleaved rounds",
        caption="relative: median of base / median of method; spread: least to largest ratio of a round",
    )
    table.add_column("method")
    for column in ("ms a step", "relative", "spread", *PUBLISHED):
        table.add_column(column, justify="right")
    for method, times in measured.items():
        own, base = (statistics.median(x) for x in zip(*times, strict=True))
        ratios = sorted(b / a for a, b in times)
        published = (rows.get(attention, {}).get(method) for rows in PUBLISHED.values())
        table.add_row(
            method,
            f"{1000 * own:,.0f}",
            f"{base / own:.2f}",
            f"{ratios[0]:.2f}-{ratios[-1]:.2f}",
            *(f"{x:.2f}" if x else "" for x in published),
        )
    console = Console()
    (console if console.is_terminal else Console(width=130)).print(table)


def main():
    parser = argparse.ArgumentParser(prog="python -m fairseq_lrpe.experiments.speed", description=__doc__)
    parser.add_argument("--attention", choices=ATTENTIONS, help="only this one (default: both)")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, metavar="METHOD", help="only these (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="measured steps of each (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=2, help="sequences a step (default: %(default)s)")
    parser.add_argument("--length", type=int, default=512, help="tokens a sequence (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="layers of 512, 8 heads (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=50265, help="the papers' Books: %(default)s")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {args.rounds}")
    for method in args.methods or ():
        if args.attention and args.attention not in METHODS[method].attentions():
            parser.error(f"{method} works in {', '.join(METHODS[method].attentions())} attention alone")
    logging.disable(logging.INFO)
    plan = {
        attention: [
            m for m in args.methods or METHODS if m != "base" and attention in METHODS[m].attentions()
        ]
        for attention in ([args.attention] if args.attention else ATTENTIONS)
    }
    if not args.methods:  # an ablation's speed is that of a type
        plan = {a: [m for m in methods if not m.startswith("ablation_")] for a, methods in plan.items()}
    with Progress() as progress:
        for attention, methods in plan.items():
            bar = progress.add_task(attention, total=len(methods) * args.rounds)
            measured = {}
            for method in methods:
                progress.update(bar, description=f"{attention} {method}")
                measured[method] = compare(
                    f"{attention}_lm_{method}",
                    f"{attention}_lm_base",
                    args,
                    lambda bar=bar: progress.advance(bar),
                )
            show(attention, measured, args)


if __name__ == "__main__":
    main()
