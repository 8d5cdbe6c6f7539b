"""RoPER's synthetic tasks: evaluation, and resuming after kills."""

import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from support.tiny import REPOSITORY, read

from fairseq_lrpe.cli import train
from fairseq_lrpe.experiments.execution.run_files import read_log
from fairseq_lrpe.experiments.inference import evaluate_synthetic
from fairseq_lrpe.experiments.reporting.records import read_run
from fairseq_lrpe.tasks.synthetic_lm import SyntheticLMConfig, SyntheticLMTask

SMALL = ["train.decoder_layers=1", "train.decoder_embed_dim=32", "train.decoder_ffn_embed_dim=64"]
SMALL += ["train.validate_interval_updates=3", "train.save_interval_updates=3", "updates=3"]


def run(folder, experiment, attention, method, *changes):
    words = [experiment, method, "--attention", attention, "--cpu", "--results", str(folder)]
    train.main([*words, *SMALL, *changes])
    [path] = folder.rglob("evaluation.json")
    return path.parent, read(path.parent)["evaluations"]["test"]


@pytest.mark.parametrize("attention, method", [("softmax", "roper"), ("linear", "tmlr_type2")])
def test_evaluation_of_problems(attention, method, tmp_path):
    folder, measured = run(tmp_path, "synthetic_lm/index_mini", attention, method, "train.letters=2")
    log = list(read_log(folder))
    assert math.log(2) * log[-1]["train_loss"] == pytest.approx(measured["nats"], rel=0.5)
    [valid] = [entry for entry in log if entry["kind"] == "valid"]
    assert read_run(folder, tmp_path).curve == {3: pytest.approx(math.log(2) * valid["valid_loss"])}
    assert measured["problems"] == 128 and 0 <= measured["accuracy"] <= 100
    answers = read(folder, "problems-test.json")["answers"]
    right = sum(a["right"].rpartition("==")[2] == a["given"].rpartition("==")[2] for a in answers)
    assert right == measured["correct"] and len(answers) == 128
    assert answers[0]["question"].startswith("?s='") and answers[0]["question"].endswith("]==")


def test_search_has_a_floor(tmp_path):
    changes = ["train.first=8", "train.copied=8", "train.between=1", "train.tokens_per_sample=40"]
    _, measured = run(tmp_path, "synthetic_lm/search_mini", "softmax", "rope", *changes)
    assert measured.keys() == {"settings", "nats", "floor"}
    assert 0.3 < measured["floor"] < math.log(5) < measured["nats"] < 3


def test_answers_are_evaluated_with_other_sizes(tmp_path):
    changes = ["train.num_items=4", "train.tokens_per_sample=24", "train.max_target_positions=64"]
    changes += ["evaluations={test: {split: test, num_items: 8, min_items: 8, tokens_per_sample: 40}}"]
    _, measured = run(tmp_path, "synthetic_lm/mqar_mini", "linear", "rope", *changes)
    assert measured.keys() == {"settings", "nats", "accuracy", "exact"}
    assert measured["settings"]["num_items"] == 8
    assert measured["nats"] == pytest.approx(math.log(260), rel=0.3) and measured["accuracy"] < 10


def test_needles_in_longer_texts(tmp_path, data_bin):
    changes = [f"data={data_bin}", "train.tokens_per_sample=40", "train.max_target_positions=64"]
    changes += ["evaluations={test: {split: test, tokens_per_sample: 56}}"]
    folder, measured = run(tmp_path, "synthetic_lm/needle_mini", "softmax", "nope", *changes)
    quarters = {f"quarter_{n}" for n in (1, 2, 3, 4)}
    assert measured.keys() == {"settings", "nats", "accuracy", "exact"} | quarters
    assert measured["settings"]["tokens_per_sample"] == 56
    assert {"dict.txt", "train.bin"} <= read(folder, "run.json")["data"].keys()


def start_and_kill(words, results, updates, victims):
    command = [sys.executable, "-m", "fairseq_lrpe", "train", *words, "--results", str(results)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while max(map(saved, results.rglob("checkpoint_*_*.pt")), default=0) < updates:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    listed = subprocess.run(["pgrep", "-f", f"fairseq-train .*{results}"], capture_output=True, text=True)
    [training] = listed.stdout.split()
    if "runner" in victims:
        process.kill()
    if "training" in victims:
        os.killpg(int(training), signal.SIGKILL)
    process.communicate()
    assert not list(results.rglob("evaluation.json"))


def saved(checkpoint):
    return int(checkpoint.stem.rpartition("_")[2])


@pytest.mark.slow
def test_killed_run_ends_like_an_uninterrupted_one(tmp_path):
    """The runner, then both processes are killed, and two checkpoints are truncated like interrupted copies.

    The generated examples continue where they stopped.
    """
    changes = ["updates=40", "train.first=8", "train.copied=8", "train.tokens_per_sample=40"]
    changes += ["evaluate.flags.batch_size=64"]
    whole, measured = run(tmp_path / "whole", "synthetic_lm/search_mini", "softmax", "roper", *changes)

    words = ["synthetic_lm/search_mini", "roper", "--attention", "softmax", "--cpu", *SMALL, *changes]
    start_and_kill(words, tmp_path / "killed", 9, {"runner"})
    start_and_kill(words, tmp_path / "killed", 21, {"runner", "training"})
    [last] = (tmp_path / "killed").rglob("checkpoint_last.pt")
    for path, part in ((last, 0.9), (last.with_name("checkpoint_best.pt"), 0)):
        path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])

    folder, again = run(tmp_path / "killed", "synthetic_lm/search_mini", "softmax", "roper", *changes)
    assert again == measured
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        one, other = (torch.load(x / "checkpoints" / name, weights_only=True) for x in (whole, folder))
        torch.testing.assert_close(one["model"], other["model"], rtol=0, atol=0)
    one, other = (without_times(x / "log.jsonl") for x in (whole, folder))
    assert one == other


def without_times(log):
    times = ("wps", "ups", "wall")  # with prefixes, such as train_
    entries = list(read_log(log.parent))
    return [{key: value for key, value in entry.items() if not key.endswith(times)} for entry in entries]


class FakeModel(torch.nn.Module):
    """A model whose next token is a function of the tokens so far."""

    def __init__(self, predict, types):
        super().__init__()
        self.predict, self.types, self.weight = predict, types, torch.nn.Parameter(torch.zeros(()))

    def decoder(self, tokens, incremental_state=None):
        ends = range(1, tokens.size(1) + 1) if incremental_state is None else [tokens.size(1)]
        predicted = torch.tensor([[self.predict(row[:end]) for end in ends] for row in tokens.tolist()])
        return torch.nn.functional.one_hot(predicted, self.types).float(), None

    def forward(self, tokens):
        return self.decoder(tokens)


def test_accuracy_of_perfect_and_silent_models():
    sizes = {"problem": "addition", "digits": 3, "tokens_per_sample": 128, "seed": 1}
    task = SyntheticLMTask(SyntheticLMConfig(**sizes))

    def predict(tokens):
        text = task.decode(tokens)
        question = text[: text.find("; ") + 2]
        if len(question) < 2:
            return task.encode("0").item()
        x, y = map(int, question[3:-2].split("+"))
        whole = "".join(task.problem.of(x, y))
        return task.encode(whole[len(text)] if len(text) < len(whole) else "#").item()

    found = evaluate_synthetic.evaluate(FakeModel(predict, len(task.dictionary)), task)
    assert found["measured"] == {"correct": 128, "problems": 128, "accuracy": 100.0}
    assert all(row["given"] == row["right"] for row in found["answers"])

    model = FakeModel(lambda tokens: task.encode("#").item(), len(task.dictionary))
    silent = evaluate_synthetic.evaluate(model, task)
    assert silent["measured"]["correct"] == 0 and 0 < silent["measured"]["accuracy"] < 10
    assert {row["given"] for row in silent["answers"]} == {"#"}
