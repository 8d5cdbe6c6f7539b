"""Compares the decoding speed of translation models with that of fairseq's own ``transformer``.

A model and fairseq's model, both with random weights, alternately translate the same batches with fairseq's
beam search. The number of decoding steps is the number of tokens of the longest source in the batch, so that
all models do the same work. Models with linear attention use it in the encoder and in the decoder.
"""

from argparse import Namespace
from pathlib import Path

import torch
from fairseq import tasks, utils
from fairseq.data.data_utils import infer_language_pair
from fairseq.sequence_generator import SequenceGenerator
from rich.progress import track

import fairseq_lrpe.models  # noqa: F401  (fairseq imports a plugin's models only if it is the first to import it)
from fairseq_lrpe.benchmarks import shared
from fairseq_lrpe.benchmarks.speed import FAMILIES, random_batch, training_config
from fairseq_lrpe.methods import FAIRSEQ_ARCHITECTURES, architecture
from fairseq_lrpe.models.data_validation import check_data
from fairseq_lrpe.utils.cli import path_arg

WARM_UP_STEPS = 8


def build(arch: str, args: Namespace, **flags):
    """Returns a task and a model in evaluation mode.

    The vocabulary is that of the data folder ``args.data`` or, if it is None, has ``args.vocab_size`` types.
    """
    if args.data:
        sizes = {"task": "translation", "encoder_layers": args.layers, "decoder_layers": args.layers}
    else:
        sizes = FAMILIES["transformer"].flags(args)
    cfg = training_config({"arch": arch, **sizes, **flags}, [args.data] if args.data else [])
    task = tasks.setup_task(cfg.task)
    return task, task.build_model(cfg.model).eval().to(shared.DEVICE)


def batches(task, args: Namespace) -> list[dict]:
    """Returns ``args.rounds`` batches of the test split, in order of length, or of random tokens."""
    if not args.data:
        pad, family = task.source_dictionary.pad(), FAMILIES["transformer"]
        selected = [random_batch(family, args, pad) for _ in range(args.rounds)]
    else:
        task.load_dataset("test")
        size = {"max_sentences": args.batch_size, "required_batch_size_multiple": 1}
        split = list(task.get_batch_iterator(task.dataset("test"), **size).next_epoch_itr(shuffle=False))
        stride = max(1, len(split) // args.rounds)
        selected = split[stride // 2 :: stride][: args.rounds]
    return [utils.move_to_cuda(batch) for batch in selected] if shared.DEVICE == "cuda" else selected


def search_seconds(generator, batch, steps=None) -> float:
    """Returns the seconds of a beam search with ``steps`` steps, by default the length of the source."""
    steps, hypotheses = steps or batch["net_input"]["src_tokens"].size(1), []
    generator.max_len_a, generator.max_len_b, generator.min_len = 0, steps, steps
    taken = shared.seconds(lambda: hypotheses.extend(generator.generate([], batch)))
    assert all(len(beam[0]["tokens"]) == steps + 1 for beam in hypotheses)
    return taken


def compare(arch: str, args: Namespace, **flags) -> list[tuple[float, float, int]]:
    """Returns [(seconds of ``arch``, seconds of fairseq's model, number of sentences)] of each batch."""
    generators = []
    for name, model_flags in ((arch, flags), (FAIRSEQ_ARCHITECTURES["transformer"], {})):
        torch.manual_seed(1)
        task, model = build(name, args, **model_flags)
        generators.append(SequenceGenerator([model], task.target_dictionary, beam_size=args.beam))
    results, rounds = [], batches(task, args)
    for generator in generators:
        search_seconds(generator, rounds[0], WARM_UP_STEPS)
    for number, batch in enumerate(track(rounds, arch)):
        order = (0, 1) if number % 2 else (1, 0)
        taken = {i: search_seconds(generators[i], batch) for i in order}
        results.append((taken[0], taken[1], len(batch["net_input"]["src_tokens"])))
    return results


def check_test_split(folder: Path) -> None:
    """Raises ValueError unless a data folder has a readable test split of sentence pairs."""
    if not any(folder.glob("test.*-*.*.bin")):
        raise ValueError(f"{folder} has no binarized test split: prepare one with `lrpe prepare multi30k`")
    source, target = infer_language_pair(str(folder))
    pairs = Namespace(task="translation", data=str(folder), source_lang=source, target_lang=target)
    check_data(pairs, ["test"])


def show(results: dict[str, list], args: Namespace) -> None:
    """Prints a table of the speed of each model, given {architecture: result of :func:`compare`}."""
    data = f"{args.data.resolve()}, test" if args.data else f"{args.length} random tokens"
    table = shared.Table(
        f"{data}: {args.layers} + {args.layers} layers, beam {args.beam}, batch {args.batch_size}, "
        f"{len(next(iter(results.values())))} interleaved batches",
        "relative: median over the batches of fairseq's time / the model's; spread: their range",
    )
    for name, batches in results.items():
        relative, spread = shared.ratios((ours, fairseqs) for ours, fairseqs, _ in batches)
        ours, fairseqs, sentences = (sum(x) for x in zip(*batches, strict=True))
        speeds = {"sentences/s": sentences / ours, "fairseq's": sentences / fairseqs}
        table.rows.append({"model": name, **speeds, "relative": relative, "spread": spread})
    table.print()


def main(arguments: list[str] | None = None) -> None:
    parser = shared.BenchmarkParser("decoding", __doc__)
    parser.add_methods("base")
    help = "data folder of translation, whose test split is translated (default: random tokens)"
    parser.add_argument("--data", type=path_arg, metavar="FOLDER", help=help)
    parser.add_int("--length", 512, "number of tokens per sentence without --data")
    parser.add_int("--batch-size", 32, "number of sentences per batch")
    parser.add_int("--beam", 5, "beam size")
    parser.add_sizes(rounds=8, layers=6, vocab_size=42720)
    args = parser.parse_args(arguments)
    selected = parser.methods_by_attention(args, ["base"])
    results = {}
    with shared.measuring(parser.prog):
        if args.data:
            check_test_split(args.data)
        for attention, methods in selected.items():
            flags = {"decoder_attention": attention, "encoding_in": "both"}
            for arch in (architecture(attention, "transformer", method) for method in methods):
                results[arch] = compare(arch, args, **flags)
        show(results, args)
