"""``lrpe bench``: benchmarks of speed and memory, and plots of encodings and corpora."""

import sys
from importlib import import_module

BENCHMARKS = {
    "train": "time and memory of training steps of models",
    "generate": "time and memory of generation by language and translation models",
    "linear-attention": "time and memory of linear attention by sequence length",
    "launches": "calls and kernels of linear attention and training steps, counted and profiled",
    "figures": "plots of the encodings and of the input lengths of corpora",
}


def main(arguments: list[str] | None = None) -> None:
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in BENCHMARKS:
        import_module(f"fairseq_lrpe.benchmarks.{name.replace('-', '_')}").main(rest)
    elif name in ("-h", "--help"):
        print("usage: lrpe bench NAME [options]\n")
        for benchmark, summary in BENCHMARKS.items():
            print(f"  {benchmark:<18} {summary}")
    else:
        sys.exit(f"lrpe bench: unknown benchmark {name!r}; `lrpe bench --help` lists the benchmarks")
