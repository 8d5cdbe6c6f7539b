"""Compares the reflection with its explicit matrix."""

import pytest
import torch

from fairseq_lrpe.ops.householder import householder


def matrix(v):
    return torch.eye(len(v), dtype=v.dtype) - 2 * torch.outer(v, v) / v.dot(v)


@pytest.mark.parametrize("length", ["any", "one"])
def test_explicit_matrix_and_gradients(length):
    v = torch.randn(5, dtype=torch.float64)
    v = v / v.norm() if length == "one" else 3 * v
    x, w = (torch.randn(2, 3, 4, 5, dtype=torch.float64) for _ in range(2))
    results = []
    for function in (householder, lambda x, v: x @ matrix(v).T):
        leaves = [x.clone().requires_grad_(), v.clone().requires_grad_()]
        out = function(*leaves)
        results.append((out, *torch.autograd.grad((out * w).sum(), leaves)))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def test_is_an_orthogonal_reflection():
    v = 7 * torch.randn(6, dtype=torch.float64)
    reflection = householder(torch.eye(6, dtype=torch.float64), v)
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(reflection, reflection.T, **close)
    torch.testing.assert_close(reflection @ reflection, torch.eye(6).double(), **close)
    torch.testing.assert_close(reflection @ v, -v, **close)
    torch.testing.assert_close(
        torch.linalg.eigvalsh(reflection), torch.tensor([-1.0, 1, 1, 1, 1, 1]).double(), **close
    )
    orthogonal = torch.randn(6, dtype=torch.float64)
    orthogonal -= v * orthogonal.dot(v) / v.dot(v)
    torch.testing.assert_close(householder(orthogonal, v), orthogonal, **close)


def test_norm_of_v_has_no_effect():
    x, v = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(householder(x, v), householder(x, -1e3 * v), rtol=0, atol=1e-12)
