"""No command runs code in a checkpoint's settings."""

import argparse
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from fairseq.models.roberta import RobertaModel as FairseqRobertaModel
from support import commands
from support.commands import EVALUATIONS, evaluation_flags, sizes
from support.tiny import PLUGIN, run_command, run_here

from fairseq_lrpe.cli import classify
from fairseq_lrpe.experiments.inference import evaluate_synthetic
from fairseq_lrpe.fairseq_ext.safe_eval import literal
from fairseq_lrpe.models import RobertaModel

LM = ("linear_lm_base", "transformer_lm")
ROBERTA = ("softmax_roberta_base", "roberta")
TINY_ROBERTA = "--task masked_lm --criterion masked_lm --tokens-per-sample 32".split() + sizes("encoder")


@pytest.fixture(scope="module")
def checkpoints(train, data_bin, tmp_path_factory):
    """{architecture: a checkpoint} of our models and fairseq's."""
    folder, found = tmp_path_factory.mktemp("checkpoints"), {}
    for arch in (*LM, *ROBERTA):
        one = ["--max-update", 1, "--disable-validation"]
        if arch in LM:
            done = train(arch, folder / arch, *one)
        else:
            done = commands.train(data_bin, arch, folder / arch, *TINY_ROBERTA, *one)
        assert done.returncode == 0, done.stderr
        found[arch] = folder / arch / "checkpoint_last.pt"
    return found


def changed(checkpoint, folder, **settings):
    """A copy of a checkpoint with other settings of its model."""
    state = torch.load(checkpoint, weights_only=True)
    model = state["cfg"]["model"]
    (vars(model) if isinstance(model, argparse.Namespace) else model).update(settings)
    torch.save(state, folder / "changed.pt")
    return folder / "changed.pt"


@pytest.fixture
def mark(tmp_path):
    """The file that the code would write."""
    return tmp_path / "mark"


@pytest.fixture
def code(mark):
    return f"__import__('pathlib').Path({str(mark)!r}).write_text('')"


def assert_rejected(done, mark, program="fairseq_lrpe"):
    assert done.returncode == 1 and not mark.exists()
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"{program}: the setting \"__import__('pathlib')") and last.endswith("executed")


@pytest.mark.parametrize(
    "command, arch",
    [*((name, "transformer_lm") for name in EVALUATIONS), ("fairseq-eval-lm", "linear_lm_base")],
)
def test_commands(command, arch, checkpoints, data_bin, code, mark, tmp_path):
    hostile = changed(checkpoints[arch], tmp_path, adaptive_softmax_cutoff=code)
    assert_rejected(run_here(EVALUATIONS[command], *evaluation_flags(command, data_bin, hostile)), mark)


def test_new_process(checkpoints, data_bin, code, mark, tmp_path):
    hostile = changed(checkpoints["transformer_lm"], tmp_path, adaptive_softmax_cutoff=code)
    words = [*evaluation_flags("fairseq-eval-lm", data_bin, hostile), "--user-dir", PLUGIN]
    assert_rejected(run_command("fairseq-eval-lm", *words), mark)
    words = evaluation_flags("fairseq-eval-lm", data_bin, checkpoints["transformer_lm"])
    words += ["--user-dir", PLUGIN, "--model-overrides", code]
    assert_rejected(run_command("fairseq-eval-lm", *words), mark)


@pytest.mark.parametrize(
    ("main", "task", "program"),
    [
        (classify.main, "sentence_prediction", "classify"),
        (evaluate_synthetic.main, "synthetic_lm", "evaluate-synthetic"),
    ],
)
def test_our_programs(main, task, program, checkpoints, data_bin, code, mark, tmp_path):
    settings = {"character_embeddings": True, "character_filters": code}
    hostile = changed(checkpoints["transformer_lm"], tmp_path, **settings)
    state = torch.load(hostile, weights_only=True)
    state["cfg"]["task"] = {"_name": task, "data": "", "num_classes": 2, "regression_target": False}
    torch.save(state, hostile)
    for column in ("input0", "label"):
        (tmp_path / column).mkdir()
        shutil.copy(data_bin / "dict.txt", tmp_path / column)
    last = f"valid={tmp_path / 'out'}" if main is classify.main else "test:"
    words = [hostile, tmp_path, last]
    assert_rejected(run_here(main, *words, "--cpu"), mark, program)


@pytest.mark.parametrize("arch", ROBERTA)
def test_from_pretrained(arch, checkpoints, data_bin, code, mark, tmp_path):
    """Only fairseq's model evaluates this setting."""
    name = changed(checkpoints[arch], tmp_path, encoder_xformers_att_config=code).name
    if arch == "roberta":
        with pytest.raises(SystemExit, match="is not executed"):
            FairseqRobertaModel.from_pretrained(str(tmp_path), name, str(data_bin), bpe=None)
    else:
        RobertaModel.from_pretrained(tmp_path, name, data_bin, bpe=None)
    assert not mark.exists()


def test_user_dir_of_a_checkpoint_is_not_imported(train, checkpoints, data_bin, mark, tmp_path):
    plugin = tmp_path / "hostile_plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(f"open({str(mark)!r}, 'w')")
    state = torch.load(checkpoints["linear_lm_base"], weights_only=True)
    state["cfg"]["common"]["user_dir"] = state["cfg"]["model"]["user_dir"] = str(plugin)
    state["cfg"]["task"]["user_dir"] = str(plugin)
    torch.save(state, tmp_path / "checkpoint_last.pt")
    for command in ("fairseq-eval-lm", "fairseq-validate", "fairseq-generate"):
        words = evaluation_flags(command, data_bin, tmp_path / "checkpoint_last.pt")
        done = run_here(EVALUATIONS[command], *words)
        assert done.returncode == 0, done.stderr
    done = train("linear_lm_base", tmp_path, "--max-update", 2, "--disable-validation")
    assert done.returncode == 0, done.stderr
    assert not mark.exists() and plugin.name not in sys.modules


def test_every_eval_of_fairseq_is_replaced():
    """Except in fairseq/examples, which are plugins for --user-dir."""
    root, found = Path(find_spec("fairseq").origin).parent, set()
    for path in root.rglob("*.py"):
        if "examples" not in path.parts and re.search(r"(?<![\w.])eval\(", path.read_text()):
            found.add(".".join(("fairseq", *path.relative_to(root).with_suffix("").parts)))
    assert {"fairseq.utils", "fairseq.models.transformer_lm", "fairseq.models.fconv"} < found
    for name in found:
        assert vars(sys.modules[name])["eval"] is literal, name


@pytest.mark.parametrize("text", [
    "[(512, 10, 5)] + [(512, 3, 2)] * 4 + [(512,2,2)] + [(512,2,2)]",
    "(0.9, 0.98)",
    " [-1, 1e-3]",
    "{'a': [1, 'b'], 'c': None}",
])  # fmt: skip
def test_literals_have_pythons_values(text):
    assert literal(text) == eval(text.strip())


@pytest.mark.parametrize("text", [
    "print(1)", "[].__class__", "a", "[x for x in (1,)]", "1 if 1 else 2", "lambda: 0", "f'{1}'", "", "[1",
    "2**9",
])  # fmt: skip
def test_other_expressions_are_rejected(text):
    with pytest.raises(SystemExit, match="is not a number, string, list or dict"):
        literal(text)
