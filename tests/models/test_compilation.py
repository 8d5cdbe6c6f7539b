"""``--compile``: graphs, gradients, checkpoints and refused flags of compiled layers."""

import copy
import logging
from argparse import Namespace

import pytest
import torch
import torch.distributed as dist
from fairseq.models import MODEL_DATACLASS_REGISTRY
from support.parameters import slow_after
from support.tiny import SMALL_LM, job_of, output_of, read, run_here, succeeded
from support.tiny_models import EOS, PAD, build_small
from torch._dynamo import config
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from fairseq_lrpe.cli import evaluate, train
from fairseq_lrpe.experiments.execution.launch import train_command
from fairseq_lrpe.experiments.execution.run_files import read_log
from fairseq_lrpe.models import compilation
from fairseq_lrpe.models.compilation import CompiledLayer, check_compilation, compile_layers
from fairseq_lrpe.utils.errors import UserError

FAMILIES = {
    "linear_lm_tmlr_type1": 2,
    "softmax_lm_xl": 2,
    "linear_roberta_tmlr_type1": 2,
    "linear_transformer_tmlr_type1": 4,
    "softmax_transformer_rope": 4,
    "softmax_question_generator_gcdf": 4,
    "linear_classifier_tmlr_type1": 1,
    "linear_vit_tmlr_type1": 1,
}
"""{architecture: number of graphs of its layers}

The inputs of the first layer have another memory layout, and only the last layer of a decoder is asked
for its attention weights.
"""
DROPOUT = ("dropout", "attention_dropout", "activation_dropout", "drop_path")


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    """Replaces Inductor, which takes seconds for each graph, by a backend that only records operations."""
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch._dynamo.reset()
    counters.clear()
    changed = ("recompile_limit", "accumulated_recompile_limit", "optimize_ddp")
    with config.patch({name: getattr(config, name) for name in changed}):  # which restores them
        yield


def batch(arch, length=10, rows=3):
    if "_vit" in arch:
        return {"images": torch.randn(rows, 3, 12, 12, dtype=torch.double)}
    tokens, target = (torch.randint(4, 24, (rows, n)) for n in (length, length - 2))
    target[1, -2:] = PAD
    inputs = {"src_tokens": tokens}
    if "_transformer" in arch or "_question_generator" in arch:
        inputs |= {"src_lengths": tokens.ne(PAD).sum(1), "prev_output_tokens": target}
    if "_lm" not in arch:
        tokens[0, -3:] = PAD
        tokens[2, 4] = EOS
    return inputs


def build(arch, **flags):
    known = MODEL_DATACLASS_REGISTRY[arch].__dataclass_fields__
    return build_small(arch, **{name: 0.0 for name in DROPOUT if name in known} | flags).double()


def gradients(model, inputs):
    model.zero_grad()
    torch.manual_seed(0)
    out = model(**inputs)
    out = out[0] if isinstance(out, tuple) else out
    out.square().mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_equal(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12 * other.abs().max().item())


@pytest.mark.parametrize("arch", slow_after(2, list(FAMILIES)))
def test_layers_of_each_family(arch, monkeypatch):
    """Also the gradients are computed by a graph."""
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    model, inputs = build(arch), batch(arch)
    names, expected = list(model.state_dict()), gradients(model, inputs)
    compile_layers(model, "layers")
    assert_equal(gradients(model, inputs), expected)
    assert_equal(gradients(model, inputs), expected)
    assert counters["stats"]["unique_graphs"] == FAMILIES[arch] and not counters["graph_break"]
    assert list(model.state_dict()) == names


ENCODED = [
    *("linear_lm_per", "linear_lm_xpos", "linear_lm_gla", "linear_lm_tmlr_type3", "linear_lm_roper"),
    *("softmax_lm_per", "softmax_lm_xpos", "softmax_lm_fire", "softmax_lm_path", "softmax_lm_cope"),
    *("linear_roberta_per", "softmax_roberta_fire", "softmax_roberta_deberta", "linear_transformer_per"),
    *("softmax_transformer_fire", "softmax_question_generator_t5", "linear_classifier_per"),
    *("softmax_classifier_shaw", "linear_vit_per", "softmax_vit_rope_mixed"),
]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("arch", ENCODED)
def test_layers_of_encodings(arch):
    """Encodings in all families, also those whose form in eager mode depends on values."""
    decoder = {"mask_decoder": True, "token_positions": "none"} if arch == "softmax_roberta_deberta" else {}
    model = build(arch, **decoder)
    compiled = copy.deepcopy(model)
    compile_layers(compiled, "layers")
    for length in (10, 9):
        inputs = batch(arch, length)
        assert_equal(*(gradients(x, inputs) for x in (compiled, model)))
    assert counters["stats"]["unique_graphs"] and not counters["graph_break"]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("arch, layers, graphs", [("linear_lm_base", 12, 2), ("softmax_lm_lfhc", 9, 9)])
def test_more_than_eight_layers(arch, layers, graphs, caplog):
    """Layers with equal functions share a graph; those of LFHC differ."""
    model, inputs = build(arch, decoder_layers=layers), batch(arch)
    expected = gradients(model, inputs)
    compile_layers(model, "layers")
    with caplog.at_level(logging.WARNING):
        assert_equal(gradients(model, inputs), expected)
    assert counters["stats"]["unique_graphs"] == graphs and not counters["graph_break"]
    assert "recompile_limit" not in caplog.text


@pytest.mark.parametrize("arch", slow_after(1, ["linear_lm_base", "softmax_lm_rope", "softmax_lm_t5"]))
def test_lengths_share_graphs(arch):
    model = build(arch)
    compiled = copy.deepcopy(model)
    compile_layers(compiled, "layers")
    graphs = []
    for length in (10, 9, 12, 8, 14, 7, 16, 11):
        inputs = batch(arch, length, rows=2 + length % 2)
        assert_equal(*(gradients(x, inputs) for x in (compiled, model)))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[3] == graphs[-1] <= compilation.MAX_GRAPHS and not counters["graph_break"]


def test_arguments_of_a_batch_are_not_part_of_the_graph():
    """Random positions differ in each batch."""
    model = build("linear_lm_rope", randomized_positions=48)
    compiled = copy.deepcopy(model)
    compile_layers(compiled, "layers")
    for seed in range(3):
        results = []
        for one in (model, compiled):
            torch.manual_seed(seed)
            results.append(one(**batch("linear_lm_rope"))[0])
        assert_equal(*results)


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_statistics_of_compiled_layers(norm):
    model = build("linear_classifier_base", encoder_norm=norm)
    compiled = copy.deepcopy(model)
    compile_layers(compiled, "layers")
    for length in (10, 9, 12):
        inputs = batch("linear_classifier_base", length)
        assert_equal(*(gradients(x, inputs) for x in (compiled, model)))
    for one, other in zip(compiled.state_dict().values(), model.state_dict().values(), strict=True):
        assert_equal(one.double(), other.double())
    assert not counters["graph_break"]


@pytest.mark.parametrize("flag", slow_after(1, ["checkpoint_activations", "offload_activations"]))
def test_recomputed_activations(flag):
    model, inputs = build("linear_transformer_rope"), batch("linear_transformer_rope")
    recomputing = build("linear_transformer_rope", **{flag: True})
    recomputing.load_state_dict(model.state_dict())
    compile_layers(recomputing, "layers")
    assert_equal(gradients(recomputing, inputs), gradients(model, inputs))
    assert counters["stats"]["unique_graphs"] and not counters["graph_break"]


def test_layers_are_not_split_for_distributed_training(monkeypatch, tmp_path):
    """By default, torch splits a graph so that each part has the parameters of one message of DDP."""
    found = []
    monkeypatch.setattr(compilation, "BACKEND", lambda graph, _: found.append(graph) or graph.forward)
    # A message has at least 1 MiB, and a layer 8.
    model, inputs = build("linear_lm_tmlr_type1", decoder_ffn_embed_dim=2**14), batch("linear_lm_tmlr_type1")
    expected = gradients(model, inputs)
    compile_layers(model, "layers")
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert_equal(gradients(DistributedDataParallel(model, bucket_cap_mb=1), inputs), expected)
    finally:
        dist.destroy_process_group()
    assert len(found) == counters["stats"]["unique_graphs"] == FAMILIES["linear_lm_tmlr_type1"]


def test_dropped_layers():
    model = build("linear_roberta_base", encoder_layers=4, encoder_layerdrop=0.5)
    compile_layers(model, "layers")
    inputs = batch("linear_roberta_base")
    assert len({float(gradients(model, inputs | {}).sum()) for _ in range(2)}) == 1
    assert not counters["graph_break"]


@torch.no_grad()
def test_evaluation_is_not_compiled():
    model = build("linear_lm_base", compile="layers")
    layers = [x for x in model.modules() if isinstance(x, CompiledLayer)]
    inputs = batch("linear_lm_base")
    model.eval()(**inputs)
    assert not any(layer._compiled_call_impl for layer in layers)
    model.train()(**inputs)
    assert all(layer._compiled_call_impl for layer in layers)
    graphs = counters["stats"]["unique_graphs"]
    model.eval()(**batch("linear_lm_base", 7))
    assert counters["stats"]["unique_graphs"] == graphs


def test_failed_compilation_names_the_layer(monkeypatch):
    def fail(graph, inputs):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compilation, "BACKEND", fail)
    model = build("linear_lm_base", compile="layers")
    with pytest.raises(
        UserError, match=r"^--compile layers failed in the layer decoder.layers.0 \(.*omit it$"
    ):
        model(**batch("linear_lm_base"))


@pytest.mark.parametrize("cfg, args, message", [
    ({"compile": "fast"}, {}, "unknown compile mode 'fast'"),
    ({"quant_noise_pq": 0.1}, {}, "does not support --quant-noise-pq"),
    ({"quant_noise_scalar": 0.1}, {}, "does not support --quant-noise-scalar"),
    ({}, {"ddp_backend": "fully_sharded"}, "pass pytorch_ddp or legacy_ddp"),
    ({"encoder_norm": "batch"}, {"distributed_world_size": 2}, "pass --encoder-norm layer"),
])  # fmt: skip
def test_refused_flags(cfg, args, message):
    args = Namespace(**{"ddp_backend": "pytorch_ddp", "distributed_world_size": 1} | args)
    with pytest.raises(UserError, match=message):
        check_compilation(args, Namespace(**{"compile": "layers"} | cfg))


def test_training_equals_that_without_compilation(train, tmp_path):
    """A checkpoint of either training can be continued by the other."""
    flags = ("--max-update", 4, "--dropout", 0)
    succeeded(train("linear_lm_tmlr_type1", tmp_path / "eager", *flags))
    assert not counters["stats"]["unique_graphs"]
    succeeded(train("linear_lm_tmlr_type1", tmp_path / "compiled", *flags, "--compile"))
    assert counters["stats"]["unique_graphs"] and not counters["graph_break"]
    states = [torch.load(tmp_path / name / "checkpoint_last.pt") for name in ("eager", "compiled")]
    for name, weight in states[0]["model"].items():
        torch.testing.assert_close(states[1]["model"][name], weight, rtol=0, atol=1e-5)
    for name, own in {"compiled": (), "eager": ("--compile", "reduce-overhead")}.items():
        more = ("--max-update", 6, "--dropout", 0, *own)
        succeeded(train("linear_lm_tmlr_type1", tmp_path / name, *more))


def test_mode_is_recorded_but_not_part_of_the_run(data_bin):
    plain = job_of("lm/mini", "rope", overrides=[f"data={data_bin}"])
    job = job_of("lm/mini", "rope", overrides=[f"data={data_bin}"], compile="reduce-overhead")
    configured = job_of("lm/mini", "rope", overrides=[f"data={data_bin}", "train.compile=layers"])
    assert job.folder == plain.folder == configured.folder
    for one, mode in ((job, "reduce-overhead"), (configured, "layers")):
        command = train_command(one)
        assert command[command.index("--compile") + 1] == mode
    assert "--compile" not in train_command(plain)
    fairseq = job_of("lm/mini", "fairseq", "softmax", [f"data={data_bin}"], compile="layers")
    with pytest.raises(UserError, match="fairseq's own models cannot be compiled"):
        train_command(fairseq)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_run_compiled_by_inductor(data_bin, tmp_path):
    """fairseq-train is a process of its own, in which the backend is not replaced."""
    overrides = [*SMALL_LM, f"data={data_bin}", "updates=20", "train.dropout=0", "train.warmup_updates=4"]
    overrides += ["train.log_interval=1", "evaluations.test=null"]
    words, folders = ["lm/mini", "tmlr_type1", "--cpu", *overrides, "--results"], []
    for name, own in {"eager": (), "compiled": ("--compile",)}.items():
        output_of(train.main, *words, tmp_path / name, *own)
        folders += [path.parent for path in (tmp_path / name).rglob("run.json")]
    eager, compiled = folders
    assert eager.relative_to(tmp_path / "eager") == compiled.relative_to(tmp_path / "compiled")
    assert [read(folder, "run.json")["compile"] for folder in folders] == [None, "layers"]
    losses = [[x["loss"] for x in read_log(folder) if x["kind"] == "train_inner"] for folder in folders]
    assert len(losses[0]) == 20 and losses[1] == pytest.approx(losses[0], abs=1e-3)
    weights = [torch.load(x / "checkpoints/checkpoint_last.pt")["model"] for x in folders]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=0, atol=1e-5)
    perplexities = [read(folder)["evaluations"]["valid"]["perplexity"] for folder in folders]
    assert perplexities[1] == pytest.approx(perplexities[0], rel=1e-5)
    assert output_of(train.main, *words, tmp_path / "compiled") == f"already finished: {compiled}\n"
    assert run_here(evaluate.main, compiled, 16, "--cpu").returncode == 0
