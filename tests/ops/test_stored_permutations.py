"""Powers of a permutation are stored, and follow every change of the permutation."""

import copy
import io
import pickle

import pytest
import torch
import torch.distributed as dist
from fairseq.dataclass.configs import EMAConfig
from support.launches import Launches
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, vmap
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fairseq_lrpe.encodings import START, Context, build_encoding
from fairseq_lrpe.fairseq_ext.ema import ExactEMA
from fairseq_lrpe.ops import constants, permutation
from fairseq_lrpe.ops.permutation import permutation_powers
from fairseq_lrpe.ops.position_index import PositionIndex

OPTIONS = {"per": {}, "lrpe": {"core": "permutation", "rotation": "odd_even"}}
X = torch.randn(1, 2, 9, 8, generator=torch.Generator().manual_seed(0))


def build(name="per", seed=0, wide=8):
    torch.manual_seed(seed)
    return build_encoding(name, num_heads=2, head_dim=wide, causal=False, **OPTIONS[name])


def other_values(module):
    return build("per" if module.permutation.dim() > 1 else "lrpe", seed=1).state_dict()


def loaded(module):
    module.load_state_dict(other_values(module))


def assigned(module):
    module.load_state_dict(other_values(module), assign=True)


def buffer_replaced(module):
    module._buffers["permutation"] = other_values(module)["permutation"]


def copied_in_place(module):
    module._buffers["permutation"].copy_(other_values(module)["permutation"])


def copied_to_state_dict(module):
    module.state_dict()["permutation"].copy_(other_values(module)["permutation"])


def copied_together(module):
    torch._foreach_copy_([module.state_dict()["permutation"]], [other_values(module)["permutation"]])


def moved(module):
    module.double().load_state_dict(other_values(module))
    module.to(torch.float32)


def data_replaced(module):
    module._buffers["permutation"].data = other_values(module)["permutation"]


def copied_in_inference_mode(module):
    with torch.inference_mode():
        copied_in_place(module)


def reordered_by_a_parent(module):
    nn.Sequential(module)._apply(lambda x: x.flip(-1))


CHANGES = [loaded, assigned, buffer_replaced, copied_in_place, copied_to_state_dict, copied_together, moved]
CHANGES += [data_replaced, copied_in_inference_mode, reordered_by_a_parent]


@pytest.fixture(params=[True, False], ids=["cpu", "gpu"])
def as_on(request, monkeypatch):
    """Values are compared on a CPU; on a GPU, an error follows if they differ."""
    monkeypatch.setattr(permutation, "_is_read", lambda x: request.param)
    return "cpu" if request.param else "gpu"


def assert_follows(module):
    """Asserts that the powers are those of the present permutation."""
    expected = permutation_powers(module.permutation, 0, X.size(2))
    for _ in range(2):
        table = module.permutation_table(0, X.size(2))
        assert table.index.equal(expected) and table.inverse.equal(expected.argsort(-1))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", OPTIONS)
@torch.no_grad()
def test_changes_of_the_permutation(name, change, as_on):
    module = build(name)
    before = module.permutation_table(0, 9).index.clone()
    change(module)
    assert not module.permutation.equal(build(name).permutation)
    assert_follows(module)
    assert not module.permutation_table(0, 9).index.equal(before)


def copied_through_data(module):
    module._buffers["permutation"].data.copy_(other_values(module)["permutation"])


def broadcast(module):
    """Operations of torch.distributed on one tensor do not change its version."""
    dist.broadcast(module._buffers["permutation"].data.copy_(other_values(module)["permutation"]), 0)


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("change", [copied_through_data, broadcast])
def test_changes_that_leave_no_trace(change, as_on, process_group):
    """On a GPU, an assertion fails, instead of wrong powers."""
    module = build()
    module(X, X)
    change(module)
    if as_on == "cpu":
        assert_follows(module)
    else:
        with pytest.raises(RuntimeError, match=r"modified through \.data"):
            module(X, X)


def test_distributed_training_changes_the_version(as_on, process_group):
    """As DistributedDataParallel broadcasts buffers."""
    module = build()
    module(X, X)
    source = other_values(module)["permutation"]
    stored = module._buffers["permutation"]
    version = stored._version
    dist._broadcast_coalesced(dist.group.WORLD, [stored], 2**20, 0)
    assert stored._version > version
    stored.data.copy_(source)
    dist._broadcast_coalesced(dist.group.WORLD, [stored], 2**20, 0)
    assert_follows(module)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copies_have_no_powers(copied, as_on):
    module = build()
    module(X, X)
    assert module._stored_table.part is not None
    other = copied(module)
    assert other._stored_table.part is None and other(X, X)[0].equal(module(X, X)[0])
    loaded(other)
    assert_follows(other)
    assert_follows(module)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    assert len(file.getvalue()) < 10_000


@torch.no_grad()
def test_averages_of_models(as_on):
    """They are compared after each update, from a model with another permutation."""
    first, second = build(seed=1), build()
    averages = [
        AveragedModel(first, use_buffers=True),
        AveragedModel(first, multi_avg_fn=get_ema_multi_avg_fn(0.0), use_buffers=True),
    ]
    fairseqs = ExactEMA(first, EMAConfig(store_ema=True, ema_decay=0.0))
    for _ in range(3):
        for average in averages:
            average.update_parameters(first)
            average.module(X, X)
        fairseqs.model(X, X)
    for _ in range(2):
        averages[1].update_parameters(second)
        fairseqs.step(second)
        for module in (averages[1].module, fairseqs.model):
            assert_follows(module)
            assert module.permutation.equal(second.permutation)
    assert_follows(averages[0].module)
    fairseqs.restore(first.state_dict())
    assert_follows(fairseqs.model)


@torch.no_grad()
def test_replaced_permutations(as_on):
    module, other = build(), build(seed=1)
    expected, others = (x(X, X)[0].clone() for x in (module, other))
    assert not expected.equal(others)
    for _ in range(2):
        assert functional_call(module, other.state_dict(), (X, X))[0].equal(others)
        assert module(X, X)[0].equal(expected)
    rows = torch.stack([module.state_dict()["permutation"], other.state_dict()["permutation"]])
    found = vmap(lambda row: functional_call(module, {"permutation": row}, (X, X))[0])(rows)
    assert found.equal(torch.stack([expected, others]))
    with FakeTensorMode(allow_non_fake_inputs=True):
        module(torch.empty(1, 2, 9, 8), torch.empty(1, 2, 9, 8))
    assert module(X, X)[0].equal(expected)


@torch.no_grad()
def test_inference_mode(as_on):
    with torch.inference_mode():
        module = build()
        module(X, X)
        loaded(module)
        assert module._stored_table.part is None
        assert module.permutation_table(0, 9).index.equal(permutation_powers(module.permutation, 0, 9))
    module = build()
    with torch.inference_mode():
        module(X, X)
    with torch.enable_grad():
        x = X.clone().requires_grad_()
        module(x, x)[0].sum().backward()


@pytest.mark.parametrize("name", OPTIONS)
@torch.no_grad()
def test_parts_of_a_sequence(name, as_on):
    """Powers of any positions, in any order, are those that are computed directly."""
    module = build(name)
    for offset, length in [(0, 9), (0, 300), (250, 10), (700, 1), (701, 1), (300, 600), (10**6, 3), (0, 0)]:
        expected = permutation_powers(module.permutation, offset, length)
        assert module.permutation_table(offset, length).index.equal(expected)
    for at in ([0, 2, 5], [3, 90_000], list(range(0, 600, 2))):
        at = torch.tensor(at)
        index = PositionIndex(at, at, int(at.max()))
        table = module.permutation_table(index, len(at))
        assert table.index.equal(permutation_powers(module.permutation, index, len(at)))
        assert table.inverse.equal(table.index.argsort(-1))
    with pytest.raises(ValueError, match="negative"):
        module.permutation_table(-1, 3)


@torch.no_grad()
def test_decoding_computes_few_parts(monkeypatch):
    module, computed = build(), []
    compute = permutation._compute_part
    monkeypatch.setattr(permutation, "_compute_part", lambda *args: computed.append(0) or compute(*args))
    for s in range(600):
        module(X[:, :, :1], X[:, :, :1], Context(s, s))
    assert len(computed) == 3


@torch.no_grad()
def test_long_sequences_are_not_stored():
    module = build(wide=64)
    module.permutation_table(0, permutation._MAX_STORED_ELEMENTS // 128)
    assert module._stored_table.part is not None
    module._stored_table.part = None
    module.permutation_table(0, permutation._MAX_STORED_ELEMENTS // 128 + 1)
    assert module._stored_table.part is None


@pytest.mark.parametrize("name, kernels", [("per", 2), ("lrpe", 4)])
def test_launches(name, kernels, as_on, monkeypatch):
    """Without stored powers, PER starts 37 kernels here, for 512 tokens."""
    for module in (permutation, constants):
        monkeypatch.setattr(module, "is_tracing", lambda: False)
    module, x = build(name), torch.randn(1, 2, 512, 8)
    module(x, x, START)
    with Launches() as counted:
        module(x, x, START)
    assert counted.kernels == kernels + {"cpu": 1, "gpu": 3}[as_on]  # compare values
    module._stores_table = lambda *_: False
    with Launches() as counted:
        module(x, x, START)
    assert counted.kernels >= kernels + 30
