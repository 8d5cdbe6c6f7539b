"""Measures the training speed of every method relative to the base of the same attention.

``python -m fairseq_lrpe.measure.speed`` times whole training steps of fairseq's trainer (forward, backward,
update) at the size of the papers' models, causal (``lm``), bidirectional (``roberta``) or both
(``transformer``, whose decoder has softmax attention), each method interleaved with the base of its
attention, and prints them beside the published ratios. ``base`` as a method is the other attention's,
``fairseq`` is fairseq's own model.

``--family classifier`` is Long-Range Arena's comparison (Tay et al. 2021, its Table 2): the model of its text
classification at 1,024, 2,048 and 4,096 bytes, all methods beside the base of softmax attention, and the
memory that a training takes, each in a process of its own. ``--family vit`` does the same with DeiT-small
and pictures of 224, 384 and 1,024 pixels each way, 196, 576 and 4,096 patches: ``--length`` is in pixels.
"""

import json
import logging
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from rich.progress import track
from rich.table import Table

import fairseq_lrpe.models  # noqa: F401  (fairseq imports a plugin's models only if it is the first to import it)
from fairseq_lrpe import layouts
from fairseq_lrpe.commands import PLUGIN, as_flags
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.files import REPOSITORY
from fairseq_lrpe.measure.shared import add_methods, measuring, numbers, plan, resident, seconds, spread
from fairseq_lrpe.methods import ATTENTIONS, METHODS, architecture
from fairseq_lrpe.programs import at_least, show_wide

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


class Family(NamedTuple):
    """How fairseq trains a family's models on random tokens."""

    layers: int  # as in the papers
    specials: int  # types that fairseq adds to --dict-size
    lengths: list[str]  # the flags that say how long the sequences are
    depths: list[str]  # and how many layers there are
    fixed: dict[str, object]
    pairs: bool = False  # whether there is a target beside the source
    hidden: float = 0.0  # the part of the tokens that is to be predicted; else each next one is
    labels: int = 0  # how many there are, if one of them is to be predicted of a sequence
    tokens: tuple[int, ...] = (512,)  # of a sequence
    types: int = 50265  # the papers' Books
    beside: str | None = None  # the attention whose base all are compared with; None: each its own
    images: bool = False  # whether a length is a side of a picture in pixels

    def flags(self, args: Namespace) -> dict[str, object]:
        """Returns the flags of its task, criterion and sizes."""
        sizes = dict.fromkeys(self.lengths, args.length) | dict.fromkeys(self.depths, args.layers)
        types = {} if self.labels else {"dict_size": args.vocab_size - self.specials}
        return {**types, **sizes, **self.fixed}


FAMILIES = {
    "lm": Family(6, 4, ["tokens_per_sample"], ["decoder_layers"], {"task": "dummy_lm"}),
    "roberta": Family(
        12,
        5,
        ["tokens_per_sample", "max_positions"],
        ["encoder_layers"],
        {"task": "dummy_masked_lm", "criterion": "masked_lm"},
        hidden=0.15,
    ),
    "transformer": Family(
        6,
        4,
        ["src_len", "tgt_len"],
        ["encoder_layers", "decoder_layers"],
        {"task": "dummy_mt", "criterion": "label_smoothed_cross_entropy", "label_smoothing": 0.1},
        pairs=True,
    ),
    "classifier": Family(
        4,
        4,
        ["max_positions"],
        ["encoder_layers"],
        {"task": "classification", "criterion": "label_smoothed_cross_entropy"},
        labels=2,
        tokens=(1024, 2048, 4096),
        types=260,
        beside="softmax",
    ),
    "vit": Family(
        12,
        0,
        ["image_size"],
        ["encoder_layers"],
        {"task": "image_classification", "criterion": "soft_target_cross_entropy"},
        labels=1000,
        tokens=(224, 384, 1024),
        beside="softmax",
        images=True,
    ),
}


def random_batch(family: str, args: Namespace, pad: int) -> dict:
    """Returns what fairseq's datasets make of random tokens, and what of them is to be predicted."""
    pairs, hidden, labels = FAMILIES[family].pairs, FAMILIES[family].hidden, FAMILIES[family].labels
    if FAMILIES[family].images:
        count = args.batch_size
        return {
            "id": torch.arange(count),
            "net_input": {"images": torch.randn(count, 3, args.length, args.length)},
            "target": torch.randn(count, labels).softmax(1),
            "nsentences": count,
            "ntokens": count,
        }
    source, target = torch.randint(4, args.vocab_size, (2, args.batch_size, args.length + 1))
    sentences = {"prev_output_tokens": target[:, :-1]} if pairs else {}
    target, source = (target if pairs else source)[:, 1:].contiguous(), source[:, :-1].contiguous()
    if hidden:
        target = source.masked_fill(torch.rand(source.shape) >= hidden, pad)
    if labels:
        target = torch.randint(labels, (len(source),))
    lengths = torch.full((len(source),), source.size(1))
    return {
        "id": torch.arange(len(source)),
        "net_input": {"src_tokens": source, "src_lengths": lengths, **sentences},
        "target": target,
        "nsentences": len(source),
        "ntokens": target.numel(),
    }


def write_about(folder: Path, types: int, family: Family) -> list[Path]:
    """Writes into a folder what the task classification has to know before it has rows, and returns it."""
    names = range(types - family.specials)
    (folder / "dict.txt").write_text("".join(f"type{name} 1\n" for name in names))
    about = {"inputs": 1, "labels": list(map(str, range(family.labels))), "rows": {}}
    (folder / layouts.ABOUT).write_text(json.dumps(about))
    return [folder]


def settings(flags: dict, data=()):
    """Returns fairseq's settings of a training with ``flags`` that is never saved."""
    machine = {"cpu": not torch.cuda.is_available(), "distributed_world_size": 1}
    flags = {"user_dir": PLUGIN, "save_dir": "/nonexistent", **machine, **flags}
    parser = options.get_training_parser(default_task=flags["task"])
    words = [*data, *as_flags(flags)]
    args = options.parse_args_and_arch(parser, list(map(str, words)))
    args.tpu = False  # which --bf16 sets
    return convert_namespace_to_omegaconf(args)


def training_step(arch: str, args: Namespace, **flags) -> Callable[[], int]:
    """Returns a function that takes a training step of an architecture, always on the same random tokens.

    It returns how many updates there were so far: one that overflows in fp16 is none. ``flags`` are more of
    fairseq-train's, such as ``fp16=True``; the sizes in ``args`` go before them.
    """
    family = FAMILIES[args.family]
    given = {"arch": arch, "batch_size": args.batch_size, "optimizer": "adam", "lr": 5e-4, **flags}
    with TemporaryDirectory() as folder:
        data = write_about(Path(folder), args.vocab_size, family) if family.labels else []
        cfg = settings(given | family.flags(args), data)
        task = tasks.setup_task(cfg.task)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    if not family.labels:
        task.load_dataset("train")
    trainer.begin_epoch(1)
    dictionary = task.source_dictionary
    batch = random_batch(args.family, args, dictionary and dictionary.pad())

    def step():
        trainer.train_step([batch], raise_oom=True)  # or it would leave out what does not fit into memory
        return trainer.get_num_updates()

    return step


def compare(arch: str, base: str, args: Namespace) -> list[tuple[float, float]]:
    """Returns interleaved step times [(of ``arch``, of ``base``)], after one warm-up of each."""
    pair = training_step(arch, args), training_step(base, args)
    for step in pair:
        step()
    rounds = track(range(args.rounds), f"{arch}, {args.length:,} tokens", transient=True)
    return [tuple(map(seconds, pair)) for _ in rounds]


def peak(arch: str, args: Namespace) -> int:
    """Returns how many bytes two training steps take, in a process that has nothing else."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(peak_here, arch, args).result()


def peak_here(arch: str, args: Namespace) -> int:
    """Returns how many bytes two training steps take: of a GPU's memory, or beyond what this process had."""
    logging.disable(logging.INFO)
    before = resident("VmRSS")
    step = training_step(arch, args)
    for _ in range(2):  # the second has the optimizer's state from the start
        step()
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resident("VmHWM") - before


def show(attention, measured, args, memory):
    """Prints what was measured in one attention, beside the published ratios, or with the memory it took."""
    beside, papers = FAMILIES[args.family].beside, published_speeds()
    more = ["MiB", "relative"] if beside else papers
    base = f"the base of {beside} attention" if beside else "base"
    inputs = f"{args.length:,} tokens, vocabulary {args.vocab_size}"
    if FAMILIES[args.family].images:
        inputs = f"{args.length:,} × {args.length:,} pixels"
    table = Table(
        "method",
        *numbers("ms a step", "relative", "spread", *more),
        title=f"{args.family}, {attention} attention: {args.layers} layers, "
        f"{args.batch_size} × {inputs}, {args.rounds} interleaved rounds",
        caption=f"relative: median of {base} / median of method; spread: least to largest ratio of a round"
        + ("; of MiB: method / base" if beside else ""),
    )
    for method, times in measured.items():
        own, base = (statistics.median(x) for x in zip(*times, strict=True))
        if beside:
            cells = f"{memory[method] / 2**20:,.0f}", f"{memory[method] / memory[beside]:.2f}"
        else:
            published = (ratios.get((attention, method)) for ratios in papers.values())
            cells = (f"{x:.2f}" if x else "" for x in published)
        table.add_row(method, f"{1000 * own:,.1f}", f"{base / own:.2f}", spread(times), *cells)
    show_wide(table)


def measure(attention, methods, args):
    """Measures methods in one attention at ``args.length``, and prints it."""
    beside, archs = FAMILIES[args.family].beside, {}
    base = architecture(beside or attention, args.family, "base")
    for method in methods:
        own, name = attention, method
        if method == "base" and not beside:
            own = next(a for a in ATTENTIONS if a != attention)
            name = f"base, {own}"
        archs[name] = architecture(own, args.family, method)
    measured = {name: compare(arch, base, args) for name, arch in archs.items()}
    memory = {name: peak(arch, args) for name, arch in {beside: base, **archs}.items()} if beside else {}
    show(attention, measured, args, memory)


def main():
    parser = ArgumentParser(prog="python -m fairseq_lrpe.measure.speed", description=__doc__)
    add = parser.add_argument
    add("--family", choices=FAMILIES, default="lm", help="default: %(default)s")
    add_methods(parser, "all but fairseq", [*METHODS, "fairseq"])
    add("--rounds", type=at_least(1), default=7, help="measured steps of each (default: %(default)s)")
    add("--batch-size", type=at_least(1), default=2, help="sequences a step (default: %(default)s)")
    lengths = "512; classifier: 1,024, 2,048 and 4,096; vit, in pixels: 224, 384 and 1,024"
    told = f"tokens a sequence (default: {lengths}, in turn)"
    add("--length", type=at_least(2), help=told)
    sizes = "6 of 512 with 8 heads (lm), 12 of 768 with 12 heads (roberta), 6 + 6 of 512 with 8 heads"
    sizes += " (transformer), 4 of 128 with 8 heads (classifier), 12 of 384 with 6 heads (vit)"
    told = f"default, as the papers: {sizes}"
    add("--layers", type=at_least(1), help=told)
    add("--vocab-size", type=at_least(5), help="default: the papers' Books, 50265; classifier: 260")
    args = parser.parse_args()
    # An ablation's speed is that of a type.
    default = [name for name in METHODS if not name.startswith("ablation_")]
    if args.family != "lm":
        default = [name for name in default if ENCODINGS[METHODS[name].encoding].bidirectional]
    chosen = plan(parser, args, default)
    family = FAMILIES[args.family]
    args.layers, args.vocab_size = args.layers or family.layers, args.vocab_size or family.types
    logging.disable(logging.INFO)
    with measuring("speed"):
        for length in [args.length] if args.length else family.tokens:
            for attention, methods in chosen.items():
                measure(attention, methods, Namespace(**{**vars(args), "length": length}))


if __name__ == "__main__":
    main()
