"""A user's plugin adds an encoding with one class and one METHODS row."""

from support.tiny import PLUGIN, REPOSITORY, run_command, train_flags

MINE = """
import sys
sys.path.insert(0, {repository!r})

import torch
from torch import nn
from fairseq_lrpe.encodings import Encoding, register_encoding
from fairseq_lrpe.methods import METHODS, Method


@register_encoding("distance", slope="initial slope")
class Distance(Encoding):
    decomposable = False

    def __init__(self, *, slope=0.5, **shared):
        super().__init__(**shared)
        self.slope = nn.Parameter(torch.full((self.num_heads, 1, 1), slope))

    def bias(self, q, k, context):
        i = torch.arange(q.size(-2))[:, None] + context.q_offset
        return -self.slope * (i - torch.arange(k.size(-2))).abs()


METHODS["distance"] = Method({{"encoding": "distance", "distance_slope": 0.25}}, "test")
import fairseq_lrpe.models
"""


def test_new_encoding_trains_and_evaluates_with_its_flag(data_bin, tmp_path):
    plugin = tmp_path / "my_plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(MINE.format(repository=str(REPOSITORY)))
    flags = train_flags(data_bin, "softmax_lm_distance", tmp_path / "save", "--max-update", 3)
    flags[flags.index(PLUGIN)] = plugin
    trained = run_command("fairseq-train", *flags, "--distance-slope", 0.75)
    assert trained.returncode == 0, trained.stderr
    assert "'distance_slope': 0.75" in trained.stdout
    path = ["--path", tmp_path / "save/checkpoint_last.pt", "--tokens-per-sample", 32, "--batch-size", 4]
    evaluated = run_command("fairseq-eval-lm", data_bin, "--user-dir", plugin, *path, "--cpu")
    assert evaluated.returncode == 0 and "Perplexity" in evaluated.stderr, evaluated.stderr
