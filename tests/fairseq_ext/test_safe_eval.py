"""No command runs code in a checkpoint's settings."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.commands import EVALUATIONS, evaluation_flags
from support.tiny import PLUGIN, run_command, run_here, succeeded

from fairseq_lrpe.fairseq_ext.safe_eval import literal


def test_code_in_settings_is_not_executed(train, data_bin, tmp_path):
    """Neither in those of a checkpoint of fairseq's model, nor on the command line."""
    succeeded(train("transformer_lm", tmp_path, "--max-update", 1, "--disable-validation"))
    path, mark = tmp_path / "checkpoint_last.pt", tmp_path / "mark"
    code = f"__import__('pathlib').Path({str(mark)!r}).write_text('')"
    state = torch.load(path, weights_only=True)
    state["cfg"]["model"]["adaptive_softmax_cutoff"] = code
    torch.save(state, tmp_path / "hostile.pt")
    for checkpoint, more in ((tmp_path / "hostile.pt", []), (path, ["--model-overrides", code])):
        words = [*evaluation_flags("fairseq-eval-lm", data_bin, checkpoint), "--user-dir", PLUGIN, *more]
        done = run_command("fairseq-eval-lm", *words)
        assert done.returncode == 1 and not mark.exists()
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("fairseq_lrpe: the setting \"__import__('path") and last.endswith("executed")


def test_user_dir_of_a_checkpoint_is_not_imported(train, checkpoint, data_bin, tmp_path):
    plugin, mark = tmp_path / "hostile_plugin", tmp_path / "mark"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(f"open({str(mark)!r}, 'w')")
    state = torch.load(checkpoint, weights_only=True)
    state["cfg"]["common"]["user_dir"] = state["cfg"]["model"]["user_dir"] = str(plugin)
    state["cfg"]["task"]["user_dir"] = str(plugin)
    torch.save(state, tmp_path / "checkpoint_last.pt")
    for command in ("fairseq-eval-lm", "fairseq-validate", "fairseq-generate"):
        words = evaluation_flags(command, data_bin, tmp_path / "checkpoint_last.pt")
        succeeded(run_here(EVALUATIONS[command], *words))
    succeeded(train("linear_lm_base", tmp_path, "--max-update", 2, "--disable-validation"))
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
