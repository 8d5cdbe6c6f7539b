"""``lrpe bench``: benchmarks of speed and memory, and plots of encodings."""

import sys
from importlib import import_module

BENCHMARKS = {
    "speed": "training speed of each method relative to the method base",
    "linear-attention": "time and memory of linear attention by sequence length",
    "decoding": "decoding speed of translation models",
    "sampling": "speed and memory of sampling text",
    "memory": "time that a memory of previous segments costs a language model",
    "options": "torch.compile, activation checkpointing and half precision with every family",
    "images": "throughput of image decoding and augmentation",
    "figures": "plots of the encodings and of the input lengths of corpora",
    "zero-padding": "positional information that zero padding gives convolutions",
    "gpu-check": "report of all tests and measurements that need a GPU",
}


def main(arguments: list[str] | None = None) -> None:
    """Runs a benchmark; ``arguments`` defaults to ``sys.argv[1:]``."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in BENCHMARKS:
        import_module(f"fairseq_lrpe.benchmarks.{name.replace('-', '_')}").main(rest)
    elif name in ("-h", "--help"):
        print("usage: lrpe bench NAME [options]\n")
        print("\n".join(f"  {name:<18} {summary}" for name, summary in BENCHMARKS.items()))
    else:
        sys.exit(f"lrpe bench: unknown benchmark {name!r}; `lrpe bench --help` lists the benchmarks")
