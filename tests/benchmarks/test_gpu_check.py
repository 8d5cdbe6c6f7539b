"""The GPU check: a small one on a CPU, without fairseq, and with too little time or memory."""

import json
import os
import subprocess
from argparse import Namespace
from contextlib import ExitStack
from unittest.mock import patch

import pytest
import torch
from tiny import BIN, REPOSITORY, run_here

from fairseq_lrpe.benchmarks import attention, exactness, gpu_check, gpu_runs, machine
from fairseq_lrpe.benchmarks.attention import IMPLEMENTATIONS, Implementation
from fairseq_lrpe.benchmarks.gpu_report import Deadline, Part
from fairseq_lrpe.benchmarks.shared import format_cell
from fairseq_lrpe.ops.linear_attention import BACKENDS

SMALL = {
    attention: {"TOKENS": 64},
    machine: {"COPY_BYTES": 2**20, "MATRIX_SIZE": 64},
    exactness: {"LENGTHS": (5,)},
    gpu_check: {
        "TESTS": "tests/ops/test_feature_maps.py",
        "LAYER_LENGTHS": [16],
        "CPU_SIZES": {"layers": 1, "vocab_size": 100, "batch_size": 1},
        "MODELS": [("linear", "rope"), ("softmax", "fairseq")],
        "TRAINING_ROUNDS": 1,
        "WARM_UP": 1,
        "PREFIXES": [4, 8],
        "DECODING_ROUNDS": 1,
    },
}
RUNS = {"CPU_RUNS": 1, "CPU_OVERRIDES": ["updates=2"]}
HIDDEN = ("fairseq", "rich", "matplotlib", "omegaconf", "hydra")


@pytest.fixture
def small():
    with ExitStack() as stack:
        for module, values in SMALL.items():
            stack.enter_context(patch.multiple(module, **values))
        stack.enter_context(patch.multiple(gpu_runs, **RUNS))
        yield


def read(folder):
    """Returns the Markdown, the JSON, and {heading: part} of a report."""
    text, content = (folder / "gpu_check.md").read_text(), json.loads((folder / "gpu_check.json").read_text())
    return text, content, {part["heading"]: part for part in content["parts"]}


def rows(part, table=-1):
    return part["tables"][table]["rows"]


def remarks(part):
    return " ".join(part.remarks if isinstance(part, Part) else part["remarks"])


def test_the_command(small, tmp_path):
    done = run_here(gpu_check.main, "--minutes", 60, "--lengths", 64, 32, "--out", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "gpu_check: attention, 64 tokens" in done.stdout
    text, content, parts = read(tmp_path / "new")
    title, first = text.split("\n\n")[:2]
    assert title == "# GPU check, measured on a CPU" and "says nothing about GPUs" in first
    without_data = ["Small language models", "Long-Range Arena"]
    assert content["missing"] == without_data and not content["complete"]
    assert list(parts) == [heading for heading, *_ in gpu_check.PARTS]
    for sentence in ("failed:", "ut of time", "exit code"):
        assert sentence not in text

    assert all(row["rate"] > 0 for row in rows(parts["Machine"]))
    [tests] = rows(parts["Tests"])
    assert tests["passed"] and (tests["failed"], tests["errors"], tests["skipped"]) == (0, 0, 0)
    assert len(rows(parts["Exactness"], 0)) == 12
    assert "12 of 12 comparisons of linear attention are within their bound" in remarks(parts["Exactness"])
    encodings = rows(parts["Exactness"], 1)
    assert {row["encoding"] for row in encodings} == set(exactness.ENCODINGS)
    assert {"defaults", "values", "core = unitary, rotation = fft"} <= {row["options"] for row in encodings}
    assert all(row["error"] <= row["bound"] for row in encodings)
    named = [(row["length × batch"], row["attention"]) for row in rows(parts["Attention"])]
    contenders = "linear, chunk form", "linear, masked n × n", "softmax"
    assert named == [(length, name) for length in ("32 × 2", "64 × 1") for name in contenders]
    assert "kernels of flash-linear-attention (fla) are skipped: they need a" in remarks(parts["Attention"])
    layers = [(row["attention"], row["method"], row["precision"]) for row in rows(parts["Layers"])]
    assert layers == [(*name, "float32") for name in gpu_check.LAYERS]
    models = {row["model"]: row["tokens/s"] for row in rows(parts["Training"])}
    assert list(models) == ["linear_lm_rope", "transformer_lm"] and min(models.values()) > 0
    assert [row["tokens before"] for row in rows(parts["Decoding"])] == [4, 8]
    [run] = rows(parts["RoPER"])
    assert (
        run["run"].startswith("roper/addition_mini/softmax_rope/")
        and run["loss"] > 0
        and run["accuracy"] >= 0
    )
    for heading in without_data:
        assert "`bash data_prep/prepare.sh" in remarks(parts[heading])

    # A second call repeats only the machine and the missing parts.
    patched = [
        part if part[0] in ("Machine", *without_data) else (part[0], None, 1) for part in gpu_check.PARTS
    ]
    with patch.object(gpu_check, "PARTS", patched):
        done = run_here(gpu_check.main, "--minutes", 60, "--out", tmp_path / "new")
    assert "call it again" in done.stdout and "gpu_check: tests" not in done.stdout
    _, _, again = read(tmp_path / "new")
    assert list(again) == list(parts) and again["Attention"] == parts["Attention"]


def test_it_needs_only_torch(tmp_path):
    """With other packages hidden, only trainings are skipped."""
    program = f"""
import sys

class Hidden:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {HIDDEN}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden)
from fairseq_lrpe.benchmarks import attention, exactness, gpu_check, machine

for module, values in zip((attention, machine, exactness, gpu_check), {[*SMALL.values()]}):
    vars(module).update(values)
sys.argv = ["gpu_check", "--minutes", "60", "--lengths", "32", "--out", {str(tmp_path)!r}]
gpu_check.main()
"""
    done = subprocess.run([BIN / "python", "-c", program], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    text, content, parts = read(tmp_path)
    runs = ["RoPER", "Small language models", "Long-Range Arena"]
    assert content["missing"] == ["Training", *runs] and "failed:" not in text
    assert "Training is skipped: it requires fairseq" in remarks(parts.pop("Training"))
    for heading in runs:
        assert "The runs are skipped: they require fairseq" in remarks(parts.pop(heading))
    assert all(rows(part) for part in parts.values())


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("exit 1", "has no torch"),
        ("exit 2", "is older than 3.11"),
        ("exit 127", "does not run"),
        (f'exec {BIN}/python "$@"', "argument --minutes: must be"),
    ],
)
def test_the_script_uses_the_active_environment(tmp_path, python, sentence):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text(f"#!/bin/sh\n{python}\n")
    (tmp_path / "bin/python").chmod(0o755)
    command = ["bash", REPOSITORY / "scripts/gpu_check.sh", "--minutes", "0"]
    environment = {"VIRTUAL_ENV": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode and sentence in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_an_interrupted_run_keeps_its_results(tmp_path):
    def measure(part, deadline, check):
        part.table("Numbers").append({"number": 1234, "part, ms": 0.5})

    def interrupted(part, deadline, check):
        part.remark("This came before.")
        raise KeyboardInterrupt

    def failing(part, deadline, check):
        raise RuntimeError("no kernel image\nand more")

    parts = [("One", measure, 1), ("Two", failing, 1), ("Three", interrupted, None), ("Four", measure, None)]
    with patch.object(gpu_check, "PARTS", parts):
        done = run_here(gpu_check.main, "--out", tmp_path)
    assert done.returncode == 1 and "interrupted" in done.stderr
    text, content, _ = read(tmp_path)
    assert not content["complete"] and content["missing"] == ["Two", "Three", "Four"]
    assert "**Incomplete. Missing parts: Two, Three, Four. The same command continues with them.**" in text
    assert "| 1,234 | 0.5 |" in text and "This came before." in text
    assert "This part failed: RuntimeError: no kernel image." in text

    parts = [("One", failing, 1), *((heading, measure, None) for heading in ("Two", "Three", "Four"))]
    with patch.object(gpu_check, "PARTS", parts):
        assert run_here(gpu_check.main, "--out", tmp_path).returncode == 0
    text, content, _ = read(tmp_path)
    assert content["complete"] and "failed" not in text and text.count("| 1,234 | 0.5 |") == 4
    for damage, message in (
        ('{"title": "GPU check of X", "parts": []}', "has another report, 'GPU check of X': choose another"),
        ('{"title": "GPU check of X"}', "gpu_check.json is damaged: remove it"),
        ("{", "gpu_check.json is damaged: remove it"),
    ):
        (tmp_path / "gpu_check.json").write_text(damage)
        done = run_here(gpu_check.main, "--out", tmp_path)
        assert done.returncode and message in done.stderr and "Traceback" not in done.stderr


def test_measurements_are_skipped_when_out_of_time(small):
    check, part = gpu_check.Check([64, 128], None), Part("Attention")
    gpu_check.measure_attention(part, Deadline(0), check)
    assert "Lengths from 64 on are skipped: out of time." in part.remarks and not part.complete
    part = Part("Attention")
    with patch.object(gpu_check, "operations", lambda name, length: 10 ** (length // 8)):
        gpu_check.measure_attention(part, Deadline(3600), check)
    assert [row["length × batch"] for row in part.tables[-1].rows] == ["64 × 1"] * 3
    assert "From 128 tokens on softmax is skipped: its steps would exceed" in remarks(part)
    assert not part.complete
    part = Part("Layers")
    gpu_check.measure_layers(part, Deadline(0), check)
    assert part.remarks == ["Out of time: 1 of 1 lengths and precisions are skipped."] and not part.complete

    part = Part("Exactness")
    gpu_check.run_cases([], [dict, dict], Deadline(0), part, "nothing")
    assert "Out of time: 2 of 2 comparisons of nothing are skipped." in part.remarks
    assert list(Deadline(0).rounds(7, 3)) == [0, 1, 2] and list(Deadline(9).rounds(4, 3)) == [0, 1, 2, 3]


def test_tests_are_counted_and_failures_named(tmp_path):
    lines = (  # one that passes, fails, is skipped; and one that does not end
        "import pathlib, pytest, time",
        "def test_good(): pass",
        "@pytest.mark.parametrize('x', ['a b'])",
        "def test_bad(x): assert x == 'c'",
        "def test_other(): pytest.importorskip('nothing_of_this_name')",
        f"def test_slow(): pathlib.Path({str(tmp_path / 'begun')!r}).touch(); time.sleep(10_000)",
    )
    part, counted = Part("Tests"), ("passed", "failed", "errors", "skipped")
    (tmp_path / "test_some.py").write_text("\n".join(lines[:-1]))
    with patch.object(gpu_check, "TESTS", str(tmp_path)):
        gpu_check.measure_tests(part, Deadline(3600), None)
        assert [part.tables[0].rows[0][name] for name in counted] == [1, 1, 0, 1]
        assert "test_some.py::test_bad[a b]` AssertionError: assert 'a b' == 'c'" in remarks(part)

        (tmp_path / "test_some.py").write_text("\n".join(lines))
        for limit in (5, 40, 160):  # until the tests before the slow one have run
            part = Part("Tests")
            gpu_check.measure_tests(part, Deadline(limit), None)
            assert f"The tests were stopped after {limit} seconds" in remarks(part)
            if (tmp_path / "begun").exists():
                break
        assert [part.tables[0].rows[0][name] for name in counted] == [1, 1, 0, 1]

        (tmp_path / "test_some.py").write_text("import nothing_of_this_name")
        gpu_check.measure_tests(part, Deadline(3600), None)
        assert "pytest ended with exit code 2" in remarks(part)
    with patch.object(gpu_check, "find_spec", lambda name: None):
        gpu_check.measure_tests(part, Deadline(3600), None)
    assert "The tests are skipped: pytest and hypothesis must be installed." in part.remarks


def test_floors():
    """8 heads of 64 on 4,096 tokens: 11·4096·512 numbers, 14·4096·64²·8 or 7·4096²·64·8 operations."""
    roofs = {"copy": 1e9, torch.float32: 1e12}
    linear = gpu_check.attention_row("chunk", 4096, [0.3, 0.2, 0.4], 1.0, None, roofs)
    assert linear["traffic floor, ms"] == pytest.approx(11 * 4096 * 512 * 4 / 1e6)
    assert linear["arithmetic floor, ms"] == pytest.approx(14 * 4096 * 64**2 * 8 / 1e9)
    assert linear["median, ms"] == pytest.approx(300)
    softmax = gpu_check.attention_row("softmax", 2048, [0.3], 1.0, 2**20, roofs)
    assert softmax["traffic floor, ms"] == linear["traffic floor, ms"]  # of two sequences
    assert softmax["arithmetic floor, ms"] == pytest.approx(2 * 7 * 2048**2 * 64 * 8 / 1e9)
    assert softmax["median / greater floor"] == pytest.approx(300 / softmax["traffic floor, ms"])
    masked = gpu_check.attention_row("masked n × n", 4096, [0.3], 1.0, None, roofs)
    assert masked["arithmetic floor, ms"] == pytest.approx(14 * 4096**2 * 64 * 8 / 1e9)
    without = gpu_check.attention_row("chunk", 4096, [0.3], 1.0, None, {})
    assert without["traffic floor, ms"] is without["median / greater floor"] is None


def test_wrong_numbers_are_detected():
    exact = torch.tensor([1.0, -4.0], dtype=torch.float64)
    assert exactness.relative_error(torch.tensor([1.0, -3.0]), exact) == 0.25
    part, nan = Part("Exactness"), exactness.relative_error(torch.tensor([1.0, torch.nan]), exact)
    errors = (0.1, exactness.largest([0.1, nan]), 0.3)
    gpu_check.count_errors(part, [{"error": error, "bound": 0.2} for error in errors], "of these")
    assert part.remarks == ["1 of 3 comparisons of these are within their bound."]
    with patch.object(exactness, "relative_error", lambda ours, exact: float(ours.shape == exact.shape)):
        assert (
            exactness.linear_attention_cases("chunk", torch.float32, "cpu")[0]()["error of the output"] == 1
        )


def test_a_column_without_values_is_hidden():
    part = Part("One")
    part.table().extend([{"name": "a|b", "ms": 1234.5, "MiB": None}, {"name": "c", "ms": None, "MiB": None}])
    assert part.markdown() == "## One\n\n| name | ms |\n| :-- | --: |\n| a\\|b | 1,234 |\n| c | - |"


def test_format_cell():
    values = (None, 12345, 12345.6, 99.96, 0.012345, 0.00012345, 0.0, float("nan"), "text")
    assert " ".join(map(format_cell, values)) == "- 12,345 12,346 100 0.0123 1.2e-04 0 nan text"


@pytest.fixture
def fake_gpu():
    """The CPU pretends to be a GPU of compute capability 7.5."""
    properties = Namespace(name="Toy GPU", total_memory=2**34, multi_processor_count=40)
    cuda = {
        "get_device_properties": lambda device: properties,
        "get_device_name": lambda: "Toy GPU",
        "get_device_capability": lambda: (7, 5),
        "get_arch_list": lambda: ["sm_75", "sm_80"],
        "device_count": lambda: 2,
        "mem_get_info": lambda: (2**34, 2**34),
        "memory_allocated": lambda: 2**30,
        "max_memory_allocated": lambda: 3 * 2**30,
        "reset_peak_memory_stats": lambda: None,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
    }
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(torch.cuda, **cuda))
        stack.enter_context(patch.object(machine, "ON_GPU", True))
        yield


def test_machine_with_a_gpu(small, fake_gpu):
    report, part, check = gpu_check.new_report(8), Part("Machine"), gpu_check.Check([64], None)
    assert report.title == "GPU check of Toy GPU" and "CPU" not in report.introduction
    gpu_check.measure_machine(part, Deadline(3600), check)
    facts = {row["what"]: row["value"] for row in part.tables[0].rows}
    assert facts["GPU"] == "Toy GPU, the first of 2 visible"
    assert (facts["compute capability"], facts["CUDA architectures"]) == ("7.5", "sm_75, sm_80")
    assert list(check.peak_rates) == ["copy", torch.float32, torch.float16]
    with (
        patch("torch.cuda.get_device_capability", lambda: (9, 0)),
        patch.object(machine, "product_rate", lambda dtype: 1.0),  # a CPU may not have bfloat16
    ):
        found = [(what, roof) for what, roof, _ in machine.measure_peak_rates()]
    assert found[-1] == ("product of 64 × 64 matrices, float32, precision 'high' (TF32)", torch.float32)
    assert found[-2][1] is torch.bfloat16 and torch.get_float32_matmul_precision() == "highest"


def test_attention_on_a_gpu(small, fake_gpu):
    """Implementations that run out of memory or fail are skipped; float16 has its own floors."""
    chunk, softmax = IMPLEMENTATIONS["chunk"].compute, IMPLEMENTATIONS["softmax"].compute

    def too_large(q, k, v):
        if q.size(2) > 64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return chunk(q, k, v)

    def failing(q, k, v):
        raise RuntimeError("No available kernel. Aborting execution.")

    more = {
        "auto": Implementation(too_large),
        "fla": Implementation(failing),
        "softmax float16": Implementation(softmax, torch.float16),
    }
    part, roofs = Part("Attention"), {"copy": 1e9, torch.float32: 1e12, torch.float16: 4e12}
    with (
        patch.dict(IMPLEMENTATIONS, more),
        patch.object(gpu_check, "fla_missing_requirement", lambda device: None),
        patch.multiple(gpu_check, HEADS=1, WIDTH=16),
    ):
        gpu_check.measure_attention(part, Deadline(3600), gpu_check.Check([64, 128], None, roofs))
    fla = "linear, fla's kernels by linear_attention"
    assert part.remarks == [
        "From 64 tokens on linear, fla's own function is skipped: RuntimeError: No available kernel. "
        "Aborting execution.",
        f"From 128 tokens on {fla} is skipped: out of memory.",
    ]
    rows = part.tables[0].rows
    names = ["linear, chunk form", fla, "linear, masked n × n", "softmax", "softmax, float16, flash"]
    assert [row["attention"] for row in rows] == names + [name for name in names if name != fla]
    assert all(row["memory, MiB"] is not None for row in rows)
    for what, times in (("traffic floor, ms", 2), ("arithmetic floor, ms", 4)):
        assert rows[-2][what] == pytest.approx(times * rows[-1][what])


def test_exactness_on_a_gpu():
    """The definition replaces fla's kernels."""
    with patch.dict(BACKENDS, fla=BACKENDS["reference"]), patch.object(exactness, "LENGTHS", (5, 70)):
        found = [case() for case in exactness.linear_attention_cases("fla", torch.float32, "cpu")]
    assert [(row["length"], row["log_decay"]) for row in found[::3]] == [(5, "no"), (5, "yes"), (70, "no")]
    for row in found:
        assert 0 < row["error of the gradients"] < 1e-5 and row["bound"] == 1e-4


def case_environment():
    return {"default": os.environ.get("TRITON_F32_DEFAULT")}


def test_float32_is_compared_without_tf32(monkeypatch):
    monkeypatch.delenv("TRITON_F32_DEFAULT", raising=False)
    assert gpu_check.in_ieee_process(case_environment) == {"default": "ieee"}
    assert "TRITON_F32_DEFAULT" not in os.environ


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_within_its_bound(dtype):
    """The chunk form computes in float32 and rounds the gradients."""
    for case in exactness.linear_attention_cases("chunk", dtype, "cpu"):
        row = case()
        errors = row["error of the output"], row["error of the gradients"]
        assert all(0 < error < row["bound"] for error in errors), row


def test_selected_runs(fake_gpu, tmp_path):
    """The runs on a GPU have the published sizes, and one seed each."""
    jobs = gpu_runs.Selection(**gpu_check.ROPER).jobs(tmp_path)
    assert {str(run) for run in jobs} == {
        f"roper/{problem}/softmax_{method}/seed-1"
        for problem in ("addition", "index")
        for method in ("rope", "roper")
    }
    small = gpu_runs.Selection("iclr_table2", "small").jobs(tmp_path)
    assert {run.experiment for run in small} == {"lm/small"} and len(small) == 12 + 14
    arena = gpu_runs.Selection("tmlr_table4").jobs(tmp_path)
    order = list(dict.fromkeys(run.experiment for run, _ in gpu_runs.shortest_first(arena)))
    tasks = ("text", "listops", "retrieval", "pathfinder", "image")
    assert len(arena) == 5 * 6 and set(order) == {f"lra/{task}" for task in tasks}
    assert order[-1] == "lra/image"  # 12 layers and 90,000 updates


def test_runs_stop_at_the_deadline_and_failures_are_named(small, tmp_path, monkeypatch):
    selection = gpu_runs.Selection("roper")
    part = Part("RoPER")
    gpu_runs.measure_runs(part, Deadline(0), tmp_path, selection)
    assert part.remarks == ["0 of 1 runs are finished."] and not part.complete
    part = Part("RoPER")
    gpu_runs.measure_runs(part, Deadline(3), tmp_path, selection)  # a program needs longer to start
    assert part.remarks == ["0 of 1 runs are finished."] and not part.complete
    monkeypatch.setattr(gpu_runs, "train_arguments", lambda job: ["nosuch", "rope"])
    part = Part("RoPER")
    gpu_runs.measure_runs(part, Deadline(3600), tmp_path, selection)
    assert "failed: train: unknown experiment 'nosuch'" in remarks(part)
    assert part.remarks[-1] == "0 of 1 runs are finished." and not part.complete


@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
def test_training_halves_the_batch_until_it_fits(small, fake_gpu, capability):
    from fairseq_lrpe.benchmarks import speed

    calls = []

    def training_step(arch, args, **flags):
        calls.append((args.batch_size, args.layers, args.vocab_size, flags))
        if args.batch_size > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if arch == "transformer_lm":
            raise RuntimeError("this one fails")
        updates = iter([1, 2, 2, 3, 4, 5])  # the third step overflows
        return lambda: next(updates)

    part = Part("Training")
    with (
        patch.object(speed, "training_step", training_step),
        patch("torch.cuda.get_device_capability", lambda: capability),
    ):
        gpu_check.measure_training(part, Deadline(3600), None)
    precisions = ["fp16", "bf16"] if capability >= (8, 0) else ["fp16"]
    found = [(row["model"], row["precision"], row["tokens a step"]) for row in part.tables[0].rows]
    assert found == [("linear_lm_rope", precision, "4 × 512") for precision in precisions]
    assert part.tables[0].rows[0]["memory, GiB"] == 2
    assert calls[0][:3] == (8, 6, 267744) and calls[0][3]["fp16"] is True
    assert calls[0][3]["share_decoder_input_output_embed"] is True and calls[0][3]["adam_eps"] == 1e-8
    assert "fp16: out of memory with 8 sequences per step." in part.remarks
    assert "fp16: transformer_lm is skipped: RuntimeError: this one fails." in part.remarks
    assert ("bf16 is skipped: it requires compute capability 8.0." in part.remarks) is (capability < (8, 0))
