"""User-defined encodings: README's examples, and broken ones that the contract tests must detect."""

import re
import shutil

import pytest
import test_contract
import torch
from support.documents import block
from support.tiny import BIN, REPOSITORY, run_command, succeeded, train_flags
from test_contract import Case

from fairseq_lrpe.encodings import ENCODINGS, START, Encoding
from fairseq_lrpe.encodings.rope import RoPE

SHOWN = ("forget", "distance", "turn")
"""The encodings in README.md and CONTRIBUTING.md."""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extended")
    for part in ("fairseq_lrpe", "tests"):
        shutil.copytree(REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    for name in SHOWN:
        shown = block("python", f'@register_encoding("{name}"')
        (folder / "fairseq_lrpe" / "encodings" / f"{name}.py").write_text(shown)
    rows = [block("python", f'"{name}": Method(') for name in ("forget", "distance")]
    methods = folder / "fairseq_lrpe" / "methods.py"
    methods.write_text(methods.read_text().replace("METHODS = {\n", "METHODS = {\n" + "".join(rows), 1))
    return folder


@pytest.mark.slow
def test_readme_encodings_pass_the_contract(extended):
    program = f"import pytest; [pytest.main(['-q', '--encoding', name]) for name in {SHOWN}]"
    done = run_command(BIN / "python", "-c", program, folder=extended, PYTHONPATH=str(extended))
    results = re.findall(r"^=* ?(\d+) passed(?:, \d+ warnings?)? in", done.stdout, re.MULTILINE)
    assert len(results) == len(SHOWN) and min(map(int, results)) >= 12, done.stdout[-3000:]


def test_readme_decay_trains_in_softmax_attention(extended, data_bin, tmp_path):
    flags = train_flags(data_bin, "softmax_lm_forget", tmp_path, "--max-update", 2, "--forget-rate", 0.5)
    flags[flags.index("--user-dir") + 1] = extended / "fairseq_lrpe"
    succeeded(run_command("fairseq-train", *flags, folder=extended, PYTHONPATH=str(extended)))
    model = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)["model"]
    rate = model["decoder.layers.0.self_attn.encoding.rate"]
    assert (rate - 0.5).abs().max() < 0.1 and (rate != 0.5).all()


def test_readme_python_example():
    found = {}
    exec(block("python", "out = linear_attention("), found)
    assert found["out"].shape == (2, 8, 1000, 64) and found["out"].isfinite().all()


class NaiveXPos(RoPE):
    """xPos as published, q ζ^s and k ζ^-s, which exceed float32 at far positions (Sun et al. 2023)."""

    def forward(self, q, k, context=START):
        zeta = (torch.arange(self.head_dim, dtype=torch.float64) // 2 * 2 / self.head_dim + 0.4) / 1.4
        q, k = super().forward(q, k, context)
        steps = (torch.arange(x.size(-2))[:, None] for x in (q, k))
        at_q, at_k = (zeta ** ((s + o) / 512) for s, o in zip(steps, context[:2], strict=True))
        return (q * at_q).to(q.dtype), (k / at_k).to(k.dtype)


class Absolute(Encoding):
    """Scales queries by their absolute position."""

    def forward(self, q, k, context=START):
        return q * (1 + context.q_offset + torch.arange(q.size(-2))[:, None]), k


class IgnoresOffsets(RoPE):
    """Ignores offsets."""

    def forward(self, q, k, context=START):
        return super().forward(q, k)


class SquareRoots(RoPE):
    """Rotates by angles that are proportional to the square root of the position."""

    def position_table(self, x, offset):
        positions = offset + torch.arange(x.size(-2), dtype=torch.float64)
        angles = positions[:, None].sqrt() * torch.ones(self.pairs, dtype=torch.float64)
        return torch.polar(torch.ones_like(angles), angles)


class QuadraticMemory(Encoding):
    """Computes an unneeded matrix of all pairs."""

    def forward(self, q, k, context=START):
        pairs = torch.ones(q.size(-2), q.size(-2), dtype=q.dtype).tril(-q.size(-2))
        return q + pairs @ q, k


def check_left_padding(case):
    test_contract.check_padding(case._replace(attention="softmax"), "left")


@pytest.mark.parametrize("cls, test", [
    (NaiveXPos, test_contract.test_far_positions_in_float32),
    (NaiveXPos, test_contract.test_linear_attention_over_100_000_tokens),
    (Absolute, check_left_padding),
    (Absolute, test_contract.test_far_positions_in_float32),
    (SquareRoots, test_contract.test_shifted_keys_and_values),
    (IgnoresOffsets, test_contract.test_incremental_decoding_matches_full_sequence),
    (QuadraticMemory, test_contract.test_largest_tensor),
])  # fmt: skip
def test_broken_encodings_fail_the_contract(cls, test, monkeypatch):
    monkeypatch.setitem(ENCODINGS, "own", cls)
    cls.name, cls.option_help = "own", {}
    with pytest.raises((AssertionError, RuntimeError)):
        test(Case("own", (("encoding", "own"),), "linear", causal=True))
