"""Adam and the half-precision optimizer equal fairseq's bit for bit, in fewer operations."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from fairseq import optim, utils
from fairseq.optim.adam import Adam
from fairseq.optim.fp16_optimizer import FP16Optimizer as FairseqOptimizer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fairseq_lrpe.models  # noqa: F401  (patches fairseq)
from fairseq_lrpe.fairseq_ext import foreach_optimizer
from fairseq_lrpe.fairseq_ext.foreach_optimizer import adam_step, total_norm

SHAPES = [(64, 48), (64,), (7, 3), ()] * 5
FAIRSEQ_STEP = Adam.step.__wrapped__  # without the patch and torch's profiler


class Operations(TorchDispatchMode):
    """Counts torch's operations in a with block."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def parameters(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def set_gradients(params, update, some=False):
    """Sets random gradients; with ``some``, every third parameter has none in every second update."""
    generator = torch.Generator().manual_seed(update)
    for number, parameter in enumerate(params):
        gradient = torch.randn(parameter.shape, generator=generator) * 3
        is_absent = some and update % 2 and number % 3 == 0
        parameter.grad = None if is_absent else gradient.to(parameter.dtype)


def adam(step, dtype, some, **options):
    """Returns the parameters, averages and the operations of the last of several steps of Adam."""
    params = parameters(dtype)
    matrices = [parameter for parameter in params if parameter.dim() > 1]
    vectors = [parameter for parameter in params if parameter.dim() <= 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = Adam(groups, lr=0.003, betas=(0.9, 0.98), **options)
    for update in range(5):
        set_gradients(params, update, some)
        with Operations() as operations:
            step(optimizer)
    averages = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    steps = [state["step"] for state in optimizer.state.values()]
    return [*params, *averages], steps, operations.counts


@pytest.mark.parametrize("elements", [64, 2**18])  # a CPU updates parts of the parameters of this size
@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"amsgrad": True}])
def test_adam(options, dtype, some, elements, monkeypatch):
    monkeypatch.setattr(foreach_optimizer, "CPU_ELEMENTS", elements)
    expected, expected_steps, _ = adam(FAIRSEQ_STEP, dtype, some, **options)
    found, steps, _ = adam(lambda optimizer: adam_step(FAIRSEQ_STEP, optimizer), dtype, some, **options)
    assert steps == expected_steps
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_adam_starts_few_operations():
    _, _, counts = adam(Adam.step, torch.float32, some=False, weight_decay=0.1)
    assert counts.total() <= 2 * 9  # of two groups of parameters
    _, _, counts = adam(FAIRSEQ_STEP, torch.float32, some=False, weight_decay=0.1)
    assert counts.total() > 7 * len(SHAPES)


def test_adam_continues_from_a_checkpoint_in_another_precision():
    """fairseq converts averages that were loaded in another dtype."""
    results = []
    for step in (FAIRSEQ_STEP, lambda optimizer: adam_step(FAIRSEQ_STEP, optimizer)):
        params = parameters()
        optimizer = Adam(params)
        for update in range(4):
            set_gradients(params, update)
            step(optimizer)
            if update == 1:
                for state in optimizer.state.values():
                    state["exp_avg"] = state["exp_avg"].double()
        results.append(params)
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def half_precision(cls, flat, dtype, monkeypatch):
    """Returns the parameters, their float32 copies and the operations of the last of several updates."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the index of the CPU
    params = parameters(dtype)
    cfg = SimpleNamespace(
        common=SimpleNamespace(
            bf16=dtype == torch.bfloat16,
            fp16_scale_window=4,
            fp16_init_scale=4,
            fp16_scale_tolerance=0.0,
            threshold_loss_scale=None,
            min_loss_scale=1e-4,
        ),
        optimizer=None,
    )
    copies = cls.build_fp32_params(None, params, flatten=flat)
    copied = list(copies.values()) if flat else copies
    inner = SimpleNamespace(
        clip_grad_norm=lambda *args: utils.clip_grad_norm_(copied, 0),
        multiply_grads=lambda c: [copy.grad.mul_(c) for copy in copied],
        step=lambda closure, groups: FAIRSEQ_STEP(adam),
    )
    adam = Adam(copied, weight_decay=0.1)
    optimizer = cls(cfg, params, inner, copies)
    for update in range(5):
        with Operations() as operations:
            optimizer.zero_grad()
            set_gradients(params, update, some=True)
            optimizer._needs_sync = True
            norm = optimizer.clip_grad_norm(1.0)
            optimizer.step()
    return [*params, *copied, norm, *(copy.grad for copy in copied)], operations.counts


@pytest.mark.parametrize(
    "flat, dtype", [(True, torch.float16), (False, torch.float16), (False, torch.bfloat16)]
)
def test_half_precision(flat, dtype, monkeypatch):
    assert (
        optim.FP16Optimizer.__name__ == FairseqOptimizer.__name__
    )  # the name is compared when a training is resumed
    expected, slow = half_precision(FairseqOptimizer, flat, dtype, monkeypatch)
    found, fast = half_precision(optim.FP16Optimizer, flat, dtype, monkeypatch)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    assert slow["aten.copy_.default"] >= 2 * len(SHAPES) - len(SHAPES) // 3
    assert fast["aten._foreach_copy_.default"] == 2
    assert fast["aten.copy_.default"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_norm_of_gradients(dtype):
    gradients = [parameter.detach() for parameter in parameters(dtype)]
    norms = [torch.norm(gradient, p=2, dtype=torch.float32) for gradient in gradients]
    assert torch.equal(total_norm(gradients), torch.norm(torch.stack(norms)))
    assert utils.multi_tensor_l2norm_available  # fairseq then calls this function
