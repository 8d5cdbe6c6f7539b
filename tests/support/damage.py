"""Damages the files of a run: every value of their JSON is replaced or removed, and whole files, too."""

import json
import os

from omegaconf import OmegaConf

from fairseq_lrpe.experiments.definition.experiment import Experiment

EXPERIMENT = "lm/mini"
SOUND = "lm/mini/linear_base/seed-1"
SOUND_VALUE = 33.25
SETTINGS = {
    "experiment": EXPERIMENT,
    "attention": "linear",
    "method": "rope",
    "seed": 1,
    "changes": {},
    "kind": "lm",
    "updates": 400,
    "gpus": 2,
    "nodes": 1,
    "cpu": True,
    "precision": "fp32",
    "rendezvous": None,
    "gpu_names": ["Toy (cuda:0)"],
    "processor": {"name": "Toy CPU", "instructions": "AVX2", "threads": 2},
    "flags": ["--fp16"],
    "starts_from": {"path": "a.pt", "sha256": "0" * 64},
    "data": {"train.bin": 9, "valid.bin": 4},
    "versions": {"python": "3.11.7", "torch": "2.0", "fairseq": None, "fairseq_lrpe": "1.0"},
    "git": {"revision": "0" * 40, "dirty": True},
    "extended": {"from": "lm/mini/linear_rope/updates=9/seed-1", "updates": 9},
    "started": "2020-01-02T03:04:05+00:00",
}
LOG = [
    {"kind": "tried", "trial": "train.lr=0.1", "num_updates": 10},
    {
        "kind": "train_inner",
        "epoch": 1,
        "loss": 6.4,
        "ppl": 84.1,
        "wps": 51,
        "wpb": 9,
        "bsz": 4,
        "num_updates": 200,
    },
    {"kind": "valid", "epoch": 1, "valid_loss": 6.1, "valid_ppl": 66.2, "valid_num_updates": 400},
    {"kind": "train", "epoch": 1, "train_loss": 6.1, "train_train_wall": 9, "train_num_updates": 400},
]

DEPTH = 5000
VALUES = [
    "null",
    "[]",
    "{}",
    '""',
    '"x"',
    r'"\u0000"',
    "true",
    "-1",
    "0.5",
    "1e308",
    "1e400",
    "-1e400",
    "NaN",
]
VALUES += ["9" * 400, "[" * DEPTH + "]" * DEPTH, "[" * 150 + "]" * 150, "[null]", '{"x": null}']
"""JSON that replaces a value; a removed key is None."""
FILES = {
    "empty": b"",
    "a null": b"null\n",
    "a list": b"[1]\n",
    "a number": b"1\n",
    "not UTF-8": b'{"kind": "\xff\xfe"}\n',
    "zeros": bytes(99) + b"\n",
    "nested": b'{"x": ' + b"[" * DEPTH + b"]" * DEPTH + b"}\n",
    "truncated": b'{"kind": "language_mod',
}
"""{name: content of a damaged file}"""


def paths(content, path=()):
    """Yields the paths of all values in JSON, except for the outermost."""
    if path:
        yield path
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from paths(content[key], (*path, key))


def damaged(content, path, value):
    """Returns JSON in which the value at a path is replaced by the JSON ``value``, or removed."""
    copy = json.loads(json.dumps(content))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    if value is None:
        del parent[path[-1]]
    else:
        parent[path[-1]] = "@replaced@"
    return json.dumps(copy).replace('"@replaced@"', value or "")


def replace_file(path, kind):
    """Replaces a file by a folder, a named pipe, a link, or content of ``FILES``."""
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling link":
        path.symlink_to("nothing")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    else:
        path.write_bytes(FILES[kind])


KINDS_OF_FILES = ("folder", "pipe", "dangling link", "link to itself", *FILES)


def write(folder, perplexity=30.5, **changed):
    """Writes all files of a finished run with all keys that a run can have."""
    folder.mkdir(parents=True)
    config = OmegaConf.to_container(Experiment.load(EXPERIMENT).cfg, resolve=True)
    config |= {
        "by_method": {"rope": {"clip_norm": 1.0}},
        "choose": {"train.lr": [0.1]},
        "task": "RTE",
        "epochs": 2,
    }
    metrics = {"perplexity": perplexity, "bits": 5.1, "nats": 3.5, "tokens": 558, "length": 256}
    metrics |= {"settings": {"split": "valid", "length": 256}, "perplexity_signature": "x"}
    evaluations = {"valid": metrics, "training": {"tokens_per_second": 51}}
    evaluation = {"chosen": "train.lr=0.1", "checkpoint": "checkpoints/checkpoint_best.pt"}
    evaluation |= {"evaluations": evaluations, "tried": {"train.lr=0.1": {"valid": {"perplexity": 1.0}}}}
    evaluation |= {"ended": {"updates": 400, "reason": "patience"}, "finished": "2020-01-02T03:04:05+00:00"}
    files = {"run.json": SETTINGS | {"config": config} | changed, "evaluation.json": evaluation}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in LOG))
    return files


def write_sound(folder):
    write(folder / SOUND, SOUND_VALUE, method="base")
    return folder
