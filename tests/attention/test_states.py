"""States of decoding: their memory and dtypes, saved states, sharded models, and averages of models."""

import copy
import io
import os
import re
import subprocess
import sys

import pytest
import torch
from support.documents import block
from support.tiny import REPOSITORY
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from fairseq_lrpe.attention import (
    DeltaAttention,
    LinearAttention,
    MultiheadLinearAttention,
    MultiheadSoftmaxAttention,
    SoftmaxAttention,
)
from fairseq_lrpe.encodings import ENCODINGS, build_encoding
from fairseq_lrpe.positions import POSITIONS, build_position

B, H, D = 2, 2, 8
E = H * D
CASES = [
    (attention, name, {})
    for attention in (LinearAttention, SoftmaxAttention)
    for name, cls in ENCODINGS.items()
    if cls.decomposable or attention is SoftmaxAttention
]
CASES += [
    (LinearAttention, name, {"linear_norm": "content"})
    for name in ("none", "rope", "fox", "gla", "selective_rope_fox")
]
CASES += [(DeltaAttention, "lrpe", {"rule": rule}) for rule in ("delta", "gated_delta", "kda")]
CASES += [(DeltaAttention, "selective_rope", {"rule": "kda"})]


def built():
    for attention, name, options in CASES:
        yield name, attention(E, H, name, causal=True, layers=2, max_positions=256, **options).eval()


def tensors(state):
    return [x for x in tree_leaves(state) if isinstance(x, torch.Tensor)]


def in_bfloat16(state):
    return tree_map(lambda x: x.bfloat16() if torch.is_tensor(x) and x.is_floating_point() else x, state)


def test_states_do_not_keep_the_prompt():
    for name, module in built():
        for length in (1, 200):
            _, prompt = module(torch.randn(B, length, E), return_state=True)
            order = torch.tensor([1, 1, 0])
            _, step = module(
                torch.randn(3, 1, E), state=module.reorder_state(prompt, order), return_state=True
            )
            for state in (prompt, step):
                shown = sum(x.nbytes for x in tensors(state))
                storages = {x.untyped_storage()._cdata: x.untyped_storage() for x in tensors(state)}
                assert sum(x.nbytes() for x in storages.values()) <= 1.3 * shown, (name, type(module), length)


@pytest.mark.parametrize(
    "name", [name for name, cls in POSITIONS.items() if cls.left_context == float("inf")]
)
def test_states_of_positions_do_not_keep_the_prompt(name):
    module = build_position(name, embed_dim=E, vocab_size=9, max_positions=256, causal=True)
    positions = torch.arange(200).expand(B, 200)
    _, state = module.step(torch.randn(B, 200, E), positions, torch.full((B, 200), 5), None)
    assert state.untyped_storage().nbytes() <= 1.3 * state.nbytes


def test_saved_states_are_loaded_by_default():
    for _, module in built():
        x, file = torch.randn(B, 9, E), io.BytesIO()
        _, state = module(x[:, :8], return_state=True)
        torch.save(state, file)
        assert file.tell() < 2 * sum(t.nbytes for t in tensors(state)) + 20_000
        file.seek(0)
        loaded = torch.load(file)
        assert type(loaded) is type(state)
        assert module(x[:, 8:], state=loaded).equal(module(x[:, 8:], state=state))


def test_example_of_a_saved_state():
    names = {}
    exec(block("python", "torch.save(state, file)"), names)
    assert names["state"].length == 1001 and names["y"].isfinite().all()


def test_states_of_another_dtype_are_refused():
    """Also those of half-precision models whose sums have float32; a wider dtype loses nothing."""
    for _, module in built():
        for dtype in (torch.float32, torch.bfloat16):
            module, x = module.to(dtype), torch.randn(B, 8, E).to(dtype)
            _, state = module(x, return_state=True)
            wide = [t for t in tensors(state) if t.dtype in (torch.float32, torch.float64)]

            if wide:
                message = r"of the state was returned in float(32|64) and is now in bfloat16"
                with pytest.raises(ValueError, match=message) as raised:
                    module(x[:, :1], state=in_bfloat16(state))
                assert "cast_forward_inputs=False" in str(raised.value) and "\n" not in str(raised.value)
                with pytest.raises(ValueError, match=message):
                    reordered = module.reorder_state(in_bfloat16(state), torch.tensor([1, 0]))
                    module(x[:, :1], state=reordered)


def test_restarted_states_are_accepted():
    module, x = LinearAttention(E, H, "rope", causal=True).eval(), torch.randn(B, 9, E)
    for length in (1, 8):
        _, state = module(x[:, :length], return_state=True)
        assert module(x[:, 8:], state=module.restart_positions(state)).shape == (B, 1, E)


@pytest.mark.slow
def test_processes_with_other_seeds_compute_the_same_function(tmp_path):
    """Random buffers are those of the first process."""
    script, environment = REPOSITORY / "tests/support/sharded_outputs.py", dict(os.environ)
    environment["PYTHONPATH"] = f"{REPOSITORY}:{REPOSITORY / 'tests'}"
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), tmp_path / "store", tmp_path / f"{rank}.pt"], env=environment
        )
        for rank in range(2)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for ours, theirs in zip(first, second, strict=True):
        assert ours.isfinite().all() and ours.equal(theirs)


PERMUTATIONS = {"per": {}, "lrpe": {"core": "permutation", "rotation": "odd_even"}}


def timm_average(average, model):
    """The update of timm's ModelEmaV2."""
    for ours, theirs in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        ours.copy_(0.9999 * ours + (1 - 0.9999) * theirs)


@pytest.mark.parametrize("name", PERMUTATIONS)
def test_averages_of_a_model_have_its_permutation(name):
    options = {"num_heads": 2, "head_dim": 64, "causal": False, **PERMUTATIONS[name]}
    model, x = build_encoding(name, **options), torch.randn(1, 2, 9, 64)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9999), use_buffers=True)
    mean, timm = AveragedModel(model, use_buffers=True), copy.deepcopy(model)
    for _ in range(300):
        theirs.update_parameters(model)
        mean.update_parameters(model)
        timm_average(timm, model)
    for average in (theirs.module, mean.module, timm, copy.deepcopy(model).bfloat16()):
        assert average(x, x)[0].equal(model(x, x)[0])


@pytest.mark.parametrize("name", PERMUTATIONS)
def test_loaded_permutations_are_checked(name):
    options = {"num_heads": 2, "head_dim": 8, "causal": False, **PERMUTATIONS[name]}
    model, other = build_encoding(name, **options), build_encoding(name, **options)
    index = model.state_dict()["permutation"].long()  # as in earlier versions
    other.load_state_dict({"permutation": index})
    assert other.permutation.equal(index)
    with pytest.raises(ValueError, match="permutation contains no permutation") as raised:
        other.load_state_dict({"permutation": (0.9 * index).long()})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("cls", [MultiheadLinearAttention, MultiheadSoftmaxAttention])
def test_reentrant_checkpoints(cls):
    module, x = cls(E, H, "rope", causal=True), torch.randn(B, 9, E, requires_grad=True)
    gradients = []
    for run in (
        lambda: module(x, x, x)[0],
        lambda: checkpoint(lambda *inputs: module(*inputs)[0], x, x, x, use_reentrant=True),
    ):
        module.zero_grad()
        x.grad = None
        run().square().sum().backward()
        gradients.append([x.grad.clone(), *(p.grad.clone() for p in module.parameters())])
    torch.testing.assert_close(*gradients)
    for other in (x.detach(), x.clone(), x[:, :8], x.detach().clone()):
        with pytest.raises(ValueError, match=re.escape("only self-attention is supported")):
            module(x, other, other)
