"""Graphs of attention modules under torch.compile."""

import pytest
import torch

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS

NAMES = [name for name in ENCODINGS if name != "t5"]  # torch.bucketize does not exist on the device meta


def computed_on_cpu(node):
    value = node.meta.get("example_value")
    is_call = node.op in ("call_function", "call_method")
    return is_call and isinstance(value, torch.Tensor) and value.device.type == "cpu"


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_graphs_have_no_operations_on_the_cpu(name):
    """The module is on the device meta, in place of a GPU."""
    found = []

    def backend(graph, inputs):
        found.extend(node.target for node in graph.graph.nodes if computed_on_cpu(node))
        return graph.forward

    torch._dynamo.reset()
    cls = ENCODINGS[name]
    attention = LinearAttention if cls.decomposable else SoftmaxAttention
    options = {"causal": not cls.bidirectional or not cls.decomposable, "layer": 1, "layers": 4}
    module = attention(32, 2, name, max_positions=512, **options).to("meta").train()
    torch.compile(module, backend=backend)(torch.empty(2, 512, 32, device="meta"))
    assert not found


DECOMPOSABLE = [name for name, cls in ENCODINGS.items() if cls.decomposable]
LENGTHS = [(LinearAttention, name) for name in DECOMPOSABLE]
LENGTHS += [(SoftmaxAttention, name) for name in ENCODINGS if name != "gla"]  # whose graph takes a minute


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("cls, name", LENGTHS, ids=lambda x: x if isinstance(x, str) else x.__name__)
@torch.no_grad()
def test_changing_lengths_are_one_graph(cls, name):
    """The second length is compiled for all lengths, of several chunks and of one.

    Denominators of noise and of learned rotations can be close to 0, so that outputs reach 10⁷.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = cls(32, 4, name, causal=True, layer=1, layers=4, max_positions=128).double().eval()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for length in (70, 71, 30):
        x = torch.randn(2, length, 32, dtype=torch.double)
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-12, atol=1e-12)
