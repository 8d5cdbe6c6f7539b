"""Writes outputs of attention modules that docs/own_models_training.md shards, in one of two processes.

Usage: sharded_outputs.py RANK STORE FILE
"""

import sys

import torch
from torch import distributed

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from support.documents import block

CASES = [
    (LinearAttention, "per", {}),
    (SoftmaxAttention, "per", {}),
    (SoftmaxAttention, "fope", {}),
    (LinearAttention, "lrpe", {"linear_norm": "layernorm"}),
    (SoftmaxAttention, "lrpe", {"core": "permutation", "rotation": "odd_even"}),
    (SoftmaxAttention, "lrpe", {"core": "unitary", "learn_theta": True}),
]


def main(rank, store, path):
    names = {}
    exec(block("python", "def shard(model)"), names)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    models = [attention(32, 2, name, causal=True, **options) for attention, name, options in CASES]
    x = torch.randn(2, 40, 32, generator=torch.Generator().manual_seed(5))
    with distributed.device_mesh.init_device_mesh("cpu", (2,)):
        outputs = [names["shard"](model)(x).detach() for model in models]
    torch.save(outputs, path)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
