"""fairseq-train in processes on the CPU; --compile uses a backend that needs no compiler.

Each process prints its losses, and its numbers of graphs and of breaks.
"""

import os

from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.models import distributed_fairseq_model
from fairseq_cli.train import cli_main
from torch._dynamo.utils import counters

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.models import compilation

RANK = os.environ["RANK"]
DistributedDataParallel = distributed_fairseq_model.DistributedDataParallel
forward = CrossEntropyCriterion.forward


def on_cpu(*args, device_ids, output_device, **kwargs):
    """fairseq passes the number of a GPU, which torch refuses for models on the CPU."""
    return DistributedDataParallel(*args, **kwargs)


def printed(*args, **kwargs):
    loss, *rest = forward(*args, **kwargs)
    write(f"loss of {RANK}: {float(loss)!r}")
    return loss, *rest


def write(line):
    """Writes a line at once, so that those of both processes do not mix."""
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    compilation.BACKEND = "aot_eager"
    distributed_fairseq_model.DistributedDataParallel = on_cpu
    CrossEntropyCriterion.forward = printed
    cli_main()
    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    write(f"graphs of {RANK}: {graphs}, breaks: {breaks}")
