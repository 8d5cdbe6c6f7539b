"""Fine-tuning on GLUE: a table from a tiny pretraining to the zip file for GLUE's server."""

import json
import math
import random
import shutil
import zipfile
from argparse import Namespace

import pytest
import torch
from omegaconf import OmegaConf
from scipy.stats import pearsonr
from support.tiny import copy_plugin, preprocess, read
from support.tiny import run_copy as run

from fairseq_lrpe.cli import finetune, train
from fairseq_lrpe.experiments.execution.run_files import read_log
from fairseq_lrpe.experiments.inference import glue_submission
from fairseq_lrpe.experiments.reporting.records import read_run

QUIET = {"num_workers": 0, "data_buffer_size": 0}
ROWS = {"train": 48, "valid": 20, "test": 8}
PRETRAINING = {
    "defaults": "roberta/wikibook",
    "data": "data/tiny_text/bin",
    "batch": {"total": 8, "per_gpu": 8},
    "updates": 4,
    "train": {
        **{"tokens_per_sample": 32, "encoder_layers": 1, "encoder_embed_dim": 32, **QUIET},
        **{"encoder_ffn_embed_dim": 64, "encoder_attention_heads": 4, "warmup_updates": 2},
    },
}
FINE_TUNING = {
    "defaults": "glue/wikibook",
    "starts_from": "roberta/mini",
    "data": "data/glue",
    "grid": {"task": ["RTE", "STS-B"]},
    "choose": {"train.lr": [1e-3, 1e-2]},
    "batch": {"total": 16, "per_gpu": 16},
    "train": QUIET,
    "seeds": [1],
}


def write_task(folder, dictionary, labels):
    """Writes a task's binaries like data_prep: sentence pairs with labels, or with scores in 0..1."""
    draw, texts = random.Random(0), folder / "text"
    texts.mkdir(parents=True)
    for split, count in ROWS.items():
        for column in ("input0", "input1"):
            lines = (" ".join(f"w{draw.randrange(40)}" for _ in range(5)) for _ in range(count))
            (texts / f"{split}.{column}").write_text("\n".join(lines) + "\n")
        targets = [draw.choice(labels) if labels else f"{draw.random():.3f}" for _ in range(count)]
        (texts / f"{split}.label").write_text("\n".join(targets) + "\n")
    (texts / "labels.txt").write_text("".join(f"{label} 0\n" for label in labels))

    def binarize(column, splits, dictionary):
        prefixes = [x for split in splits for x in (f"--{split}pref", texts / f"{split}.{column}")]
        words = ["--only-source", *prefixes, "--srcdict", dictionary, "--destdir", folder / "bin" / column]
        preprocess(*words)

    for column in ("input0", "input1"):
        binarize(column, ROWS, dictionary)
    if labels:
        binarize("label", ("train", "valid"), texts / "labels.txt")
    else:
        (folder / "bin/label").mkdir()
        for split in ("train", "valid"):
            shutil.copy(texts / f"{split}.label", folder / "bin/label")
    (folder / "bin/rows.json").write_text(json.dumps(ROWS))


@pytest.fixture(scope="module")
def place(data_bin, tmp_path_factory):
    place = tmp_path_factory.mktemp("place")
    copy_plugin(place)
    OmegaConf.save(PRETRAINING, place / "configs/roberta/mini.yaml")
    OmegaConf.save(FINE_TUNING, place / "configs/glue/mini.yaml")
    shutil.copytree(data_bin, place / "data/tiny_text/bin")
    for name, labels in (("RTE", ["entailment", "not_entailment"]), ("STS-B", [])):
        write_task(place / "data/glue" / name, data_bin / "dict.txt", labels)
    return place


TABLE = ("tmlr_table1", "--scale", "mini", "--methods", "rope", "--cpu")
RATES = "choose.train.lr=[1e-2,1e-3]"
CHECKPOINT = "results/roberta/mini/linear_rope/seed-1/checkpoints/checkpoint_best.pt"


@pytest.fixture(scope="module")
def done(place):
    return run(place, "table", *TABLE, RATES)


def data_folder(place, task, seed=1):
    return place / f"results/glue/mini/linear_rope/task={task}/seed-{seed}"


def trials_of(place, task, seed=1):
    found = data_folder(place, task).parent.glob(f"train.lr=*/seed-{seed}")
    return {folder.parent.name: folder for folder in found}


def written(*folders):
    paths = [path for f in folders for path in (f / "evaluation.json", *f.glob("checkpoints/*"))]
    return {path: path.stat().st_mtime_ns for path in paths}


def test_table_pretrains_and_then_fine_tunes(place, done):
    assert done.returncode == 0, done.stderr
    steps = [line.split() for line in done.stdout.splitlines() if line.startswith(("started", "finished"))]
    first = steps.index(["finished", "roberta/mini/linear_rope/seed-1"])
    for task in ("RTE", "STS-B"):
        trials = [f"glue/mini/linear_rope/task={task}/train.lr={rate}/seed-1" for rate in ("0.01", "0.001")]
        last = steps.index(["started", f"glue/mini/linear_rope/task={task}/seed-1"])
        for trial in trials:
            assert first < steps.index(["started", trial]) < steps.index(["finished", trial]) < last
    assert "measured on roberta/mini (4 updates), glue/mini (3 epochs)" in done.stdout


def test_finished_runs_are_not_repeated(place, done):
    again = run(place, "table", *TABLE, RATES)
    assert again.returncode == 0 and "started" not in again.stdout, again.stderr
    words = ["glue/mini", "rope", "task=RTE", RATES, f"starts_from={CHECKPOINT}", "--cpu"]
    single = run(place, "train", *words)
    assert single.stdout == f"already finished: {data_folder(place, 'RTE')}\n", single.stderr


@pytest.mark.parametrize("task", ["RTE", "STS-B"])
def test_best_learning_rate_is_chosen(place, done, task):
    folder, trials = data_folder(place, task), trials_of(place, task)
    found = read(folder)
    scores = {name: evaluations["valid"]["score"] for name, evaluations in found["tried"].items()}
    assert set(scores) == set(trials) == {"train.lr=0.01", "train.lr=0.001"}
    assert found["evaluations"]["valid"]["score"] == max(scores.values()) == scores[found["chosen"]]
    assert read(folder, "run.json")["config"]["starts_from"] == "roberta/mini"
    [kept] = (path for trial in trials.values() for path in trial.rglob("*.pt"))
    assert kept.samefile(folder / found["checkpoint"]) and kept.is_relative_to(trials[found["chosen"]])
    for name, trial in trials.items():
        assert read(trial)["evaluations"] == found["tried"][name]
    ours, best = (read_run(f, place / "results") for f in (folder, trials[found["chosen"]]))
    assert ours.seconds == best.seconds and ours.curve == best.curve  # NaN is not equal


def test_predictions_match_the_labels_and_fairseqs_metrics(place, done):
    for task, metric in (("RTE", "accuracy"), ("STS-B", "pearson")):
        labels = (place / f"data/glue/{task}/text/valid.label").read_text().split()
        for part in trials_of(place, task).values():
            rows = [line.split("\t") for line in (part / "predictions-valid.tsv").read_text().splitlines()]
            assert rows[0] == ["index", "prediction", "target"]
            measured = read(part)["evaluations"]["valid"]
            if task == "RTE":
                assert [row[2] for row in rows[1:]] == labels
            else:
                assert [float(row[2]) for row in rows[1:]] == pytest.approx([5 * float(x) for x in labels])
                numbers = [[float(row[column]) for row in rows[1:]] for column in (1, 2)]
                assert measured["pearson"] == pytest.approx(100 * pearsonr(*numbers).statistic)
            log = list(read_log(part))
            best = max(entry[f"valid_{metric}"] for entry in log if entry["kind"] == "valid")
            assert measured[metric] == pytest.approx(best, abs=0.06)  # fairseq rounds


def test_best_score_is_a_number(tmp_path):
    config = {"task": "RTE", "data": "data/glue", "evaluate": {"checkpoint": "best.pt"}}
    for seed, score in ((1, math.nan), (2, 60.0), (3, 50.0)):
        folder = tmp_path / f"seed-{seed}"
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints/best.pt").touch()
        record = {"finished": "now", "evaluations": {"valid": {"score": score}}}
        (folder / "evaluation.json").write_text(json.dumps(record))
        (folder / "run.json").write_text(json.dumps({"kind": "glue", "config": config}))
    assert glue_submission.best_runs([tmp_path])["RTE"].score == 60


@pytest.mark.parametrize(("prediction", "task", "expected"), [
    (-0.15, "STS-B", 0), (5.2, "STS-B", 5), (3.25, "STS-B", 3.25), (math.inf, "STS-B", 5), ("1", "CoLA", "1"),
])  # fmt: skip
def test_submitted_scores_are_limited_to_those_of_the_task(prediction, task, expected):
    assert glue_submission.submitted(prediction, task) == expected


def test_a_score_that_is_not_a_number_is_not_submitted():
    with pytest.raises(ValueError, match=r"the model of STS-B predicts NaN: .* train it again"):
        glue_submission.submitted(math.nan, "STS-B")


def test_a_submission(place, done, tmp_path):
    """The run that chose does not need the folders of its trials."""
    moved, trials = tmp_path / "moved", shutil.ignore_patterns("train.lr=*")
    shutil.copytree(place / "results/glue/mini/linear_rope", moved, ignore=trials)
    output = run(place, "glue-submission", moved, "--cpu")
    assert output.returncode == 0, output.stderr
    assert "GLUE's server also requires: CoLA.tsv, SST-2.tsv, MRPC.tsv" in output.stdout
    with zipfile.ZipFile(moved / "submission.zip") as archive:
        assert archive.namelist() == ["RTE.tsv", "STS-B.tsv"]
        labels = [line.split("\t") for line in archive.read("RTE.tsv").decode().splitlines()]
        scores = [line.split("\t") for line in archive.read("STS-B.tsv").decode().splitlines()]
    assert labels[0] == scores[0] == ["index", "prediction"]
    assert [row[0] for row in labels[1:]] == [str(i) for i in range(ROWS["test"])]
    assert {row[1] for row in labels[1:]} <= {"entailment", "not_entailment"}
    assert all(0 <= float(row[1]) <= 5 for row in scores[1:])


SECOND = (CHECKPOINT, "RTE", "--experiment", "glue/mini", "--seeds", "2", "--cpu")


@pytest.fixture(scope="module")
def second(place, done):
    finished = run(place, "finetune", *SECOND)
    assert finished.returncode == 0, finished.stderr
    return data_folder(place, "RTE", 2), trials_of(place, "RTE", 2)


def test_additional_evaluation_measures_only_the_best_trial(place, second):
    folder, trials = second
    found, words = read(folder), (*SECOND, "evaluations.seen={split: train}")
    [loser] = (trial for name, trial in trials.items() if name != found["chosen"])
    [kept] = folder.parent.glob("train.lr=*/seed-2/checkpoints/*.pt")
    trained = kept.stat().st_mtime_ns
    done = run(place, "finetune", *words)
    assert done.returncode == 0 and "fairseq-train" not in done.stdout, done.stderr
    assert "valid: accuracy " in done.stdout and "seen: accuracy " in done.stdout
    after = read(folder)
    assert after["evaluations"]["seen"]["rows"] == ROWS["train"] and after["chosen"] == found["chosen"]
    assert after["evaluations"]["valid"] == found["evaluations"]["valid"]
    assert kept.stat().st_mtime_ns == trained and "seen" not in read(loser)["evaluations"]
    again = run(place, "finetune", *words)
    assert again.stdout == f"already finished: {folder}\n", again.stderr


def test_other_settings_in_the_same_folder_are_rejected(place, second, tmp_path):
    folder, trials = second
    settings, before = read(folder, "run.json"), written(folder, *trials.values())
    other = place / "results/other.pt"
    torch.save({**torch.load(place / CHECKPOINT, weights_only=True), "more": 1}, other)
    shutil.copytree(place / "data/glue", tmp_path / "glue")
    for end in ("bin", "idx"):
        shutil.copy(*(tmp_path / f"glue/RTE/bin/input0/{split}.{end}" for split in ("train", "valid")))
    single = ("glue/mini", "rope", "--seed", "2", "--cpu")
    lost = next(name for name in trials if name != read(folder)["chosen"])
    for program, words, message in (
        ("finetune", (other, *SECOND[1:]), f"starts_from was {CHECKPOINT} "),
        ("train", (*single, "task=RTE", "choose=null", f"starts_from={CHECKPOINT}"), "the run chose among "),
        ("finetune", (*SECOND, f"data={tmp_path}/glue"), "data.RTE/bin/input0/valid.bin was "),
        ("train", (*single, "task=RTE", lost, "--", "--clip-norm", "1"), "flags was [], now ["),
    ):
        failed = run(place, program, *words)
        [line] = failed.stderr.strip().splitlines()
        assert failed.returncode == 1 and line.startswith(f"{program}: {folder.parent}")
        assert "fairseq-train" not in failed.stdout
        assert "contains a run with other settings (" in line and message in line
    assert read(folder, "run.json") == settings and written(folder, *trials.values()) == before


def error_of(*words, program=finetune):
    with pytest.raises(SystemExit) as ended:
        program.main([str(word) for word in words])
    name = program.__name__.rpartition(".")[2]
    assert str(ended.value.code).startswith(f"{name}: ") and "\n" not in ended.value.code
    return ended.value.code


def test_invalid_arguments(place, done, tmp_path):
    checkpoint = place / CHECKPOINT
    given = ("--experiment", "glue/mini", "--cpu", "--results", tmp_path / "r", f"data={place}/data/glue")
    assert "unknown GLUE task 'RTA': choose from CoLA, SST-2" in error_of(checkpoint, "RTA", *given)
    lacking = error_of(checkpoint, "RTE", "CoLA", *given)
    assert "data/glue lacks CoLA/bin/rows.json, CoLA/bin/input0/dict.txt" in lacking
    none = error_of(checkpoint, "RTE", *given, "evaluations.valid=null")
    assert "glue/mini/linear_rope/task=RTE/seed-1 has no evaluation to compare" in none

    state = torch.load(checkpoint, weights_only=True)
    weights = state["model"]
    name = "encoder.sentence_encoder.embed_tokens.weight"
    weights[name] = weights[name][:-1]
    torch.save(state, tmp_path / "other.pt")
    assert "has another vocabulary" in error_of(tmp_path / "other.pt", "RTE", *given)
    state["cfg"]["model"] = Namespace(arch="roberta")  # as in checkpoints of the method fairseq
    torch.save(state, tmp_path / "fairseqs.pt")
    other = error_of(tmp_path / "fairseqs.pt", "RTE", *given)
    assert "has the architecture roberta" in other
    other = ("glue/mini", "base", "task=RTE", f"starts_from={checkpoint}", *given[2:])
    assert "was trained with rope in linear attention, not base in" in error_of(*other, program=train)
    none = ("glue/mini", "rope", "task=RTE", "starts_from=null", *given[2:])
    assert "has no pretrained model: set starts_from to" in error_of(*none, program=train)
    assert not (tmp_path / "r").exists()
