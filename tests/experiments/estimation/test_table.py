"""The option --estimate of `lrpe table` and `lrpe train`."""

import json
import re
from pathlib import Path

import pytest
from tiny import run_here

from fairseq_lrpe.cli import table, train
from fairseq_lrpe.experiments.estimation import costs
from fairseq_lrpe.experiments.estimation import table as estimates
from fairseq_lrpe.experiments.estimation.corpora import BYTES, GPT2
from fairseq_lrpe.experiments.execution.launch import Launch
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.experiments.spec.experiment import Experiment

SMALL = (
    "batch.total=4 batch.per_gpu=4 train.tokens_per_sample=32 train.decoder_layers=1 "
    "train.decoder_embed_dim=32 train.decoder_ffn_embed_dim=64 updates=4 evaluations.test=null "
    "train.log_interval=1"
).split()


def estimate(main, *words):
    """Returns ({run: cells}, the lines below the table)."""
    done = run_here(main, "--estimate", *words)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines()]
    return {row[0]: row[1:] for row in rows if row}, done.stdout.rpartition("┘")[2].strip().splitlines()


def first_hours(rows):
    return next(iter(rows.values()))[-1]


def refused(main, *words):
    done = run_here(main, "--estimate", *words)
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 1
    return line


def estimated(experiment, attention="linear", method="base", **changes):
    loaded = Experiment.load(experiment)
    [run] = loaded.runs(attention, method, [1], changes)
    return costs.estimate_training(Job(loaded, run, Path("nowhere"), Launch(1, 1, False, "fp16")))


def test_largest_table_groups_trials_and_seeds(tmp_path):
    rows, lines = estimate(table.main, "tmlr_table1", "--results", tmp_path / "results")
    assert len(rows) == 7 + 7 * 8 + 1
    count, parameters, tokens, *_ = rows["roberta/wikibook/linear_base"]
    assert (count, tokens) == ("1", f"{512 * 512 * 23000:.2e}".replace("e+0", "e"))
    count, fine_tuned, _, _, _, disk, _ = rows["glue/wikibook/linear_base/task=RTE"]
    assert count == str(5 * 4)
    head = 768 * 768 + 768 + 2 * 768 + 2
    parameters, fine_tuned = (int(text.replace(",", "")) for text in (parameters, fine_tuned))
    assert fine_tuned == parameters + head
    assert float(disk) == pytest.approx(5 * 10 * fine_tuned / 1e9, rel=0.01)  # of the chosen trials
    assert rows["all that is left"][0] == f"{7 + 7 * 8 * 5 * 4:,}"
    assert lines[0].startswith("Left: ") and "on 1 V100, one training after the other" in lines[0]
    assert not (tmp_path / "results").exists()


def test_finished_runs_and_recorded_speeds(data_bin, tmp_path):
    words = ["lm/mini", "rope", "--results", tmp_path, *SMALL, f"data={data_bin}"]
    assert run_here(train.main, *words, "--cpu").returncode == 0
    [folder] = tmp_path.rglob("seed-1")
    trained, *_ = re.findall(r"num. trained: ([\d,]+)\)", (folder / "train.log").read_text())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    speed = json.loads((folder / "evaluation.json").read_text())["evaluations"]["training"]

    rows, lines = estimate(train.main, *words, "--seed", 1, 2, "--on", "here")
    run, *_ = rows
    assert str(folder.relative_to(tmp_path)).startswith(run)  # the name is wrapped
    assert rows[run][:3] == ["2, 1 finished", trained, "5.12e2"]  # 4 updates of 4 × 32 tokens
    seconds = 4 * 4 * 32 / speed["tokens_per_second"]
    assert rows[run][-1] == f"{estimates.number(seconds / 3600)}*" and rows["all that is left"][0] == "1"
    assert any(line.startswith("Hours*: the recorded speed") for line in lines)

    rows, _ = estimate(train.main, *words, "--on", "here")
    run, *_ = rows
    assert rows[run][0] == "1, 1 finished" and rows[run][-1] == "0"
    rows, _ = estimate(train.main, *words, "--seed", 2, "--on", "v100")  # recorded on a CPU
    run, *_ = rows
    assert "*" not in rows[run][-1]
    rows, lines = estimate(train.main, "lm/mini", "base", *words[2:], "--on", "here")
    assert first_hours(rows) == "-"
    assert any("unknown for 1 trainings, because no run like them is finished" in line for line in lines)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_recorded_speeds_of_a_gpu(tmp_path):
    folder = tmp_path / "lm/wikitext103/linear_base/seed-3"
    folder.mkdir(parents=True)
    training = {"tokens_per_second": 4e5}
    (folder / "evaluation.json").write_text(json.dumps({"evaluations": {"training": training}}))
    settings = {"gpus": 4, "nodes": 2, "gpu_names": ["NVIDIA A100-SXM4-80GB (cuda:0)"] * 4}
    (folder / "run.json").write_text(json.dumps(settings))
    words = ["lm/wikitext103", "base", "--results", tmp_path, "--gpus", 8]
    hours = 50000 * 128 * 512 / 4e5 / 3600
    for card in ("a100", "here"):
        rows, _ = estimate(train.main, *words, "--on", card)
        assert first_hours(rows) == f"{estimates.number(hours)}*"
    rows, lines = estimate(train.main, *words, "--on", "v100")
    assert "*" not in first_hours(rows) and "on 8 V100s" in lines[0]


def test_published_numbers_of_parameters():
    # TMLR's models with the vocabularies of docs/tasks.md.
    assert estimated("lra/text").parameters == 547_714 + 125 * 128
    assert estimated("lra/listops").parameters == 533_770 + 128
    assert BYTES == (260,) and GPT2 == (50_264,)


@pytest.mark.parametrize(
    ("experiment", "attention", "method"),
    [
        ("lm/transformer_xl", "softmax", "xl"),
        ("mt/wmt14_en_de", "softmax", "fairseq"),
        ("questions/squad", "softmax", "gcdf"),
        ("imagenet/deit_small", "linear", "tmlr_type1"),
        ("lra/retrieval", "linear", "per"),
        ("roper/addition", "softmax", "roper"),
        ("lm/extrapolation", "softmax", "fire"),
        ("lm/extrapolation", "linear", "xpos"),
    ],
)
def test_every_kind_is_estimated_without_data(experiment, attention, method):
    one = estimated(experiment, attention, method)
    # At least the products of all parameters but the embeddings.
    assert one.flops > one.work["tokens"] * one.parameters and one.memory > 20 * one.parameters


def test_cards():
    words = ["lm/wikitext103", "base", "--results", "nowhere"]
    hours = {}
    for card, peak in (("v100", 125), ("a100", 312), ("h100", 989)):
        rows, lines = estimate(train.main, *words, "--on", card)
        hours[card] = float(first_hours(rows)) * peak
        assert f"35% of the {card.upper()}'s peak of {peak} TFLOP/s in fp16" in lines[1]
    assert max(hours.values()) < 1.1 * min(hours.values())
    rows, _ = estimate(train.main, *words, "--precision", "fp32")
    assert float(first_hours(rows)) == pytest.approx(hours["v100"] / 15.7, rel=0.06)


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (table.main, ["tmlr_table5", "--dry-run"], "table: --estimate and --dry-run cannot be combined"),
        (train.main, ["lm/mini", "base", "--dry-run"], "train: --estimate and --dry-run cannot be combined"),
        (
            train.main,
            ["lm/books", "base", "--precision", "bf16"],
            "V100 has no bf16: use --precision fp16",
        ),
        (train.main, ["lm/books", "base", "--gpus", 3], "is not a multiple of 3 GPUs × 8 sequences"),
        (train.main, ["lm/books", "base", "data=nowhere"], "the vocabulary is not known before the data is"),
        (train.main, ["lm/books", "base", "--", "--nosuch", "1"], "unrecognized arguments: --nosuch 1"),
        (
            train.main,
            ["lm/books", "base", "train.activation_fn=x"],
            "argument --activation-fn: invalid",
        ),
    ],
)
def test_errors(main, words, message):
    assert message in refused(main, *words)


def test_what_cannot_be_estimated_is_listed(monkeypatch):
    known = dict(estimates.CARDS)
    assert set(known) == {"v100", "a100", "h100"}
    rows, lines = estimate(table.main, "tmlr_table4", "--results", "nowhere", "--gpus", 8)
    assert rows["lra/image/linear_base"][1:] == ["-"] * 6
    assert any(line.startswith("Not estimated: lra/image: the total batch of 100") for line in lines)
    assert any(line.startswith("lra/text: assumes the longest texts") for line in lines)
