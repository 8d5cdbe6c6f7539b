"""Finished runs of lm/mini, and calls of ``lrpe results`` that record them."""

import json

from omegaconf import OmegaConf

from fairseq_lrpe.cli import results
from fairseq_lrpe.experiments.definition.experiment import Experiment
from support.tiny import run_here

CPU = {"gpus": 0, "nodes": 1, "cpu": True, "precision": "fp32", "gpu_names": []}
CPU["processor"] = {"name": "Toy CPU", "instructions": "AVX2", "threads": 1}
VERSIONS = {"torch": "2.0", "fairseq_lrpe": "0.1.0"}
PERPLEXITY = 100 / 3  # its decimal representation has 17 digits


def write(folder, perplexity=PERPLEXITY, method="rope", seed=1, points=25, **changed):
    """Writes a finished run of lm/mini; ``changed`` replaces values in run.json."""
    path = folder / f"lm/mini/linear_{method}/seed-{seed}"
    path.mkdir(parents=True, exist_ok=True)
    config = OmegaConf.to_container(Experiment.load("lm/mini").cfg, resolve=True)
    run = {"kind": "lm", "updates": 400, "config": config, "flags": [], **CPU}
    run |= {"data": {"train.bin": 9}, "versions": VERSIONS, "git": {"revision": "0" * 40, "dirty": True}}
    (path / "run.json").write_text(json.dumps(run | changed))
    log = [{"kind": "valid", "valid_num_updates": 16 * n, "valid_ppl": 400 / n} for n in range(1, points + 1)]
    log += [{"kind": "train", "train_num_updates": 200 * n, "train_train_wall": 30} for n in (1, 2)]
    (path / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    flags = {"tokens_per_sample": 256, "sample_break_mode": "none", "context_window": 0}
    settings = {"checkpoint": "checkpoint_best.pt", **flags}
    evaluations = {
        split: {"settings": {**settings, "split": split}, "perplexity": perplexity + (split == "test")}
        for split in ("valid", "test")
    }
    evaluations["training"] = {"tokens_per_second": 10.0 * seed}
    record = {"evaluations": evaluations, "finished": "2020-01-02T03:04:05+00:00"}
    (path / "evaluation.json").write_text(json.dumps(record))
    return path


def call(folder, *words):
    return run_here(results.main, "--results", folder, *words)
