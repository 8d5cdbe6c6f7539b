"""Problems in which only answers are predicted: their sequences, batches and metrics."""

from random import Random

import numpy as np
import pytest
import torch

from fairseq_lrpe.experiments.inference import evaluate_synthetic
from fairseq_lrpe.tasks.answer_problems import ANSWER_PROBLEMS, MQAR, POWER, Needle
from fairseq_lrpe.tasks.synthetic_lm import SyntheticLMConfig, SyntheticLMTask
from fairseq_lrpe.utils.errors import UserError


@pytest.mark.parametrize("length", [32, 33, 64])
def test_recall_asks_for_each_key_once(length):
    problem, counts = MQAR(num_items=8, min_items=2, vocab_size=40), set()
    for seed in range(200):
        tokens, answers = problem.sequence(Random(seed), length, "train")
        pairs = len(answers)
        counts.add(pairs)
        keys, values = tokens[: 2 * pairs : 2].tolist(), tokens[1 : 2 * pairs : 2].tolist()
        assert len(tokens) == length + 1 and len(set(keys)) == len(set(values)) == pairs
        assert set(keys) <= set(range(1, 20)) and set(values) <= set(range(20, 40))
        assert {*zip(tokens[answers - 1].tolist(), tokens[answers].tolist(), strict=True)} == {
            *zip(keys, values, strict=True)
        }
        assert min(answers) > 2 * pairs and ((answers - 1) % 2 == 0).all()
    assert counts == {2, 4, 8}


def test_distances_of_recall_follow_the_power_law():
    problem, length = MQAR(num_items=1, vocab_size=8), 22  # ten possible queries
    found = [int(problem.sequence(Random(seed), length, "train")[1][0] - 3) // 2 for seed in range(20_000)]
    law = np.arange(1.0, 11) ** (POWER - 1)
    frequencies = np.bincount(found, minlength=10) / len(found)
    np.testing.assert_allclose(frequencies, law / law.sum(), atol=0.012)


@pytest.mark.parametrize("name, items, answer", [
    ("copy", [3, 1, 2], [3, 1, 2]),
    ("reverse", [3, 1, 2], [2, 1, 3]),
    ("sort", [3, 1, 3, 2], [1, 2, 3, 3]),
    ("sum", [9, 8, 5], [2]),
    ("parity", [1, 0, 1, 1], [1]),
    ("parity", [1, 0, 1], [0]),
])  # fmt: skip
def test_answers_of_lists(name, items, answer):
    assert ANSWER_PROBLEMS[name]().answer(items) == answer


@pytest.mark.parametrize("name", ["copy", "reverse", "sort", "sum", "parity"])
def test_sequences_of_lists(name):
    problem = ANSWER_PROBLEMS[name](num_items=5, min_items=3, vocab_size=7)
    sizes, symbols = set(), problem.symbols
    for seed in range(100):
        tokens, answers = problem.sequence(Random(seed), 20, "train")
        words = [symbols[token] for token in tokens]
        question, rest = " ".join(words).split(" = ")
        items = question.removeprefix("> ").split()
        sizes.add(len(items))
        expected = [*map(str, problem.answer([*map(int, items)])), "#"]
        assert [words[i] for i in answers] == expected == rest.split()[: len(expected)]
        assert set(rest.split()[len(expected) :]) == {"#"} and len(tokens) == 21
    assert sizes == {3, 4, 5}


@pytest.mark.parametrize("split", ["train", "test"])
def test_needles_lie_in_the_text_of_their_split(split, data_bin, text_folder):
    problem = Needle(haystack=str(data_bin))
    lines = (text_folder / f"{split}.txt").read_text().splitlines()
    text = " ".join(["", *(word for line in lines for word in (*line.split(), "</s>")), ""])
    symbols, quarters = problem.symbols, set()
    for seed in range(60):
        tokens, answers = problem.sequence(Random(seed), 47, split)
        words = [symbols[token] if token >= 0 else "</s>" for token in tokens]
        needle, question = words.index("<needle>"), words.index("<question>")
        assert len(words) == 48 and question == 40 and list(answers) == [43, 44, 45, 46, 47]
        key, number = words[41:43], words[43:]
        assert words[needle + 1 : needle + 8] == [*key, *number]
        assert "".join(key).isalpha() and "".join(number).isdigit()
        assert f" {' '.join([*words[:needle], *words[needle + 8 : 40]])} " in text
        assert problem.quarter(tokens) == 1 + 4 * needle // 33  # before, between or after 32 words
        quarters.add(problem.quarter(tokens))
    assert quarters == {1, 2, 3, 4}


def task_of(**flags):
    small = {"problem": "mqar", "num_items": 4, "vocab_size": 16, "tokens_per_sample": 24, "seed": 1}
    return SyntheticLMTask(SyntheticLMConfig(**{**small, **flags}))


@pytest.mark.parametrize("problem", ["mqar", "copy"])
def test_only_answers_are_targets(problem):
    task = task_of(problem=problem)
    task.load_dataset("train")
    data, pad = task.dataset("train"), task.dictionary.pad()
    batch = data.collater([data[i] for i in range(8)])
    source = batch["net_input"]["src_tokens"]
    for row in range(8):
        tokens, answers = task.problem.sequence(data.random(row), 24, "train")
        expected = torch.full((25,), pad)
        for i in answers:
            expected[i] = int(tokens[i]) + task.dictionary.nspecial
        assert torch.equal(batch["target"][row], expected[1:])
        assert (source[row] - task.dictionary.nspecial).tolist() == list(tokens)[:-1]
    assert batch["ntokens"] == batch["target"].ne(pad).sum() and not source.eq(pad).any()


class Perfect(torch.nn.Module):
    """Predicts the answers of the sequences of a split; ``wrong`` replaces the answers of the first half."""

    def __init__(self, task, wrong=None, split="test"):
        super().__init__()
        self.weight, self.task, self.row, self.wrong = torch.nn.Parameter(torch.zeros(())), task, 0, wrong
        self.split = split

    def forward(self, tokens):
        data = self.task.dataset(self.split)
        target = data.collater([data[self.row + i] for i in range(len(tokens))])["target"]
        if self.wrong is not None:
            is_first = torch.arange(self.row, self.row + len(tokens)) < evaluate_synthetic.SEQUENCES // 2
            target = torch.where(is_first[:, None], self.wrong, target)
        self.row += len(tokens)
        return 100 * torch.nn.functional.one_hot(target, len(self.task.dictionary)).float(), None


def test_metrics_of_a_perfect_and_a_wrong_model():
    task = task_of()
    found = evaluate_synthetic.evaluate(Perfect(task), task)["measured"]
    assert found == {"nats": pytest.approx(0, abs=1e-6), "accuracy": 100.0, "exact": 100.0}
    found = evaluate_synthetic.evaluate(Perfect(task, wrong=task.dictionary.unk()), task)["measured"]
    assert found["exact"] == 50 and found["accuracy"] == pytest.approx(50, abs=5)


def test_validation_sequences_are_evaluated():
    task = task_of()
    model = Perfect(task, split="valid")
    assert evaluate_synthetic.evaluate(model, task, "valid")["measured"]["accuracy"] == 100
    assert model.row == len(task.dataset("valid"))


@pytest.mark.parametrize("length, count", [(24, 512), (1500, 349), (9000, 128)])
def test_long_sequences_are_fewer(length, count):
    task = task_of(tokens_per_sample=length)
    model = Perfect(task)
    evaluate_synthetic.evaluate(model, task)
    assert model.row == count


def test_metrics_of_needles_in_each_quarter(data_bin):
    task = task_of(problem="needle", haystack=str(data_bin))
    found = evaluate_synthetic.evaluate(Perfect(task, wrong=task.dictionary.unk()), task)["measured"]
    data, half = task.dataset("test"), evaluate_synthetic.SEQUENCES // 2
    quarters = [task.problem.quarter(data[i][1][0] - task.dictionary.nspecial) for i in range(2 * half)]
    for n in set(quarters):
        right, wrong = quarters[half:].count(n), quarters[:half].count(n)
        assert found[f"quarter_{n}"] == pytest.approx(100 * right / (right + wrong))


def test_text_of_needles_is_too_short(data_bin):
    with pytest.raises(UserError, match="tokens for valid, fewer than the 9999984 needed"):
        Needle(haystack=str(data_bin)).sequence(Random(1), 9_999_999, "valid")


def test_text_of_needles_has_to_be_prepared():
    with pytest.raises(UserError) as end:
        task_of(problem="needle", haystack="data/none/bin")
    assert "data/none/bin has no dict.txt: pass a folder of binarized text; `" in str(end.value)
