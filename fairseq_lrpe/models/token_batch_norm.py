"""Batch normalization over the tokens of sequences."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class _SumOverProcesses(torch.autograd.Function):
    """Sum of a tensor over all processes, whose gradient is also summed over all processes."""

    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return _SumOverProcesses.apply(gradient)


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch normalization over all tokens (L, B, E) of a batch except padding.

    In distributed training, the statistics and the running statistics are those of the tokens of all
    processes. These statistics are the mean and the variance that one process would compute for the
    concatenated batch, and gradients flow through them to the inputs of all processes. Each forward pass sums
    2E + 1 numbers over the processes, and each backward pass their gradients.

    The running statistics of half-precision models are float32.

    Attributes:
        padding: (B, L), True at padding, where the output is 0; or None.
        is_dummy: whether other processes ignore the tokens of this one. fairseq repeats a batch in a process
            that has none at the end of an epoch, and ignores its loss.
    """

    padding: Tensor | None = None
    is_dummy = False

    def forward(self, x):
        if self.running_mean.dtype in (torch.half, torch.bfloat16):
            self.running_mean = self.running_mean.float()
            self.running_var = self.running_var.float()
        if self.padding is None:
            return self._normalized(x.flatten(0, 1)).view_as(x)
        real = ~self.padding.T
        if torch.compiler.is_compiling() or x.device.type != "cpu":
            return self._normalized_in_place(x, real[..., None])
        return torch.zeros_like(x).masked_scatter(real[..., None], self._normalized(x[real]))

    def _normalized(self, x):
        """Returns normalized tokens (N, E).

        Running statistics are used in evaluation, and if N < 2 in a single process.
        """
        exact = x.to(torch.promote_types(x.dtype, self.running_mean.dtype))
        weight, bias = self.weight.to(exact.dtype), self.bias.to(exact.dtype)
        if self._has_processes():
            var, mean = torch.var_mean(exact, 0, correction=0)
            mean, var = self._statistics_of_all_processes(mean, var, len(x), exact.dtype)
            return ((exact - mean) * (var + self.eps).rsqrt() * weight + bias).type_as(x)
        training = self.training
        if len(x) < 2:  # in torch.compile, the comparison alone is a symbol, which batch_norm refuses
            training = False
        statistics = self.running_mean, self.running_var, weight, bias
        return F.batch_norm(exact, *statistics, training, self.momentum, self.eps).type_as(x)

    def _normalized_in_place(self, x, real):
        """Returns normalized tokens (L, B, E), and 0 where ``real`` (L, B, 1) is False.

        The shapes of all operations are known, so that a GPU is not waited for. The number of tokens that
        ``real`` selects depends on values.
        """
        exact = x.to(torch.promote_types(x.dtype, self.running_mean.dtype))
        mean, var = self.running_mean.clone(), self.running_var.clone()
        if self.training:
            count = real.sum()
            new_mean = exact.where(real, 0.0).sum((0, 1)) / count
            new_var = (exact - new_mean).where(real, 0.0).square().sum((0, 1)) / count
            if self._has_processes():
                mean, var = self._statistics_of_all_processes(new_mean, new_var, count, exact.dtype)
            else:
                has_several = count > 1
                mean = torch.where(has_several, new_mean, mean)
                var = torch.where(has_several, new_var, var)
                with torch.no_grad():
                    momentum = self.momentum * has_several.to(exact.dtype)
                    self.running_mean.lerp_(mean, momentum)
                    self.running_var.lerp_(var * count / (count - 1).clamp(min=1), momentum)
        weight, bias = self.weight.to(exact.dtype), self.bias.to(exact.dtype)
        normalized = (exact - mean) * (var + self.eps).rsqrt() * weight + bias
        return normalized.where(real, 0.0).type_as(x)

    def _has_processes(self):
        """Returns whether statistics are those of several processes."""
        return self.training and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def _statistics_of_all_processes(self, mean, var, count, dtype):
        """Returns mean and variance (E,) of the tokens of all processes, and updates the running ones.

        The sums of x and x² are float64, because their difference loses digits. ``count`` is the number of
        tokens, of which ``mean`` and ``var`` are those of this process.
        """
        mean = mean.double()
        var = var.double()
        if self.is_dummy:
            count = 0
        number = mean.new_ones(1) * count
        sums = torch.cat([count * mean, count * (var + mean**2), number])
        sum_of_x, sum_of_squares, total = _SumOverProcesses.apply(sums).split([len(mean), len(mean), 1])
        mean = sum_of_x / total
        var = (sum_of_squares / total - mean**2).clamp(min=0)
        with torch.no_grad():
            unbiased = var * total / (total - 1).clamp(min=1)  # as in F.batch_norm
            for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
                running.lerp_(new.to(running.dtype), self.momentum)
        return mean.to(dtype), var.to(dtype)
