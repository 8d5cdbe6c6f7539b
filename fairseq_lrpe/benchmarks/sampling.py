"""Measures the speed and memory of sampling text from language models.

Two loops alternately sample tokens from the same model with random weights: that of ``lrpe generate``, and
fairseq's SequenceGenerator as with --sampling --beam 1. The memory is that of the process, after the first
tenth of ``--memory-length`` tokens and after all of them.
"""

import gc
import statistics
from argparse import Namespace
from itertools import islice

import torch
from fairseq import tasks
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator

import fairseq_lrpe.models  # noqa: F401  (fairseq imports a plugin's models only if it is the first to import it)
from fairseq_lrpe.benchmarks import shared
from fairseq_lrpe.benchmarks.speed import FAMILIES, training_config
from fairseq_lrpe.methods import architecture
from fairseq_lrpe.models.sampling import chooser, sample

MIB = 2**20


def build(arch: str, args: Namespace):
    """Returns a task with ``args.vocab_size`` types, and a model in evaluation mode."""
    cfg = training_config({"arch": arch, **FAMILIES["lm"].flags(args)}, [])
    task = tasks.setup_task(cfg.task)
    return task, task.build_model(cfg.model).eval().to(shared.DEVICE)


def loops(arch: str, args: Namespace) -> dict:
    """Returns {name: function that samples ``args.length`` tokens} of both loops."""
    torch.manual_seed(1)
    task, model = build(arch, args)
    dictionary = task.target_dictionary
    prompt = torch.tensor([dictionary.eos()], device=shared.DEVICE)
    choose = chooser(1.0, 0, 1.0, None, prompt.device)
    length = {"max_len_a": 0, "max_len_b": args.length, "min_len": args.length, "max_len": args.length + 1}
    search = Sampling(dictionary)
    generator = SequenceGenerator([model], dictionary, beam_size=1, search_strategy=search, **length)
    net_input = {"src_tokens": prompt[None], "src_lengths": torch.tensor([1])}

    def fairseqs():
        [[found]] = generator.generate([], {"net_input": net_input}, prefix_tokens=None)
        assert len(found["tokens"]) == args.length + 1

    def ours():
        assert len(list(sample(model.decoder, prompt, args.length, choose, dictionary.pad()))) == args.length

    return {"ours": ours, "fairseq's": fairseqs}


def memory(arch: str, args: Namespace, length: int) -> tuple[int, int]:
    """Returns the resident memory in bytes after a tenth of ``length`` tokens, and after all of them."""
    _, model = build(arch, args)
    choose = chooser(1.0, 0, 1.0, 1, torch.device(shared.DEVICE))
    prompt = torch.tensor([2], device=shared.DEVICE)
    tokens, found = sample(model.decoder, prompt, length, choose, pad=1), []
    for part in (length // 10, length - length // 10):
        assert len(list(islice(tokens, part))) == part
        gc.collect()
        found.append(shared.resident_memory("VmRSS"))
    return tuple(found)


def main(arguments: list[str] | None = None) -> None:
    parser = shared.BenchmarkParser("sampling", __doc__)
    parser.add_methods("base, rope")
    parser.add_int("--length", 256, "number of tokens per round")
    parser.add_int("--memory-length", 10_000, "number of tokens for the memory", minimum=10)
    parser.add_sizes(rounds=7, layers=6, vocab_size=10000)
    args = parser.parse_args(arguments)
    table = shared.Table(
        f"{args.length} tokens: {args.layers} layers, vocabulary {args.vocab_size:,}",
        "relative: median over the rounds of fairseq's time / ours; spread: their range",
    )
    with shared.measuring(parser.prog):
        for attention, methods in parser.methods_by_attention(args, ["base", "rope"]).items():
            for arch in (architecture(attention, "lm", method) for method in methods):
                times = shared.interleave(loops(arch, args), range(args.rounds + 1))
                relative, spread = shared.ratios(zip(times["ours"], times["fairseq's"], strict=True))
                speed = {name: args.length / statistics.median(taken) for name, taken in times.items()}
                length = args.memory_length
                early, late = (x / MIB for x in shared.in_new_process(memory, arch, args, length))
                row = {"model": arch, "tokens/s": speed["ours"], "fairseq's": speed["fairseq's"]}
                row |= {"relative": relative, "spread": spread}
                names = f"MiB after {length // 10:,}", f"after {length:,}"
                table.rows.append(row | dict(zip(names, (early, late), strict=True)))
        table.print()
