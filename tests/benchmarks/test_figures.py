"""The plots of the encodings, and the values of the curves."""

import math

import torch
from tiny import run_command

from fairseq_lrpe.benchmarks.figures import scores_by_distance
from fairseq_lrpe.methods import METHODS


def test_command(tmp_path):
    done = run_command("python", "-m", "fairseq_lrpe", "bench", "figures", "--out", tmp_path / "figures")
    assert done.returncode == 0, done.stderr
    for name in ("prior_matrices", "prior_distances", "score_curves"):
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_curves_match_the_formulas():
    distance = torch.arange(257)
    cosine = torch.cos(math.pi * distance / 2 / 512) / 8  # cosFormer, M = 512, a vector of length 1, d = 64
    torch.testing.assert_close(scores_by_distance(METHODS["cosformer"]), cosine.expand(4, -1))

    torch.manual_seed(0)
    pairs = torch.rand(64)
    pairs = (pairs / pairs.norm()).square().view(32, 2).sum(1)  # RoPE: each pair's length, squared, times cos
    angles = distance[:, None] * 10000.0 ** (-torch.arange(0, 64, 2) / 64)
    torch.testing.assert_close(
        scores_by_distance(METHODS["rope"]), (angles.cos() @ pairs / 8).expand(4, -1), rtol=1e-4, atol=1e-5
    )

    per = scores_by_distance(METHODS["per"])
    rates = torch.sigmoid(3 * torch.arange(4) / 4 + 2)
    assert (per[:, 1:] <= rates[:, None] ** distance[1:] / 8 + 1e-6).all()
    assert scores_by_distance(METHODS["gcdf"]).shape == (4, 257)
