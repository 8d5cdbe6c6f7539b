"""fairseq-train in processes on the CPU whose --compile uses the backend in the variable BACKEND."""

import os

from fairseq.models import distributed_fairseq_model
from fairseq_cli.train import cli_main

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.models import compilation

DistributedDataParallel = distributed_fairseq_model.DistributedDataParallel


def on_cpu(*args, device_ids, output_device, **kwargs):
    """fairseq passes the number of a GPU, which torch refuses for models on the CPU."""
    return DistributedDataParallel(*args, **kwargs)


if __name__ == "__main__":
    compilation.BACKEND = os.environ["BACKEND"]
    distributed_fairseq_model.DistributedDataParallel = on_cpu
    cli_main()
