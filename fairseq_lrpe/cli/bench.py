"""``lrpe bench``: measure speed, memory and decoding."""

import sys
from importlib import import_module

BENCHMARKS = {
    "speed": "training speed of each method relative to the base",
    "linear-attention": "time and memory of linear attention over the sequence length",
    "decoding": "decoding speed of translation models",
    "memory": "cost of a language model's memory",
    "images": "throughput of image decoding and augmentation",
    "figures": "plots of the encodings",
    "zero-padding": "positional information revealed by zero padding",
    "lra-examples": "plots of the generated corpora of Long-Range Arena",
    "gpu-check": "everything that needs a GPU, in one report",
}


def main(arguments: list[str] | None = None) -> None:
    """Runs a benchmark; ``arguments`` defaults to the command line."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in BENCHMARKS:
        package = "data_prep" if name == "lra-examples" else "fairseq_lrpe.benchmarks"
        import_module(f"{package}.{name.replace('-', '_')}").main(rest)
    elif name in ("-h", "--help"):
        print("usage: lrpe bench NAME [options]\n")
        print("\n".join(f"  {name:<18} {summary}" for name, summary in BENCHMARKS.items()))
    else:
        sys.exit(f"lrpe bench: unknown benchmark {name!r}; `lrpe bench --help` lists the benchmarks")
