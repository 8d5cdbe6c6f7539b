"""Measures the decoding speed of translation models beside fairseq's own ``transformer``.

``python -m fairseq_lrpe.measure.decoding`` searches translations of the same batches with models of
random weights, ours and fairseq's in turn, through fairseq's beam search. Every search has as many steps as
its batch's longest source has tokens, so that all models do the same work. Linear attention is in encoder
and decoder.
"""

import logging
import statistics
from argparse import ArgumentParser, Namespace
from pathlib import Path

import torch
from fairseq import tasks, utils
from fairseq.data.data_utils import infer_language_pair
from fairseq.sequence_generator import SequenceGenerator
from rich.progress import track
from rich.table import Table

import fairseq_lrpe.models  # noqa: F401  (fairseq imports a plugin's models only if it is the first to import it)
from fairseq_lrpe.measure.shared import add_methods, measuring, numbers, plan, seconds, spread
from fairseq_lrpe.measure.speed import FAMILIES, random_batch, settings
from fairseq_lrpe.methods import FAIRSEQS, architecture
from fairseq_lrpe.models.data_door import check_data
from fairseq_lrpe.programs import a_path, at_least, show_wide

WARM_UP = 8
"""Steps."""


def build(arch: str, args: Namespace, **flags):
    """Returns a task and a model in evaluation mode, with the data's vocabulary or ``args.vocab_size``."""
    if args.data:
        sizes = {"task": "translation", "encoder_layers": args.layers, "decoder_layers": args.layers}
    else:
        sizes = FAMILIES["transformer"].flags(args)
    cfg = settings({"arch": arch, **sizes, **flags}, [args.data] if args.data else [])
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model).eval()
    return task, model.cuda() if torch.cuda.is_available() else model


def batches(task, args: Namespace) -> list[dict]:
    """Returns ``args.rounds`` batches: random tokens, or the data's test split, from its shortest sentences
    to its longest."""
    if not args.data:
        found = [random_batch("transformer", args, task.source_dictionary.pad()) for _ in range(args.rounds)]
    else:
        task.load_dataset("test")
        size = {"max_sentences": args.batch_size, "required_batch_size_multiple": 1}
        found = list(task.get_batch_iterator(task.dataset("test"), **size).next_epoch_itr(shuffle=False))
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


def compare(arch: str, args: Namespace, **flags) -> list[tuple[float, float, int]]:
    """Returns [(seconds of ``arch``, of fairseq's, sentences)] of every batch, after a warm-up of each."""
    searches = []
    for name, more in ((arch, flags), (FAIRSEQS["transformer"], {})):
        torch.manual_seed(1)
        task, model = build(name, args, **more)
        searches.append(SequenceGenerator([model], task.target_dictionary, beam_size=args.beam))
    times, found = [], batches(task, args)
    for search in searches:
        search_seconds(search, found[0], WARM_UP)
    for number, batch in enumerate(track(found, arch)):
        order = (0, 1) if number % 2 else (1, 0)
        taken = {i: search_seconds(searches[i], batch) for i in order}
        times.append((taken[0], taken[1], len(batch["net_input"]["src_tokens"])))
    return times


def check_test_split(folder: Path) -> None:
    """Raises ValueError unless a data folder has a test split of pairs that can be read."""
    if not any(folder.glob("test.*-*.*.bin")):
        remedy = "bash data_prep/prepare.sh multi30k makes one"
        raise ValueError(f"{folder} holds no binarised test split: {remedy}")
    source, target = infer_language_pair(str(folder))
    pairs = Namespace(task="translation", data=str(folder), source_lang=source, target_lang=target)
    check_data(pairs, ["test"])


def show(measured, args):
    """Prints what was measured, one row a model."""
    what = f"{args.data.resolve()}, test" if args.data else f"{args.length} random tokens"
    table = Table(
        "model",
        *numbers("sentences/s", "fairseq's", "relative", "spread"),
        title=f"{what}: {args.layers} + {args.layers} layers, beam {args.beam}, batch {args.batch_size}, "
        f"{len(next(iter(measured.values())))} interleaved batches",
        caption="relative: median over the batches of fairseq's time / the model's; spread: least to largest",
    )
    for name, times in measured.items():
        pairs = [(ours, theirs) for ours, theirs, _ in times]
        relative = statistics.median(theirs / ours for ours, theirs in pairs)
        ours, theirs, sentences = (sum(x) for x in zip(*times, strict=True))
        speeds = f"{sentences / ours:.2f}", f"{sentences / theirs:.2f}"
        table.add_row(name, *speeds, f"{relative:.2f}", spread(pairs))
    show_wide(table)


def main():
    parser = ArgumentParser(prog="python -m fairseq_lrpe.measure.decoding", description=__doc__)
    add = parser.add_argument
    add_methods(parser, "base")
    add("--data", type=a_path, help="the folder of fairseq-preprocess whose test split is translated")
    add("--length", type=at_least(1), default=512, help="without --data (default: %(default)s)")
    add("--vocab-size", type=at_least(5), default=42720, help="without --data: %(default)s")
    add("--batch-size", type=at_least(1), default=32, help="sentences (default: %(default)s)")
    add("--beam", type=at_least(1), default=5, help="default: %(default)s")
    add("--rounds", type=at_least(1), default=8, help="batches (default: %(default)s)")
    add("--layers", type=at_least(1), default=6, help="of encoder and decoder (default: %(default)s)")
    args = parser.parse_args()
    chosen = plan(parser, args, ["base"])
    logging.disable(logging.INFO)
    measured = {}
    with measuring("decoding"):
        if args.data:
            check_test_split(args.data)
        for attention, methods in chosen.items():
            both = {"decoder_attention": attention, "encoding_in": "both"}
            for arch in (architecture(attention, "transformer", method) for method in methods):
                measured[arch] = compare(arch, args, **both)
        show(measured, args)


if __name__ == "__main__":
    main()
