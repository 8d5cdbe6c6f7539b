"""A table of fine-tunings done by its program, from tiny pretrainings to the zip for GLUE's server."""

import json
import os
import random
import shutil
import signal
import subprocess
import zipfile
from argparse import Namespace

import pytest
import torch
from omegaconf import OmegaConf
from scipy.stats import pearsonr
from tiny import BIN, REPOSITORY, run_command

from fairseq_lrpe.experiments import finetune

QUIET = {"num_workers": 0, "data_buffer_size": 0}
ROWS = {"train": 48, "valid": 20, "test": 8}
PRETRAINING = {
    "defaults": "roberta/wikibook",
    "data": "data/text/bin",
    "batch": {"total": 8, "per_gpu": 8},
    "updates": 4,
    "train": {
        **{"tokens_per_sample": 32, "encoder_layers": 1, "encoder_embed_dim": 32, **QUIET},
        **{"encoder_ffn_embed_dim": 64, "encoder_attention_heads": 4, "warmup_updates": 2},
    },
}
FINE_TUNING = {
    "defaults": "glue/wikibook",
    "pretrained": "roberta/mini",
    "data": "data/glue",
    "tasks": ["RTE", "STS-B"],
    "learning_rates": [1e-3, 1e-2],
    "batch": {"total": 16, "per_gpu": 16},
    "train": QUIET,
    "seeds": [1],
}


def write_task(folder, dictionary, labels):
    """A task's binaries as data_prep writes them: pairs of sentences, labels by name or scores in 0..1."""
    draw, texts = random.Random(0), folder / "text"
    texts.mkdir(parents=True)
    for split, count in ROWS.items():
        for column in ("input0", "input1"):
            lines = (" ".join(f"w{draw.randrange(40)}" for _ in range(5)) for _ in range(count))
            (texts / f"{split}.{column}").write_text("\n".join(lines) + "\n")
        said = [draw.choice(labels) if labels else f"{draw.random():.3f}" for _ in range(count)]
        (texts / f"{split}.label").write_text("\n".join(said) + "\n")
    (texts / "labels.txt").write_text("".join(f"{label} 0\n" for label in labels))

    def binarise(column, splits, given):
        prefixes = [x for split in splits for x in (f"--{split}pref", texts / f"{split}.{column}")]
        words = ["--only-source", *prefixes, "--srcdict", given, "--destdir", folder / "bin" / column]
        done = run_command("fairseq-preprocess", *words)
        assert done.returncode == 0, done.stderr

    for column in ("input0", "input1"):
        binarise(column, ROWS, dictionary)
    if labels:
        binarise("label", ("train", "valid"), texts / "labels.txt")
    else:
        (folder / "bin/label").mkdir()
        for split in ("train", "valid"):
            shutil.copy(texts / f"{split}.label", folder / "bin/label")
    (folder / "bin/rows.json").write_text(json.dumps(ROWS))


@pytest.fixture(scope="module")
def place(data_bin, tmp_path_factory):
    """A copy of the repository with tiny experiments and their data."""
    place = tmp_path_factory.mktemp("place")
    for name in ("fairseq_lrpe", "configs"):
        shutil.copytree(REPOSITORY / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    OmegaConf.save(PRETRAINING, place / "configs/roberta/mini.yaml")
    OmegaConf.save(FINE_TUNING, place / "configs/glue/mini.yaml")
    shutil.copytree(data_bin, place / "data/text/bin")
    for name, labels in (("RTE", ["entailment", "not_entailment"]), ("STS-B", [])):
        write_task(place / "data/glue" / name, data_bin / "dict.txt", labels)
    return place


def run(place, module, *words):
    return subprocess.run(
        [BIN / "python", "-m", f"fairseq_lrpe.experiments.{module}", *map(str, words)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
    )


TABLE = ("tmlr_table1", "--scale", "mini", "--only", "rope", "--gpus", "0")


@pytest.fixture(scope="module")
def done(place):
    return run(place, "table", *TABLE, "learning_rates=[1e-2,1e-3]")


def folder_of(place, task):
    return place / f"results/glue/mini/linear_rope/seed-1/{task}"


def test_the_table_pretrains_and_then_fine_tunes(place, done):
    assert done.returncode == 0, done.stderr
    told = [line.split() for line in done.stdout.splitlines() if line.startswith(("started", "finished"))]
    first = told.index(["finished", "roberta/mini/linear_rope/seed-1"])
    for task in ("RTE", "STS-B"):
        assert first < told.index(["started", f"glue/mini/linear_rope/seed-1/{task}"])
        assert (folder_of(place, task) / "evaluation.json").exists()
    assert "measured on roberta/mini (4 updates), glue/mini (3 epochs)" in done.stdout
    header = next(line for line in done.stdout.splitlines() if "rte paper" in line)
    assert "sts_b mini" in header and "loss mini" in header and "cola" not in header and "mnli" not in header


def test_nothing_is_repeated(place, done):
    again = run(place, "table", *TABLE, "learning_rates=[1e-2,1e-3]")
    assert again.returncode == 0 and "started" not in again.stdout, again.stderr
    other = run(place, "table", *TABLE, "learning_rates=[1e-2]", "--dry-run")
    assert other.returncode == 0 and other.stdout.count("fairseq-train") == 1 + 2


@pytest.mark.parametrize("task", ["RTE", "STS-B"])
def test_the_best_learning_rate_counts(place, done, task):
    folder = folder_of(place, task)
    found = json.loads((folder / "evaluation.json").read_text())
    scores = {name: splits[task]["score"] for name, splits in found["tried"].items()}
    assert set(scores) == {"lr-0.01", "lr-0.001"} and found["splits"][task]["score"] == max(scores.values())
    [kept] = folder.glob("lr-*/checkpoints/*.pt")
    assert kept == folder / found["checkpoint"] and scores[kept.parents[1].name] == max(scores.values())
    for name in scores:
        log = [json.loads(line) for line in (folder / name / "log.jsonl").read_text().splitlines()]
        assert log[-1]["train_num_updates"] == 3 * 3  # epochs of 48 rows, 16 at a time


def test_predictions_are_in_the_order_of_the_rows_and_measured_as_fairseq_does(place, done):
    for task, what in (("RTE", "accuracy"), ("STS-B", "pearson")):
        folder = folder_of(place, task)
        said = (place / f"data/glue/{task}/text/valid.label").read_text().split()
        for part in folder.glob("lr-*"):
            rows = [line.split("\t") for line in (part / f"predictions-{task}.tsv").read_text().splitlines()]
            assert rows[0] == ["index", "prediction", "target"]
            if task == "RTE":
                assert [row[2] for row in rows[1:]] == said
            else:
                assert [float(row[2]) for row in rows[1:]] == pytest.approx([5 * float(x) for x in said])
                measured = json.loads((part / "evaluation.json").read_text())["splits"][task]
                numbers = [[float(row[column]) for row in rows[1:]] for column in (1, 2)]
                assert measured["pearson"] == pytest.approx(100 * pearsonr(*numbers).statistic)
            log = [json.loads(line) for line in (part / "log.jsonl").read_text().splitlines()]
            best = max(entry[f"valid_{what}"] for entry in log if entry["kind"] == "valid")
            measured = json.loads((part / "evaluation.json").read_text())["splits"][task]
            assert measured[what] == pytest.approx(best, abs=0.06)  # fairseq rounds


def test_a_submission(place, done):
    told = run(place, "glue_submission", "results/glue/mini/linear_rope", "--cpu")
    assert told.returncode == 0, told.stderr
    assert "lacking for GLUE's server: CoLA.tsv, SST-2.tsv, MRPC.tsv" in told.stdout
    with zipfile.ZipFile(place / "results/glue/mini/linear_rope/submission.zip") as archive:
        assert archive.namelist() == ["RTE.tsv", "STS-B.tsv"]
        labels = [line.split("\t") for line in archive.read("RTE.tsv").decode().splitlines()]
        scores = [line.split("\t") for line in archive.read("STS-B.tsv").decode().splitlines()]
    assert labels[0] == scores[0] == ["index", "prediction"]
    assert [row[0] for row in labels[1:]] == [str(i) for i in range(ROWS["test"])]
    assert {row[1] for row in labels[1:]} <= {"entailment", "not_entailment"}
    assert all(float(row[1]) is not None for row in scores[1:])
    nothing = run(place, "glue_submission", "results/glue")
    assert nothing.returncode == 1 and "holds no finished fine-tuning" in nothing.stderr


def test_an_interrupted_fine_tuning_goes_on_with_what_is_missing(place, done):
    checkpoint = "results/roberta/mini/linear_rope/seed-1/checkpoints/checkpoint_best.pt"
    words = [checkpoint, "RTE", "--experiment", "glue/mini", "--seeds", "2", "--cpu"]
    process = subprocess.Popen(
        [BIN / "python", "-m", "fairseq_lrpe.experiments.finetune", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if "lr-0.01/" in line:  # the second one's command
            break
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    folder = place / "results/glue/mini/linear_rope/seed-2/RTE"
    assert not (folder / "evaluation.json").exists()
    before = (folder / "lr-0.001/evaluation.json").stat().st_mtime_ns
    other = run(place, "finetune", *words, "epochs=1")
    assert other.returncode == 1 and "epochs was 3, now 1" in other.stderr
    again = run(place, "finetune", *words)
    assert again.returncode == 0, again.stderr
    assert (folder / "lr-0.001/evaluation.json").stat().st_mtime_ns == before
    assert len(json.loads((folder / "evaluation.json").read_text())["tried"]) == 2


def refusal(*words):
    """The one sentence with which a fine-tuning ends before it starts."""
    with pytest.raises(SystemExit) as ended:
        finetune.main([str(word) for word in words])
    assert str(ended.value.code).startswith("finetune: ") and "\n" not in ended.value.code
    return ended.value.code


def test_wrong_requests_get_one_sentence(place, done, tmp_path):
    checkpoint = place / "results/roberta/mini/linear_rope/seed-1/checkpoints/checkpoint_best.pt"
    given = ("--experiment", "glue/mini", "--cpu", "--results", tmp_path / "r", f"data={place}/data/glue")
    assert "GLUE has no task 'RTA': choose from CoLA, SST-2" in refusal(checkpoint, "RTA", *given)
    assert "nothing.pt does not exist" in refusal(tmp_path / "nothing.pt", "RTE", *given)
    assert "learning_rates is empty" in refusal(checkpoint, "RTE", *given, "learning_rates=[]")
    assert "learning rates are numbers above 0" in refusal(checkpoint, "RTE", *given, "learning_rates=[0]")
    assert "holds no data of CoLA: bash data_prep/glue.sh CoLA" in refusal(checkpoint, "CoLA", *given)
    assert "roberta/mini is no fine-tuning" in refusal(checkpoint, "RTE", "--experiment", "roberta/mini")
    (tmp_path / "broken.pt").write_bytes(b"no checkpoint")
    assert "is no checkpoint of fairseq" in refusal(tmp_path / "broken.pt", "RTE", *given)

    state = torch.load(checkpoint, weights_only=True)
    weights = state["model"]
    name = "encoder.sentence_encoder.embed_tokens.weight"
    weights[name] = weights[name][:-1]
    torch.save(state, tmp_path / "other.pt")
    assert "has another vocabulary" in refusal(tmp_path / "other.pt", "RTE", *given)
    state["cfg"]["model"]["_name"] = "linear_lm_base"
    torch.save(state, tmp_path / "lm.pt")
    assert "is of the architecture linear_lm_base" in refusal(tmp_path / "lm.pt", "RTE", *given)
    state["cfg"]["model"] = Namespace(arch="roberta")  # as the method fairseq's checkpoints have it
    torch.save(state, tmp_path / "fairseqs.pt")
    assert "is of the architecture roberta: a" in refusal(tmp_path / "fairseqs.pt", "RTE", *given)
    assert not (tmp_path / "r").exists()
