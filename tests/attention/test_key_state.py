"""While there are few positions, the state of linear attention contains keys and values instead of sums."""

import zipfile

import pytest
import torch
from support.pairwise_scores import in_parts
from support.tensors import assert_same, randn, with_gradients
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves

from fairseq_lrpe.attention import LinearAttention
from fairseq_lrpe.attention.key_state import KeyState
from fairseq_lrpe.ops.linear import LinearState

B, E, H = 3, 16, 2
LENGTH = 13  # the first 8 positions are keys and values, with features twice as wide 10
ORDERS = {1: [[2, 0, 0]], 4: [[1, 1, 2]], 5: [[0, 2, 1, 1, 0]], 8: [[1, 2, 0, 4, 4], [3, 0]]}
"""Orders of rows that beam search requests before a step."""

CASES = [  # encoding, options; there is no decay, or one of the shape
    ("rope", {}),
    ("lrpe", {"core": "unitary", "learn_theta": True, "linear_norm": "layernorm"}),
    ("lrpe", {"core": "unitary", "linear_norm": "content"}),
    ("alibi", {}),  # (H,)
    ("alibi", {"linear_norm": "content"}),
    ("xpos", {}),  # (1, d)
    ("fox", {}),  # (B, H, n)
    ("gla", {}),  # (B, H, n, d)
    ("gla", {"linear_norm": "content"}),
    ("roper", {}),
]


def build(name, **options):
    torch.manual_seed(0)
    return LinearAttention(E, H, name, causal=True, **options).double()


def decode(module, tokens):
    """Yields the output and the state of each step, and the output of the whole sequence's last position."""
    state, x, padding = None, tokens[0][:B, :0], torch.zeros(B, 0, dtype=torch.bool)
    for i, token in enumerate(tokens):
        for order in map(torch.tensor, ORDERS.get(i, [])):
            state, x, padding = module.reorder_state(state, order), x[order], padding[order]
        x, padding = torch.cat([x, token[: len(x)]], dim=1), pad(padding, (0, 1))
        padding[0, -1] = i % 3 == 1
        mask = padding[:, -1:] if i % 3 == 1 else None
        module.backend = "chunk"
        out, state = module(x[:, -1:], key_padding_mask=mask, state=state, return_state=True)
        module.backend = "reference"
        yield out, state, module(x, key_padding_mask=padding)[:, -1:]


@pytest.mark.parametrize("name, options", CASES)
def test_steps_match_definition(name, options):
    """Outputs and gradients across the step in which keys become sums, with padding and reordered rows.

    The size of the state is constant from then on, and before at most twice as large.
    """
    module = build(name, **options)
    tokens = [randn(5, 1, E, seed=i).requires_grad_() for i in range(LENGTH)]
    outputs, states, _ = zip(*decode(module, tokens), strict=True)
    *_, expected = zip(*decode(module, tokens), strict=True)
    kinds = [type(state.past["sums"]) for state in states]
    assert kinds == sorted(kinds, key=[KeyState, LinearState].index) and len(set(kinds)) == 2
    sizes = [sum(x.numel() for x in tree_leaves(state.past) if torch.is_tensor(x)) for state in states]
    sizes = [size / len(out) for size, out in zip(sizes, outputs, strict=True)]
    assert len(set(sizes[kinds.index(LinearState) :])) == 1
    decays = 1.5 if name == "gla" else 1  # are stored with the keys
    assert max(sizes) <= 2 * decays * sizes[-1]
    leaves = [*tokens, *module.parameters()]
    assert_same(with_gradients(outputs, leaves), with_gradients(expected, leaves))


@pytest.mark.parametrize("name", ["rope", "lrpe", "alibi", "per", "fox", "gla"])
@torch.no_grad()
def test_keys_and_sums_continue_alike(name):
    """After steps and after a prompt; positions are restarted, or several positions follow."""
    module, x = build(name), randn(B, 6, E)
    _, prompt = module(x[:, :3], return_state=True)
    _, steps = in_parts(module, x[:, :3], 1)
    assert isinstance(steps.past["sums"], KeyState) and isinstance(prompt.past["sums"], LinearState)
    order = torch.tensor([2, 0])
    steps, prompt = (module.reorder_state(state, order) for state in (steps, prompt))
    for start in (lambda state: state, module.restart_positions):
        found, expected = (module(x[order, 3:], state=start(s), return_state=True) for s in (steps, prompt))
        assert_same(found[0], expected[0])
        assert_same(*(module(x[order, :1], state=state)[0] for _, state in (found, expected)))


NAMES = {
    KeyState: (b"attention.key_state", b"attention.linear"),
    LinearState: (b"ops.linear.state", b"ops.linear_attention.state"),
}
"""{class: names of its module without the package, today and in version 1.0}"""


@pytest.mark.parametrize("cls", NAMES)
def test_a_state_that_version_1_saved_is_loaded(cls, tmp_path):
    """The file contains the name of the module in which the class was."""
    numbers = [randn(B, 2, 3, 4), randn(B, 2, 3, 4), None]
    state = cls(*numbers[: len(cls._fields)])
    torch.save(state, tmp_path / "new.pt")
    now, before = (b"fairseq_lrpe." + name for name in NAMES[cls])
    with zipfile.ZipFile(tmp_path / "new.pt") as new, zipfile.ZipFile(tmp_path / "old.pt", "w") as old:
        for name in new.namelist():
            content = new.read(name)
            assert not name.endswith("data.pkl") or now in content
            old.writestr(name, content.replace(now, before))
    loaded = torch.load(tmp_path / "old.pt")
    assert type(loaded) is cls and loaded[0].equal(state[0])
