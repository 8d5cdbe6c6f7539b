"""Compares the RNN with a loop over the definition of a GRU; tests padding and the state while decoding."""

import pytest
import torch

from fairseq_lrpe.positions import build_position

E, V, PAD = 4, 11, 1
CLOSE = {"rtol": 0, "atol": 1e-14}


def build(causal, width=E):
    return build_position("rnn", embed_dim=width, vocab_size=V, causal=causal).double()


def gru(rnn, x, h):
    """Returns the states after each row of x (n, E) that is a token, and h before it at padding (None)."""
    states = []
    for row in x:
        if row is not None:
            w_r, w_z, w_n = rnn.weight_ih_l0.chunk(3)
            u_r, u_z, u_n = rnn.weight_hh_l0.chunk(3)
            b_r, b_z, b_n = rnn.bias_ih_l0.chunk(3)
            c_r, c_z, c_n = rnn.bias_hh_l0.chunk(3)
            r = torch.sigmoid(w_r @ row + b_r + u_r @ h + c_r)
            z = torch.sigmoid(w_z @ row + b_z + u_z @ h + c_z)
            n = torch.tanh(w_n @ row + b_n + r * (u_n @ h + c_n))
            h = (1 - z) * n + z * h
        states.append(h)
    return torch.stack(states)


def loops(module, x, tokens):
    rows = []
    for embeddings, row in zip(x, tokens, strict=True):
        read = [e if token != PAD else None for e, token in zip(embeddings, row, strict=True)]
        width = module.forward_rnn.hidden_size
        states = gru(module.forward_rnn, read, x.new_zeros(width))
        if not module.causal:
            backward = gru(module.backward_rnn, read[::-1], x.new_zeros(width)).flip(0)
            states = torch.cat([states, backward], dim=1)
        rows.append(states)
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [[], [5, 6], [0, 1], [3], [1, 4, 6], range(7)])
def test_matches_definition(padded, causal):
    module = build(causal)
    x, tokens = torch.randn(2, 7, E, dtype=torch.float64, requires_grad=True), torch.full((2, 7), 3)
    tokens[1, list(padded)] = PAD
    mixed = torch.randn(2, 7, E, dtype=torch.float64)
    inputs, results = (x, *module.parameters()), []
    for y in (module(x, None, tokens), loops(module, x, tokens)):
        results.append((y, *torch.autograd.grad((y * mixed).sum(), inputs)))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sizes", [[1] * 9, [4, 1, 3, 1], [9]])
def test_steps_equal_the_whole_sequence(sizes):
    module, state, outputs = build(causal=True), None, []
    x, tokens = torch.randn(3, 9, E, dtype=torch.float64), torch.full((3, 9), 3)
    tokens[0, :4] = tokens[1, 6:] = PAD
    for part, row in zip(x.split(sizes, dim=1), tokens.split(sizes, dim=1), strict=True):
        out, state = module.step(part, None, row, state)
        assert state.shape == (3, E)
        outputs.append(out)
    torch.testing.assert_close(torch.cat(outputs, dim=1), module(x, None, tokens), **CLOSE)


def test_odd_width_is_rejected_in_encoders():
    assert build(causal=True, width=5).forward_rnn.hidden_size == 5
    with pytest.raises(ValueError, match=r"^rnn needs an even embedding dimension in an encoder, not 5$"):
        build(causal=False, width=5)
