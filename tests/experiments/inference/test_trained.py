"""Models that load_model returns, and the commands that use them, for each family."""

import json
import subprocess

import pytest
import torch
from support.documents import block
from support.tiny import BIN, PLUGIN, run_command

import fairseq_lrpe
from fairseq_lrpe.attention import SelfAttention
from fairseq_lrpe.attention.weights import attention_weights, relative_weights
from fairseq_lrpe.data import text_codec
from fairseq_lrpe.data.corpora import CORPORA, data_folder
from fairseq_lrpe.encodings import Context
from fairseq_lrpe.experiments.execution.evaluators.hypotheses import parse_hypotheses
from fairseq_lrpe.experiments.inference.attention import BLOCKS, trained_weights
from fairseq_lrpe.ops.position_index import random_position_index
from fairseq_lrpe.ops.rope_scaling import RopeScaling
from fairseq_lrpe.utils.files import PREPARE, REPOSITORY

TEXT = "w1 w3 w9 w28"


def sample(*words, text=None):
    return run_command("python", "-m", "fairseq_lrpe", "generate", *words, "--cpu", text=text)


@pytest.fixture(scope="module")
def language_model(train, tmp_path_factory):
    """A checkpoint of a language model of words, on single lines."""
    folder = tmp_path_factory.mktemp("lm")
    flags = ["--max-update", 40, "--no-epoch-checkpoints", "--sample-break-mode", "eos"]
    assert train("linear_lm_tmlr_type1", folder, *flags).returncode == 0
    return folder / "checkpoint_last.pt"


LOAD_MODEL = """
import logging, os, signal, sys, warnings
import torch

def state():
    loggers = [(x.level, list(x.handlers)) for x in (logging.root, logging.getLogger("PIL"))]
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    level = logging.root.manager.disable
    settings = torch.get_default_dtype(), torch.get_num_threads(), sys.excepthook, level
    of_others = dict(os.environ), list(sys.path), list(map(str, warnings.filters))
    return [float(torch.tensor(1e-40) * 1), loggers, handlers, settings], of_others

before = state()
import fairseq_lrpe, fairseq_lrpe.models
imported = state()
assert imported[0] == before[0], (imported[0], before[0])
fairseq_lrpe.load_model(sys.argv[1], cpu=True).sample(length=3, seed=1)
assert state() == imported, (state(), imported)
"""


def test_import_and_load_model_do_not_change_the_process(language_model):
    """Importing fairseq and scipy changes environment variables and warnings."""
    command = [BIN / "python", "-c", LOAD_MODEL, language_model]
    done = subprocess.run(command, cwd=PLUGIN.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program, flushes", [("bin/fairseq-train", True), ("own/train.py", False)])
def test_denormals_are_flushed_in_commands_of_fairseq(program, flushes):
    code = f"import sys, torch; sys.argv = [{program!r}]; import fairseq_lrpe.models; "
    done = run_command("python", "-c", code + "sys.exit(int(float(torch.tensor(1e-40) * 1) == 0))")
    assert done.returncode == flushes, done.stderr


def test_sampled_text(language_model):
    model = fairseq_lrpe.load_model(language_model, cpu=True)
    options = {"length": 30, "temperature": 0.7, "top_k": 9, "top_p": 0.95, "seed": 3}
    text = model.sample(TEXT, **options)
    assert text.startswith(" w") and text == "".join(model.stream(TEXT, **options)) and "\n" not in text
    assert text != model.sample(TEXT, **{**options, "seed": 4})
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(model.sample(TEXT, 30))
    assert drawn[0] == drawn[1] != drawn[2]
    words = "--length 30 --temperature 0.7 --top-k 9 --top-p 0.95 --seed 3".split()
    done = sample(language_model, *words, text=f"{TEXT}\nw2\n")
    assert done.stdout == f"{TEXT}{text}\n\nw2{model.sample('w2', **options)}\n"


def test_scaled_rotations(language_model, checkpoint):
    """Decoding has the scaled angles; dynamic scaling ends at the length in training."""
    model = fairseq_lrpe.load_model(language_model, cpu=True, rope_scaling="yarn:2")
    length = model.task.args.tokens_per_sample
    encodings = [x.encoding for x in model.model.modules() if isinstance(x, SelfAttention)]
    assert {x.rope_scaling for x in encodings} == {RopeScaling("yarn", 2, length)}
    tokens = model.encode(TEXT)[None]
    with torch.no_grad():
        whole, steps, state = model.model(tokens)[0], [], {}
        for i in range(tokens.size(1)):
            steps.append(model.model(tokens[:, : i + 1], incremental_state=state)[0][:, -1])
        torch.testing.assert_close(torch.stack(steps, dim=1), whole, rtol=1e-3, atol=1e-4)
        plain = fairseq_lrpe.load_model(language_model, cpu=True).model(tokens)[0]
        assert (plain - whole).abs().max() > 1e-3
    model = fairseq_lrpe.load_model(language_model, cpu=True, rope_scaling="dynamic")
    tokens, state = tokens.repeat(1, length)[:, : length + 1], {}
    with torch.no_grad():
        for i in range(1, length + 1):
            model.model(tokens[:, :i], incremental_state=state)
        with pytest.raises(ValueError, match=f"cached keys do not have after {length} positions: use ntk"):
            model.model(tokens, incremental_state=state)
    with pytest.raises(ValueError, match="the model has no encoding: for rope scaling, use one of "):
        fairseq_lrpe.load_model(checkpoint, cpu=True, rope_scaling="ntk:2")


@pytest.mark.parametrize("arch, flags", [
    ("softmax_lm_cope", []),
    ("linear_lm_alibi", ["--randomized-positions", 64]),
])  # fmt: skip
def test_attention_weights(arch, flags, train, tmp_path):
    """They are those of the queries and keys that the inputs of each layer give."""
    assert train(arch, tmp_path, "--max-update", 5, "--no-epoch-checkpoints", *flags).returncode == 0
    found = trained_weights(tmp_path / "checkpoint_last.pt")
    model, weights = fairseq_lrpe.load_model(tmp_path / "checkpoint_last.pt", cpu=True), []

    def record(module, inputs, keywords):
        x = keywords["query"].transpose(0, 1)
        parts = [p(x).unflatten(-1, (module.num_heads, -1)) for p in (module.q_proj, module.k_proj)]
        positions = random_position_index(x.size(1), 64, x.device, fixed=True) if flags else 0
        context = Context(positions, positions)
        weights.append(attention_weights(module, *(part.transpose(1, 2) for part in parts), context))

    for module in model.model.modules():
        if isinstance(module, SelfAttention):
            module.register_forward_pre_hook(record, with_kwargs=True)
    model.task.load_dataset("test")
    with torch.no_grad():
        model.model(torch.stack([model.task.dataset("test")[i]["source"] for i in range(BLOCKS)]))
    assert len(found) == 32 and len(weights) == 2
    torch.testing.assert_close(found, relative_weights(torch.stack(weights)))


def test_translations_are_those_of_fairseq_generate(translating, corpus):
    run, _ = translating
    model = fairseq_lrpe.load_model(run, cpu=True)
    lines = (corpus / "text/test.en").read_text().splitlines()
    translated = model.translate(["", *lines], beam=2)
    done = sample(run, "--beam", 2, text="\n".join(["", *lines]) + "\n")
    assert done.stdout.splitlines() == translated and not translated[0]
    codec = text_codec.load(corpus / "bin")
    log = parse_hypotheses((run / "eval-test.log").read_text())["H"]
    assert translated[1:] == [codec.decode("de", log[i]) for i in range(20)]
    with pytest.raises(ValueError, match=r"line 2 has .* tokens, more than the 1024 that the model accepts"):
        model.translate(["A dog", "dog " * 2000])


@pytest.fixture(scope="module")
def run_folder(language_model, data_bin, tmp_path_factory):
    """A run's folder, whose checkpoint_best.pt is a copy of the language model."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/checkpoint_best.pt").write_bytes(language_model.read_bytes())
    config = {"evaluate": {"checkpoint": "checkpoint_best.pt"}}
    (folder / "run.json").write_text(json.dumps({"kind": "lm", "config": config}))
    return folder


def test_run_folder(run_folder, language_model, tmp_path):
    paths = run_folder, str(language_model)
    texts = {fairseq_lrpe.load_model(path, cpu=True).sample("w1", 9, seed=1) for path in paths}
    assert len(texts) == 1
    chosen = {"checkpoint": "checkpoints/other.pt", "chosen": "x"}  # of a run that chose among trials
    (run_folder / "evaluation.json").write_text(json.dumps(chosen))
    with pytest.raises(ValueError, match=r"checkpoints/other\.pt does not exist: train it with `lrpe train`"):
        fairseq_lrpe.load_model(run_folder)
    (run_folder / "evaluation.json").unlink()


def test_other_data(language_model, data_bin, tmp_path):
    """The data folder may have been moved, but a dictionary of another size is an error."""
    (tmp_path / "moved").symlink_to(data_bin)
    moved = fairseq_lrpe.load_model(language_model, data=tmp_path / "moved", cpu=True)
    assert moved.data == tmp_path / "moved" and moved.sample("w1", 5, seed=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/dict.txt").write_text("w1 1\nw2 1\n")
    with pytest.raises(ValueError, match="pass the flags and data that it was trained with"):
        fairseq_lrpe.load_model(language_model, data=tmp_path / "other", cpu=True)


def test_the_remedy_for_missing_data_works_in_commands_too(language_model, tmp_path):
    """`lrpe generate`, for example, cannot pass another folder."""
    with pytest.raises(ValueError, match=r"gone of .* does not exist: restore it$"):
        fairseq_lrpe.load_model(language_model, data=tmp_path / "gone", cpu=True)
    missing = next(x for x in CORPORA if not (REPOSITORY / data_folder(x)).exists())
    folder = REPOSITORY / data_folder(missing)
    with pytest.raises(
        ValueError, match=rf"does not exist: restore it, or run `{PREPARE} {missing}.*` again$"
    ):
        fairseq_lrpe.load_model(language_model, data=folder, cpu=True)


def test_example_of_the_documentation(run_folder, capsys):
    example = block("python", "model.stream(")
    folder = "results/lm/mini/linear_rope/seed-1"
    assert folder in example
    names = {}
    exec(example.replace(folder, str(run_folder)), names)
    streamed = names["model"].sample("The city", length=50, seed=1)
    assert names["text"].strip() and capsys.readouterr().out.startswith(f"{streamed}<fairseq")
