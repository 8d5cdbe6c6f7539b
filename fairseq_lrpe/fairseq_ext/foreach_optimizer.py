"""fairseq's Adam and half-precision optimizer in few operations, with the same results bit for bit.

fairseq starts about seven operations for each parameter in a step of Adam, and two copies for each parameter
with --fp16 or --bf16. On a GPU, starting these operations takes longer than executing them. torch's
``_foreach`` operations process the tensors of all parameters together.
"""

import math
from collections.abc import Callable

import torch
from fairseq import optim
from fairseq.optim.adam import Adam
from torch import Tensor

CPU_ELEMENTS = 2**18
"""Number of elements of the parameters that a CPU updates together, which stay in its cache."""


def adam_step(step: Callable, optimizer: Adam, closure: Callable | None = None):
    """Performs a step of fairseq's Adam, updating parameters with equal numbers of steps together.

    For half-precision parameters, sparse gradients and AMSGrad, fairseq's own ``step`` is called.
    """
    if not all(_is_supported(optimizer, group) for group in optimizer.param_groups):
        return step(optimizer, closure)
    loss = None if closure is None else closure()
    for group in optimizer.param_groups:
        for number, parameters in _count_steps(optimizer, group).items():
            for part in _parts(parameters):
                _update(optimizer, group, part, number)
    return loss


def _is_supported(optimizer, group):
    if group.get("amsgrad", False):
        return False
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        average = optimizer.state[parameter].get("exp_avg", parameter)
        if not _kind(parameter) == _kind(parameter.grad) == _kind(average):
            return False
        if parameter.dtype not in (torch.float32, torch.float64):
            return False
    return True


def _kind(x):
    return x.dtype, x.device, x.layout


def _count_steps(optimizer, group):
    """Counts a step of each parameter with a gradient, and returns {number of steps: parameters}."""
    parameters = {}
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        state = optimizer.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        parameters.setdefault(state["step"], []).append(parameter)
    return parameters


def _parts(parameters):
    """Splits parameters on a CPU into parts of about CPU_ELEMENTS; on a GPU, all parameters are one part."""
    if parameters[0].device.type != "cpu":
        return [parameters]
    parts = []
    size = CPU_ELEMENTS
    for parameter in parameters:
        if size + parameter.numel() > CPU_ELEMENTS:
            parts.append([])
            size = 0
        parts[-1].append(parameter)
        size += parameter.numel()
    return parts


@torch.no_grad()
def _update(optimizer, group, parameters, step):
    gradients = []
    averages = []
    squares = []
    for parameter in parameters:
        state = optimizer.state[parameter]
        gradients.append(parameter.grad)
        averages.append(state["exp_avg"])
        squares.append(state["exp_avg_sq"])
    beta1, beta2 = group["betas"]
    torch._foreach_mul_(averages, beta1)
    torch._foreach_add_(averages, gradients, alpha=1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
    denominators = torch._foreach_sqrt(squares)
    torch._foreach_add_(denominators, group["eps"])
    # The order of the factors is fairseq's, because another one would be rounded differently.
    step_size = group["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    if group["weight_decay"] != 0:
        torch._foreach_add_(parameters, parameters, alpha=-group["weight_decay"] * group["lr"])
    torch._foreach_addcdiv_(parameters, averages, denominators, value=-step_size)


class FP16Optimizer(optim.FP16Optimizer):
    """fairseq's optimizer of half-precision parameters, which converts all parameters together.

    The class has the name of fairseq's class, which fairseq writes to checkpoints and compares.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._flat_views = {}

    def _sync_fp16_grads_to_fp32(self):
        if not self._needs_sync:
            return
        if self.has_flat_params:
            for device, flat in self.fp32_params.items():
                parameters = [p for p in self._on(device) if p.requires_grad]
                gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
                _copy(self._views(("gradient", device), flat.grad, parameters), gradients)
        else:
            self._copy_separate_gradients()
        self._needs_sync = False

    def _copy_separate_gradients(self):
        copies = []
        gradients = []
        for parameter, copy in zip(self.fp16_params, self.fp32_params, strict=True):
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                copy.grad = torch.zeros_like(copy)
            elif copy.grad is None:
                copy.grad = parameter.grad.float()
            else:
                copies.append(copy.grad)
                gradients.append(parameter.grad)
        _copy(copies, gradients)

    def _sync_fp32_params_to_fp16(self):
        if self.has_flat_params:
            for device, flat in self.fp32_params.items():
                parameters = self._on(device)
                _copy(parameters, self._views(("parameter", device), flat, parameters))
            return
        parameters = []
        copies = []
        for parameter, copy in zip(self.fp16_params, self.fp32_params, strict=True):
            if parameter.requires_grad:
                parameters.append(parameter)
                copies.append(copy)
        _copy(parameters, copies)

    def zero_grad(self):
        if self.has_flat_params:
            super().zero_grad()
            return
        for parameter in self.fp16_params:
            parameter.grad = None
        gradients = [copy.grad for copy in self.fp32_params if copy.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)
        self._needs_sync = False
        if self.scaler is not None:
            self._multiply_factor = 1.0 / float(self.scaler.loss_scale)

    def _on(self, device):
        return [parameter for parameter in self.fp16_params if parameter.device.index == device]

    def _views(self, key, flat, parameters):
        """Returns views of a flat tensor in the shapes of the parameters, which are created only once."""
        views = self._flat_views.get(key)
        if views is None or len(views) != len(parameters) or views[0].data_ptr() != flat.data_ptr():
            sizes = [parameter.numel() for parameter in parameters]
            parts = flat.detach()[: sum(sizes)].split(sizes)
            views = [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
            self._flat_views[key] = views
        return views


def total_norm(gradients: list[Tensor], *unused) -> Tensor:
    """Returns the Euclidean norm of all gradients in float32, as fairseq computes it without Apex."""
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
    return torch.stack([norm.to(norms[0].device) for norm in norms]).norm()


@torch.no_grad()
def _copy(targets, sources):
    if targets:
        torch._foreach_copy_(targets, sources)
