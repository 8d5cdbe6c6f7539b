"""Compares PaTH with loops over the paper's equations."""

import pytest
import torch
from support.pairwise_scores import D, H, random_encoding
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.attention.fairseq_adapter import FairseqSoftmaxAttention
from fairseq_lrpe.ops import reflections

B = 2
E = H * D


def attention(dtype=torch.float64):
    module = FairseqSoftmaxAttention(random_encoding("path"))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module.to(dtype).eval()


def reflections_of(encoding, x):
    """Returns H_s of a sentence (n, E) for each position and head."""
    hidden = x @ encoding.w_in.weight.T @ encoding.w_out.weight.T
    beta, out = 2 * (x @ encoding.beta.weight.T + encoding.beta.bias).sigmoid(), []
    for s in range(len(x)):
        taps = [(t, s - 2 + t) for t in range(3) if s - 2 + t >= 0]
        w = sum(encoding.convolution[t] * hidden[at] for t, at in taps)
        w = w * w.sigmoid()
        out.append([])
        for h in range(H):
            part = w[h * D : (h + 1) * D]
            part = part / part.norm()
            out[s].append(torch.eye(D, dtype=x.dtype) - beta[s, h] * torch.outer(part, part))
    return out


def definition(module, x, window=99):
    """Computes attention of a sentence (n, E) without padding."""
    q, k, v = (p(x).unflatten(-1, (H, D)) for p in (module.q_proj, module.k_proj, module.v_proj))
    matrices, rows = reflections_of(module.encoding, x), []
    for i in range(len(x)):
        heads = []
        for h in range(H):
            scores, seen = [], range(max(0, i + 1 - window), i + 1)
            for j in seen:
                product = torch.eye(D, dtype=x.dtype)
                for s in range(j + 1, i + 1):
                    product = matrices[s][h] @ product
                scores.append(q[i, h] @ product @ k[j, h] / D**0.5)
            heads.append(torch.stack(scores).softmax(0) @ v[seen.start : i + 1, h])
        rows.append(module.out_proj(torch.cat(heads)))
    return torch.stack(rows)


@pytest.mark.parametrize("span, rows", [((0, 11), 32), ((0, 11), 3), ((4, 11), 3), ((0, 7), 32), ((2, 9), 3)])
def test_attention_and_gradients_match_definition(monkeypatch, span, rows):
    """With one block and with several, and arbitrary inputs at padding."""
    monkeypatch.setattr(reflections, "_BLOCK_SIZE", rows)
    monkeypatch.setattr(reflections, "_MERGED_BLOCKS", 2)
    module, x, place = attention(), randn(11, B, E).requires_grad_(), slice(*span)
    padding = torch.ones(B, 11, dtype=torch.bool)
    padding[0] = padding[1, place] = False
    whole, _ = module(x, key_padding_mask=padding if padding.any() else None)
    leaves, found = [x, *module.parameters()], (whole[:, 0], whole[place, 1])
    expected = definition(module, x[:, 0]), definition(module, x[place, 1])
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))


def test_window_hides_keys_but_not_reflections():
    module, x = attention(), randn(12, 1, E)
    module.window = 5
    assert_same(module(x)[0][:, 0], definition(module, x[:, 0], window=5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_half_precision_caches_keys_in_float32(dtype):
    """After 200 steps the error is that of a single score in half precision."""
    module, x, state = attention(dtype), randn(200, B, E).to(dtype), {}
    pieces = torch.cat([module(part, incremental_state=state)[0] for part in x.split(1)])
    assert pieces.dtype == dtype
    assert module._get_input_buffer(state).attention.past["k"].dtype == torch.float32
    whole, _ = module(x)
    assert (pieces - whole).float().norm() / whole.float().norm() < 2 * torch.finfo(dtype).eps


def test_sizes_of_reflections():
    """β is between 0 and 2; there is a gradient where it is 0 in float32, as for a logit of -200."""
    encoding = random_encoding("path", num_heads=8, head_dim=64)
    steps = encoding.input_features(torch.randn(3, 2 + 7, 512, dtype=torch.float64))
    assert steps.shape == (3, 8, 7, 64) and (steps.norm(dim=-1) ** 2 < 2 + 1e-9).all()
    module = attention(torch.float32)
    with torch.no_grad():
        module.encoding.beta.bias.fill_(-200.0)
    out, _ = module(randn(9, B, E).float())
    gradients = torch.autograd.grad(out.sum(), [*module.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
