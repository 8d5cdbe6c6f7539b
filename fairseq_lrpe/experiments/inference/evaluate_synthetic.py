"""Evaluate a language model on the synthetic problem of its training.

EVALUATIONS is a JSON object {NAME: {"split": "test", SIZE: N, ..}, ..}. The sizes num_items, min_items and
tokens_per_sample replace those of the training. The split "valid" has validation sequences instead of test
sequences (not addition and index). The results of an evaluation are written to the JSON file
OUT/problems-NAME.json, as {"measured": {METRIC: VALUE, ..}}:

  addition, index: "correct" results of "problems", "accuracy" (percentage of correct answer characters
    with teacher forcing); the file also has the generated "answers"
  search: "floor", the lowest possible loss in nats per character
  others: "nats" per answer token, "accuracy", "exact" (percentage of sequences without errors, both with
    teacher forcing); for needle, "quarter_1" to "quarter_4" are "exact" for needles in a quarter of the text

example:
  lrpe evaluate-synthetic checkpoint_last.pt . '{"longer": {"split": "test", "tokens_per_sample": 512}}'
"""

import json
from random import Random
from statistics import fmean

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from pydantic import RootModel

from fairseq_lrpe.experiments.definition.kinds.synthetic_lm import SyntheticEvaluation, changed_sizes
from fairseq_lrpe.experiments.definition.settings import validate
from fairseq_lrpe.experiments.inference.load import find, load_model
from fairseq_lrpe.tasks.answer_problems import AnswerProblem
from fairseq_lrpe.utils.cli import exit_on_error, new_parser, path_arg
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import output_folder, write_atomic

PROBLEMS = 128
"""Number of problems of addition and index, as in the RoPER paper; all models get the same problems."""
SEQUENCES = 512
"""Number of evaluated sequences of at most 1,024 tokens, for problems in which only answers are predicted."""
LEAST_SEQUENCES = 128
TOKENS = 2**19
"""Total number of tokens of evaluated sequences that are longer; at least LEAST_SEQUENCES are evaluated."""
BATCH_TOKENS = 2**13


@torch.no_grad()
def complete(model, questions: list[torch.Tensor], length: int, end: int) -> list[list[int]]:
    """Returns the tokens of the greedy completion of each question, up to and including the token ``end``.

    The questions are decoded in one batch, with incremental state unless positions are random. A completion
    has no token ``end`` if a question and its completion have reached ``length`` tokens together.

    Args:
        model: the language model.
        questions: the tokens of each question, (n,).
        length: maximum number of tokens of a question and its completion.
        end: the token that ends a completion.
    """
    device = next(model.parameters()).device
    lengths = torch.tensor(list(map(len, questions)), device=device)
    tokens = torch.full((len(questions), length), end, device=device)
    for row, question in zip(tokens, questions, strict=True):
        row[: len(question)] = question
    ended = torch.zeros_like(lengths, dtype=torch.bool)
    # Random positions depend on the length.
    state = None if getattr(model.decoder, "randomized_positions", 0) else {}
    for position in range(1, length):
        logits = model.decoder(tokens[:, :position], incremental_state=state)[0]
        predicted = logits[:, -1].argmax(-1)
        is_answer = lengths <= position
        tokens[:, position] = torch.where(is_answer, predicted, tokens[:, position])
        ended |= is_answer & (predicted == end)
        if ended.all():
            break
    answers = []
    for row, question_length in zip(tokens, lengths.tolist(), strict=True):
        answer = row[question_length:].tolist()
        answers.append(answer[: answer.index(end) + 1] if end in answer else answer)
    return answers


@torch.no_grad()
def accuracy(model, questions: list[torch.Tensor], answers: list[torch.Tensor]) -> float:
    """Returns the percentage of correct tokens in the answers to the questions, with teacher forcing."""
    correct = total = 0
    for question, answer in zip(questions, answers, strict=True):
        tokens = torch.cat([question, answer]).to(next(model.parameters()).device)
        predicted = model(tokens[None, :-1])[0][0].argmax(-1)[len(question) - 1 :]
        correct += (predicted == tokens[len(question) :]).sum().item()
        total += len(answer)
    return 100 * correct / total


@torch.no_grad()
def answer_metrics(model, task, split: str = "test") -> dict[str, float]:
    """Returns {metric: value} of a problem in which only answers are predicted, with teacher forcing.

    All answer tokens of a sequence are correct with teacher forcing if and only if they are correct when they
    are generated. If the answers of a text depend on one place in it, ``quarter_n`` is ``exact`` for texts
    with this place in their n-th quarter.
    """
    device = next(model.parameters()).device
    task.load_dataset(split)
    data = task.dataset(split)
    length = task.cfg.tokens_per_sample
    count = min(len(data), SEQUENCES, max(LEAST_SEQUENCES, TOKENS // length))
    size = max(1, BATCH_TOKENS // length)
    losses = []  # of each answer token
    correct = []  # of each answer token
    exact = []  # of each sequence
    quarters = []  # of each sequence
    for start in range(0, count, size):
        samples = [data[i] for i in range(start, min(start + size, count))]
        batch = data.collater(samples)
        target = batch["target"].to(device)
        is_answer = target.ne(task.dictionary.pad())
        scores = model(batch["net_input"]["src_tokens"].to(device))[0].float()
        losses.append(F.cross_entropy(scores[is_answer], target[is_answer], reduction="none"))
        is_right = scores.argmax(-1).eq(target)
        correct.append(is_right[is_answer])
        exact.append((is_right | ~is_answer).all(-1))
        for _, (tokens, _) in samples:
            quarters.append(task.problem.quarter(tokens - task.dictionary.nspecial))
    is_exact = torch.cat(exact)
    metrics = {
        "nats": _mean(torch.cat(losses)),
        "accuracy": 100 * _mean(torch.cat(correct)),
        "exact": 100 * _mean(is_exact),
    }
    for number in (1, 2, 3, 4):
        if number in quarters:
            is_inside = torch.tensor([quarter == number for quarter in quarters], device=device)
            metrics[f"quarter_{number}"] = 100 * _mean(is_exact[is_inside])
    return metrics


def _mean(values):
    return values.double().cpu().mean().item()


def evaluate(model, task, split: str = "test") -> dict:
    """Returns the content of the JSON file for a model's problem: {"measured": {metric: value}, ...}."""
    torch.manual_seed(1)  # some encodings, such as SPE, draw random numbers
    if isinstance(task.problem, AnswerProblem):
        return {"measured": answer_metrics(model, task, split)}
    if hasattr(task.problem, "problem"):
        return evaluate_results(model, task)
    task.load_dataset(split)
    data = task.dataset(split)
    losses = [task.problem.least_loss(data.text(i)) for i in range(len(data))]
    return {"measured": {"floor": fmean(losses)}}


def evaluate_results(model, task) -> dict:
    """Returns the metrics of the answers that a model generates for addition or index, and the answers."""
    pairs = [task.problem.problem(Random(f"problems {index}")) for index in range(PROBLEMS)]
    questions = []
    answers = []
    for question, answer in pairs:
        questions.append(task.encode(question))
        answers.append(task.encode(answer))
    completed = complete(model, questions, task.cfg.tokens_per_sample, task.encode("#").item())
    rows = []
    correct = 0
    for (question, answer), tokens in zip(pairs, completed, strict=True):
        generated = task.decode(tokens)
        rows.append({"question": question, "right": answer, "given": generated})
        correct += _result(answer) == _result(generated)
    accuracy_of_tokens = accuracy(model, questions, answers)
    measured = {"correct": correct, "problems": PROBLEMS, "accuracy": accuracy_of_tokens}
    return {"measured": measured, "answers": rows}


def _result(answer):
    """Returns the result in an answer, which consists of steps and the result."""
    return answer.rpartition("==")[2]


def read_json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        example = '{"test": {"split": "test"}}'
        raise UserError(f"{text!r} is not JSON: pass an object such as {example}") from None


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe evaluate-synthetic", __doc__, "CHECKPOINT OUT EVALUATIONS [--cpu]")
    text = "run folder or checkpoint of a model of the task synthetic_lm"
    parser.add_argument("checkpoint", type=path_arg, help=text)
    parser.add_argument("out", type=path_arg, help="folder to which the JSON files are written")
    parser.add_argument("evaluations", type=read_json, help="JSON object {NAME: {SETTING: VALUE}}")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(arguments)
    with exit_on_error("evaluate-synthetic"), output_folder(args.out):
        evaluations = validate(RootModel[dict[str, SyntheticEvaluation]], args.evaluations).model_dump()
        checkpoint, _ = find(args.checkpoint, ["synthetic_lm"])
        trained = load_model(checkpoint, cpu=args.cpu)
        for name, settings in evaluations.items():
            task = type(trained.task)(OmegaConf.merge(trained.task.cfg, changed_sizes(settings)))
            results = evaluate(trained.model, task, settings["split"])
            write_atomic(args.out / f"problems-{name}.json", json.dumps(results, indent=1) + "\n")
