"""Linear attention in chunks, O(n): dense products inside a chunk, one running state between chunks."""

import torch
import torch.nn.functional as F


def chunk(q, k, v, *, causal, normalize, log_decay, state, return_state, chunk_size, eps):
    """See :func:`fairseq_lrpe.ops.linear_attention`.

    With S_n the sum of k_j v_jᵀ over all chunks before chunk n, and Q, K, V the rows of chunk n,

        O = tril(Q Kᵀ) V + Q S_n,        S_{n+1} = S_n + Kᵀ V,

    and the same with V = 1 for the denominator. With a decay, pairs inside a chunk carry
    γ^(i-j), the state reaches row i with γ^(i+1), and it is γ^(rows of the chunk) smaller a chunk later.
    """
    if causal and q.size(-2) <= 1:
        # One new token may see all there is: the bidirectional sum over a faded state.
        if state is not None and log_decay is not None:
            fade = (log_decay * q.size(-2)).exp()
            state = state[0] * fade[:, None, None], state[1] * fade[:, None]
        causal, log_decay = False, None
    if not causal:
        return _bidirectional(q, k, v, normalize, state, return_state, eps)

    length = q.size(2)
    size = min(chunk_size, length)
    chunks = -(-length // size)
    rows = [size] * (chunks - 1) + [length - size * (chunks - 1)]
    q, k, v = (_split(x, chunks, size) for x in (q, k, v))

    scores = q @ k.transpose(-1, -2)
    if log_decay is None:
        scores, q_past, k_next, fades = scores.tril(), q, k, None
    else:
        place = torch.arange(size, device=q.device)
        decay = log_decay[:, None, None]
        scores = scores * torch.exp(decay * (place[:, None] - place).clamp(min=0)).tril()[:, None]
        q_past = q * torch.exp(decay * (place + 1))[:, 0, :, None].unsqueeze(1)
        to_end = (torch.tensor(rows, device=q.device)[:, None] - 1 - place).clamp(min=0)
        k_next = k * torch.exp(decay * to_end)[..., None]
        fades = torch.exp(log_decay[:, None] * torch.tensor(rows, device=q.device))

    kv = k_next.transpose(-1, -2) @ v
    past_kv, last_kv = _running(kv, None if state is None else state[0], fades)
    out = scores @ v + q_past @ past_kv
    if normalize or return_state:
        past_k, last_k = _running(k_next.sum(-2), None if state is None else state[1], fades)
    if normalize:
        denominator = scores.sum(-1) + (q_past @ past_k[..., None]).squeeze(-1)
        out = out / denominator.clamp(min=eps)[..., None]
    out = out.flatten(2, 3)[:, :, :length]
    return (out, (last_kv, last_k)) if return_state else out


def _bidirectional(q, k, v, normalize, state, return_state, eps):
    kv, k_sum = k.transpose(-1, -2) @ v, k.sum(-2)
    if state is not None:
        kv, k_sum = kv + state[0], k_sum + state[1]
    out = q @ kv
    if normalize:
        out = out / (q @ k_sum[..., None]).clamp(min=eps)
    return (out, (kv, k_sum)) if return_state else out


def _split(x, chunks, size):
    """(B, H, L, d) -> (B, H, chunks, size, d), zeros after the end."""
    missing = chunks * size - x.size(2)
    return (F.pad(x, (0, 0, 0, missing)) if missing else x).unflatten(2, (chunks, size))


def _running(steps, start, fades):
    """The sums before each chunk and after the last: ``steps`` (B, H, chunks, ...), ``fades`` (H, chunks)."""
    start = torch.zeros_like(steps[:, :, 0]) if start is None else start
    if fades is not None:
        fades = fades.reshape(*fades.shape, *[1] * (steps.dim() - 3))
    return _Running.apply(steps, start, fades)


class _Running(torch.autograd.Function):
    # A chunk is an addition here; cumsum reads and writes one element after the other, and its
    # backward flips twice.
    @staticmethod
    def forward(ctx, steps, start, fades):
        before, state = torch.empty_like(steps), start
        for n in range(steps.size(2)):
            before[:, :, n] = state
            state = steps[:, :, n] + (state if fades is None else fades[:, n] * state)
        ctx.save_for_backward(before if fades is not None else None, fades)
        return before, state

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_before, grad):
        before, fades = ctx.saved_tensors
        grad_steps = torch.empty_like(grad_before)
        grad_fades = None if fades is None else torch.empty_like(fades)
        for n in reversed(range(grad_before.size(2))):
            grad_steps[:, :, n] = grad
            if fades is not None:
                by_head = (grad * before[:, :, n]).sum(0)
                grad_fades[:, n] = by_head.flatten(1).sum(1).view_as(fades[:, n])
                grad = fades[:, n] * grad
            grad = grad + grad_before[:, :, n]
        return grad_steps, grad, grad_fades
