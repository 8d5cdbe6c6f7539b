"""Lets a trained language model of problems answer some: how many results are right, and which are not.

Written are {"measured": {"correct", "problems", "accuracy"}, "answers": [{"question", "right", "given"}]}; of
Search, which asks nothing, {"measured": {"floor"}}.
"""

import argparse
import json
from random import Random
from statistics import fmean

import torch
from fairseq import checkpoint_utils

import fairseq_lrpe.models  # noqa: F401  (registers the architectures)
from fairseq_lrpe.checkpoint import read_checkpoint
from fairseq_lrpe.files import write_whole
from fairseq_lrpe.programs import a_path, one_sentence

PROBLEMS = 128
"""As many as the paper's page has; the same for every model."""


@torch.no_grad()
def complete(model, questions: list[torch.Tensor], length: int, end: int) -> list[list[int]]:
    """Returns what the model says after each question, the most probable next token each time, up to ``end``.

    All questions go side by side, a token at a time with the model's state; what of a sequence is longer than
    ``length`` is left out.
    """
    given = torch.tensor([len(question) for question in questions])
    tokens = torch.full((len(questions), length), end)
    for row, question in zip(tokens, questions, strict=True):
        row[: len(question)] = question
    tokens, state = tokens.to(next(model.parameters()).device), {}
    given, ended = given.to(tokens.device), torch.zeros(len(questions), dtype=torch.bool).to(tokens.device)
    for at in range(1, length):
        said = model.decoder(tokens[:, :at], incremental_state=state)[0][:, -1].argmax(-1)
        answers = given <= at
        tokens[:, at] = torch.where(answers, said, tokens[:, at])
        ended |= answers & (said == end)
        if ended.all():
            break
    texts = [row[n:].tolist() for row, n in zip(tokens, given.tolist(), strict=True)]
    return [text[: text.index(end) + 1] if end in text else text for text in texts]


@torch.no_grad()
def accuracy(model, questions: list[torch.Tensor], answers: list[torch.Tensor]) -> float:
    """Returns the percentage of the answers' tokens that are the most probable ones after the true ones."""
    right = total = 0
    for question, answer in zip(questions, answers, strict=True):
        tokens = torch.cat([question, answer]).to(next(model.parameters()).device)
        said = model(tokens[None, :-1])[0][0].argmax(-1)[len(question) - 1 :]
        right += (said == tokens[len(question) :]).sum().item()
        total += len(answer)
    return 100 * right / total


def result(answer: str) -> str:
    """Returns what follows the last == of an answer; all of it where there is none."""
    return answer.rpartition("==")[2]


def solve(model, task) -> dict:
    """Returns what is written of a model and its problems."""
    problem, length = task.problem, task.cfg.tokens_per_sample
    if not hasattr(problem, "problem"):
        task.load_dataset("test")
        test = task.dataset("test")
        return {"measured": {"floor": fmean(problem.least_loss(test.text(i)) for i in range(len(test)))}}
    asked = [problem.problem(Random(f"problems {index}")) for index in range(PROBLEMS)]
    questions, answers = ([task.encode(pair[part]) for pair in asked] for part in (0, 1))
    said = complete(model, questions, length, task.encode("#").item())
    said = [task.decode(tokens) for tokens in said]
    rows = [
        {"question": question, "right": answer, "given": given}
        for (question, answer), given in zip(asked, said, strict=True)
    ]
    correct = sum(result(row["right"]) == result(row["given"]) for row in rows)
    measured = {"correct": correct, "problems": PROBLEMS, "accuracy": accuracy(model, questions, answers)}
    return {"measured": measured, "answers": rows}


def main():
    parser = argparse.ArgumentParser(prog="solve", description=__doc__)
    parser.add_argument("checkpoint", type=a_path)
    parser.add_argument("out", type=a_path, help="the JSON file that is written")
    parser.add_argument("--cpu", action="store_true", help="use no GPU")
    args = parser.parse_args()
    with one_sentence("solve"):
        state = read_checkpoint(args.checkpoint, "scripts/train.sh roper/... makes one")
        if state["cfg"]["task"].get("_name") != "synthetic_lm":
            raise ValueError(f"{args.checkpoint} is no model of the task synthetic_lm")
        [model], _, task = checkpoint_utils.load_model_ensemble_and_task([str(args.checkpoint)])
        model.eval()
        if torch.cuda.is_available() and not args.cpu:
            model.cuda()
        write_whole(args.out, json.dumps(solve(model, task), indent=1) + "\n")


if __name__ == "__main__":
    main()
