"""Training steps read nothing from the GPU: decisions are made from the batch on the CPU."""

import copy
from types import SimpleNamespace

import pytest
import torch
from fairseq import utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmLoss
from support.tiny_models import EOS, PAD, build_small, task_of
from support.transfers import Transfers

from fairseq_lrpe.fairseq_ext import host_copies, masked_lm
from fairseq_lrpe.fairseq_ext.host_copies import on_both, on_host
from fairseq_lrpe.fairseq_ext.soft_target_cross_entropy import SoftTargetCrossEntropy
from fairseq_lrpe.models.memory import InputMemory, Memory
from fairseq_lrpe.models.token_batch_norm import TokenBatchNorm
from fairseq_lrpe.tasks.memory_lm import Segment

CROSS_SELF = {"cross_self_attention": True, "no_cross_attention": True}
CASES = [
    ("linear_lm_tmlr_type1", {}),
    ("softmax_lm_rope", {}),
    ("linear_lm_base", {"token_positions": "cape"}),
    ("softmax_lm_xl", {"memory": True}),
    ("linear_roberta_tmlr_type1", {}),
    ("softmax_roberta_deberta", {"mask_decoder": True, "token_positions": "none"}),
    ("linear_transformer_tmlr_type1", {}),
    ("softmax_transformer_rope", {}),
    ("softmax_transformer_shaw", CROSS_SELF),
    ("softmax_question_generator_gcdf", {}),
    ("linear_classifier_tmlr_type1", {}),
    ("softmax_classifier_rope", {"encoder_norm": "layer"}),
    ("linear_vit_tmlr_type1", {}),
]


def batch_of(arch, padding):
    """A batch whose source is padded on the right, or on the left in translation."""
    if "_vit" in arch:
        return {"net_input": {"images": torch.randn(3, 3, 12, 12)}, "target": torch.rand(3, 5)}
    tokens, target = torch.randint(4, 24, (3, 10)), torch.randint(4, 24, (3, 8))
    if padding:
        target[1, -2:] = PAD
        tokens[2, 4] = EOS
        tokens[0, slice(0, 3) if "_transformer" in arch else slice(-3, None)] = PAD
    inputs = {"src_tokens": tokens}
    if "_transformer" in arch or "_question_generator" in arch:
        inputs |= {"src_lengths": tokens.ne(PAD).sum(1), "prev_output_tokens": target}
    elif "_classifier" in arch:
        target = torch.randint(5, (3,))
    elif "_roberta" in arch:
        target = tokens.masked_fill(torch.rand(tokens.shape) > 0.5, PAD)
        target[1, 1] = tokens[1, 1]
    else:
        target = tokens.clone()
    return {"net_input": inputs, "target": target}


def criterion_of(arch):
    task = task_of()
    if "_vit" in arch:
        return SoftTargetCrossEntropy(task)
    if "_roberta" in arch:
        return MaskedLmLoss(SimpleNamespace(tpu=False), task)
    if "_classifier" in arch or "_lm" in arch:
        return CrossEntropyCriterion(task, False)
    return LabelSmoothedCrossEntropyCriterion(task, False, 0.1)


def build(arch, memory=False, **flags):
    model = build_small(arch, **flags).train()
    if memory:
        model.decoder.memory = Memory(model.decoder.layers, lambda: InputMemory(5))
    return model


def steps_of(batch, memory):
    """The batch, or with a memory two consecutive segments of it."""
    for number in range(1 + memory):
        segment = {"segment": Segment("train", 0, number)} if memory else {}
        counts = {"ntokens": 24, "nsentences": 3}
        yield {**batch, **counts, "net_input": batch["net_input"] | segment}


@pytest.fixture
def device(monkeypatch):
    """Replaces a GPU by the device meta."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "meta")
    return "meta"


@pytest.mark.parametrize("padding", [False, True], ids=["plain", "padded"])
@pytest.mark.parametrize("arch, flags", CASES, ids=str)
def test_training_step_reads_nothing(arch, flags, padding, device):
    model, criterion = build(arch, **flags).to(device), criterion_of(arch)
    for step in steps_of(batch_of(arch, padding), flags.get("memory", False)):
        sample = utils.move_to_cuda(step)
        with Transfers() as transfers:
            criterion(model, sample)[0].backward()
        assert not transfers.found


@pytest.mark.parametrize(
    "arch", ["linear_roberta_base", "softmax_transformer_rope", "linear_classifier_base"]
)
def test_batches_of_other_programs_are_read(arch, device):
    model = build(arch).to(device)
    inputs = utils.apply_to_sample(lambda x: x.to(device), batch_of(arch, False)["net_input"])
    with pytest.raises(RuntimeError, match="reads from the device"), Transfers():
        model(**inputs)


@pytest.mark.parametrize("padding", [False, True], ids=["plain", "padded"])
@pytest.mark.parametrize("arch, flags", CASES, ids=str)
def test_decisions_from_copies_are_those_from_the_batch(arch, flags, padding):
    """Losses and gradients have the same bits if tokens have copies, as on a GPU."""
    model, criterion = build(arch, **flags), criterion_of(arch)
    batch, found = batch_of(arch, padding), []
    for has_copies in (False, True):
        torch.manual_seed(0)
        one = copy.deepcopy(model)
        for step in steps_of(copy.deepcopy(batch), flags.get("memory", False)):
            if has_copies:
                for tokens in (*step["net_input"].values(), step["target"]):
                    if isinstance(tokens, torch.Tensor) and tokens.dtype == torch.long:
                        host_copies._remember(tokens, tokens.clone())
            loss = criterion(one, step)[0]
            loss.backward()
        found.append([loss, *(p.grad for p in one.parameters() if p.grad is not None)])
    assert all(x.equal(y) for x, y in zip(*found, strict=True))


@pytest.mark.parametrize("padding", [False, True], ids=["plain", "padded"])
def test_layers_have_a_mask_only_with_padding(padding):
    """Without a mask, softmax attention uses torch's flash kernel."""
    model, masks = build("softmax_transformer_rope"), []
    for name, layer in model.named_modules():
        if name.endswith("self_attn"):
            hook = lambda _, args, kwargs: masks.append(kwargs["key_padding_mask"])  # noqa: E731
            layer.register_forward_pre_hook(hook, with_kwargs=True)
    model(**batch_of("softmax_transformer_rope", padding)["net_input"])
    assert len(masks) == 4 and all((mask is not None) == padding for mask in masks)


def test_modified_tensors_have_no_copy(device):
    x = torch.randint(9, (2, 3))
    moved = utils.move_to_cuda({"x": x, "images": x.byte(), "list": [x]})
    assert on_host(moved["x"]) is x and on_host(moved["list"][0]) is x
    assert on_host(moved["images"]) is moved["images"]
    assert on_host(on_both(lambda t: t.eq(3), moved["x"])).equal(x.eq(3))
    assert utils.move_to_cuda(moved)["x"] is moved["x"] and on_host(moved["x"]) is x
    moved["x"][:, 1:].add_(1)
    assert on_host(moved["x"]) is moved["x"]
    with torch.inference_mode():
        moved = utils.move_to_cuda({"x": x})["x"]
    assert on_host(moved) is moved
    assert on_host(x) is x


def test_selected_tokens():
    x, mask = torch.randn(3, 4, 5), torch.rand(3, 4) > 0.6
    expected = x[mask]
    host_copies._remember(mask, mask.clone())
    assert masked_lm.selected(x, mask).equal(expected)


def test_batch_norm_of_known_shapes():
    """The form for GPUs, whose number of tokens is unknown, has the results of that for CPUs."""
    plain = TokenBatchNorm(4).double()
    other, x = copy.deepcopy(plain), torch.randn(7, 3, 4, dtype=torch.double)
    padding = torch.arange(7) >= torch.tensor([7, 4, 1])[:, None]
    found = []
    for norm in (plain, other):
        norm.padding, inputs = padding, x.clone().requires_grad_()
        out = norm(inputs) if norm is plain else norm._normalized_in_place(inputs, ~padding.T[..., None])
        out.square().mul(x).sum().backward()
        found.append([out, inputs.grad, norm.weight.grad, norm.running_mean, norm.running_var])
    for one, expected in zip(*found, strict=True):
        torch.testing.assert_close(one, expected, rtol=0, atol=1e-13)
