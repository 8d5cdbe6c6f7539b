"""The kind of experiment in CONTRIBUTING.md, trained by its table."""

import pytest
from omegaconf import OmegaConf
from support.documents import block
from support.tiny import PLUGIN, copy_plugin, preprocess, read, run_copy

SMALL = {  # overrides of CONTRIBUTING.md's experiment
    "batch": {"total": 8, "per_gpu": 8},
    "updates": 12,
    "train": {
        **{"encoder_layers": 1, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 16},
        **{"encoder_attention_heads": 2, "max_positions": 32, "lr_scheduler": "fixed", "warmup_updates": 0},
        **{"validate_interval_updates": 4, "num_workers": 0, "data_buffer_size": 0, "log_interval": 4},
    },
    "evaluate": {"flags": {"batch_size": 8}},
    "choose": {"train.lr": [1e-2, 1e-8]},
    "seeds": [1],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("place")
    copy_plugin(place)
    kinds = place / "fairseq_lrpe/experiments/definition/kinds"
    (kinds / "lines.py").write_text(block("python", "class Lines(Kind)"))
    (place / "configs/lines").mkdir()
    shown = OmegaConf.create(block("yaml", "kind: lines"))
    OmegaConf.save(OmegaConf.merge(shown, SMALL), place / "configs/lines/own.yaml")
    (place / "configs/tables/lines.yaml").write_text(block("yaml", "experiment: lines/own"))
    for split, count in (("train", 64), ("valid", 16), ("test", 16)):
        lines = [" ".join(f"{'ab'[i % 2]}{(i * j) % 7}" for j in range(1, 5)) for i in range(count)]
        (place / f"{split}.input0").write_text("\n".join(lines) + "\n")
        (place / f"{split}.label").write_text("".join(f"{'ab'[i % 2]}\n" for i in range(count)))
    for part in ("input0", "label"):
        prefixes = [x for s in ("train", "valid", "test") for x in (f"--{s}pref", place / f"{s}.{part}")]
        preprocess("--only-source", *prefixes, "--destdir", place / "data/lines" / part)
    return place


@pytest.mark.slow
def test_table_of_a_new_kind(place):
    words = ["table", "lines", "--methods", "shaw"]
    estimated = run_copy(place, *words, "--estimate")
    done = run_copy(place, *words, "--cpu", "--plot", "lines.png")
    assert estimated.returncode == 0 and "lines/own/softmax_shaw" in estimated.stdout, estimated.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    record = read(place / "results/lines/own/softmax_shaw/train.shaw_k=4/seed-1")
    scores = {name: found["valid"]["accuracy"] for name, found in record["tried"].items()}
    assert set(scores) == {"train.lr=0.01", "train.lr=1e-08"} and scores[record["chosen"]] == 100
    assert "| softmax | Shaw, k = 4 | 100.00 (1) | " in done.stdout
    assert (place / "lines.png").read_bytes().startswith(b"\x89PNG")


def test_example_of_an_evaluator():
    path = PLUGIN / "experiments/execution/evaluators/roberta.py"
    assert block("python", "class RobertaEvaluator(Evaluator)") in path.read_text()
