"""Measures the training speed of every method relative to the base of the same attention.

``python -m fairseq_lrpe.measure.speed`` times whole training steps of fairseq's trainer (forward, backward,
update) at the size of the papers' models, causal (``lm``), bidirectional (``roberta``) or both
(``transformer``, whose decoder has softmax attention), each method interleaved with the base of its
attention, and prints them beside the published ratios. ``base`` as a method is the other attention's,
``fairseq`` is fairseq's own model.
"""

import argparse
import logging
import statistics
from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from rich.progress import Progress
from rich.table import Table

import fairseq_lrpe.models  # noqa: F401  (fairseq imports a plugin's models only if it is the first to import it)
from fairseq_lrpe.commands import PLUGIN, as_flags
from fairseq_lrpe.files import REPOSITORY
from fairseq_lrpe.measure.shared import refuse_less, seconds, show_wide
from fairseq_lrpe.methods import ATTENTIONS, METHODS, architecture

PUBLISHED = {"TMLR Table 6": ("lrpe_tmlr", "table6"), "ICLR Table 9": ("lrpe_iclr", "table9")}
"""The columns of published ratios: their files in configs/paper, and their tables there."""


def published_speeds() -> dict[str, dict[tuple[str, str], float]]:
    """Returns {column: {(attention, method): speed relative to the base of that attention}}."""
    return {
        column: {
            (row.attention, row.method): row["values"].speed
            for row in OmegaConf.load(REPOSITORY / f"configs/paper/{paper}.yaml").tables[table].rows
        }
        for column, (paper, table) in PUBLISHED.items()
    }


def causal_batch(args, pad):
    """Returns random text whose every next token is to be predicted."""
    tokens = torch.randint(4, args.vocab_size, (args.batch_size, args.length + 1))
    return batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def masked_batch(args, pad):
    """Returns random text of which 15% of the tokens are to be predicted, as RoBERTa trains."""
    tokens = torch.randint(4, args.vocab_size, (args.batch_size, args.length))
    return batch(tokens, tokens.masked_fill(torch.rand(tokens.shape) >= 0.15, pad))


def translation_batch(args, pad):
    """Returns random sentence pairs, source and target of the same length."""
    source, target = torch.randint(4, args.vocab_size, (2, args.batch_size, args.length + 1))
    return batch(source[:, 1:], target[:, 1:].contiguous(), prev_output_tokens=target[:, :-1])


def batch(source, target, **more):
    """Returns what fairseq's datasets make of these tensors."""
    lengths = torch.full((len(source),), source.size(1))
    return {
        "id": torch.arange(len(source)),
        "net_input": {"src_tokens": source, "src_lengths": lengths, **more},
        "target": target,
        "nsentences": len(source),
        "ntokens": source.numel(),
    }


class Family(NamedTuple):
    """How fairseq trains a family's models on random tokens.

    ``layers`` as in the papers; ``specials``: the types that fairseq adds to ``--dict-size``; ``flags(length,
    layers)``: those that are its own.
    """

    layers: int
    task: str
    specials: int
    batch: Callable
    flags: Callable


FAMILIES = {
    "lm": Family(
        6,
        "dummy_lm",
        4,
        causal_batch,
        lambda length, layers: {"tokens_per_sample": length, "decoder_layers": layers},
    ),
    "roberta": Family(
        12,
        "dummy_masked_lm",
        5,
        masked_batch,
        lambda length, layers: {
            "criterion": "masked_lm",
            "tokens_per_sample": length,
            "max_positions": length,
            "encoder_layers": layers,
        },
    ),
    "transformer": Family(
        6,
        "dummy_mt",
        4,
        translation_batch,
        lambda length, layers: {
            "criterion": "label_smoothed_cross_entropy",
            "label_smoothing": 0.1,
            "src_len": length,
            "tgt_len": length,
            "encoder_layers": layers,
            "decoder_layers": layers,
        },
    ),
}


def settings(flags: dict, data=()):
    """Returns fairseq's settings of a training with ``flags`` that is never saved."""
    flags = {
        "user_dir": PLUGIN,
        "save_dir": "/nonexistent",
        "cpu": not torch.cuda.is_available(),
        **flags,
    }
    parser = options.get_training_parser(default_task=flags["task"])
    words = [*data, *as_flags(flags)]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, list(map(str, words))))


class Step:
    """Takes a training step of an architecture on the same random tokens, again and again."""

    def __init__(self, arch, args):
        family = FAMILIES[args.family]
        flags = {
            "task": family.task,
            "arch": arch,
            "dict_size": args.vocab_size - family.specials,
            "batch_size": args.batch_size,
            **family.flags(args.length, args.layers),
            "optimizer": "adam",
            "lr": 5e-4,
        }
        cfg = settings(flags)
        task = tasks.setup_task(cfg.task)
        self.trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
        task.load_dataset("train")
        self.trainer.begin_epoch(1)
        self.batch = family.batch(args, task.source_dictionary.pad())

    def seconds(self):
        return seconds(lambda: self.trainer.train_step([self.batch]))


def compare(arch: str, base: str, args: Namespace, advance: Callable) -> list[tuple[float, float]]:
    """Returns interleaved step times [(of ``arch``, of ``base``)], after one warm-up of each."""
    pair = Step(arch, args), Step(base, args)
    for step in pair:
        step.seconds()
    times = []
    for _ in range(args.rounds):
        times.append(tuple(step.seconds() for step in pair))
        advance()
    return times


def show(attention, measured, args):
    """Prints what was measured in one attention, beside the published ratios."""
    papers = published_speeds()
    table = Table(
        title=f"{args.family}, {attention} attention: {args.layers} layers, "
        f"{args.batch_size} × {args.length} tokens, vocabulary {args.vocab_size}, "
        f"{args.rounds} interleaved rounds",
        caption="relative: median of base / median of method; spread: least to largest ratio of a round",
    )
    table.add_column("method")
    for column in ("ms a step", "relative", "spread", *papers):
        table.add_column(column, justify="right")
    for method, times in measured.items():
        own, base = (statistics.median(x) for x in zip(*times, strict=True))
        ratios = sorted(b / a for a, b in times)
        published = (ratios.get((attention, method)) for ratios in papers.values())
        table.add_row(
            method,
            f"{1000 * own:,.0f}",
            f"{base / own:.2f}",
            f"{ratios[0]:.2f}-{ratios[-1]:.2f}",
            *(f"{x:.2f}" if x else "" for x in published),
        )
    show_wide(table)


def attentions(method):
    """Returns those whose base the method is measured beside."""
    return ATTENTIONS if method == "fairseq" else METHODS[method].attentions()


def main():
    parser = argparse.ArgumentParser(prog="python -m fairseq_lrpe.measure.speed", description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, default="lm", help="default: %(default)s")
    parser.add_argument("--attention", choices=ATTENTIONS, help="only this one (default: both)")
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=[*METHODS, "fairseq"],
        metavar="METHOD",
        help="only these (default: all but fairseq)",
    )
    parser.add_argument("--rounds", type=int, default=7, help="measured steps of each (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=2, help="sequences a step (default: %(default)s)")
    parser.add_argument("--length", type=int, default=512, help="tokens a sequence (default: %(default)s)")
    parser.add_argument(
        "--layers",
        type=int,
        help="default, as the papers: 6 of 512 with 8 heads (lm), 12 of 768 with 12 heads (roberta), 6 + 6 "
        "of 512 with 8 heads (transformer)",
    )
    parser.add_argument("--vocab-size", type=int, default=50265, help="the papers' Books: %(default)s")
    args = parser.parse_args()
    refuse_less(parser, args, rounds=1)
    for method in args.methods or ():
        if args.attention and args.attention not in attentions(method):
            parser.error(f"{method} works in {', '.join(attentions(method))} attention alone")
    args.layers = args.layers or FAMILIES[args.family].layers
    logging.disable(logging.INFO)
    plan = {
        attention: [m for m in args.methods or METHODS if attention in attentions(m)]
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
                other = next(a for a in ATTENTIONS if a != attention)
                own, name = (other, f"base, {other}") if method == "base" else (attention, method)
                measured[name] = compare(
                    architecture(own, args.family, method),
                    f"{attention}_{args.family}_base",
                    args,
                    lambda bar=bar: progress.advance(bar),
                )
            show(attention, measured, args)


if __name__ == "__main__":
    main()
