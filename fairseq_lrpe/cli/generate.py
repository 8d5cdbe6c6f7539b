"""Continue or translate text, or generate questions, with the model of a run or a checkpoint file.

A language model continues each prompt, or each line of standard input if there is no --prompt. The text is
printed while it is sampled. A translation model translates each line of standard input. A question generator
reads lines with an answer, a tab, and a text that contains the answer, and prints a question for each; long
texts are truncated around the answer, with a warning. For example:

  lrpe generate results/lm/mini/linear_rope/seed-1 --prompt "The city" --length 100 --top-p 0.9 --seed 1
  echo "A dog runs." | lrpe generate results/transformer/multi30k/linear_base/seed-1
"""

import sys
from argparse import SUPPRESS

from fairseq_lrpe.tasks import FAMILIES
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, min_int, new_parser, read_stdin_lines
from fairseq_lrpe.utils.errors import UserError, user_errors

TASKS = ("language_modeling", "memory_lm", "synthetic_lm", "translation", "question_generation")


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe generate", __doc__, "RUN [options] [< TEXT]")
    parser.argument_default = SUPPRESS  # the defaults are those of the models' methods
    parser.add_argument("run", type=abs_path, metavar="RUN", help="run folder, or checkpoint file")
    group = parser.add_argument_group("language models")
    group.add_argument("--prompt", nargs="+", metavar="TEXT", help="beginnings of texts to continue")
    text = "number of tokens to sample (default: 200)"
    group.add_argument("--length", type=min_int(1), metavar="N", help=text)
    text = "divisor of the logits; 0 selects the most likely token (default: 1)"
    group.add_argument("--temperature", type=float, metavar="T", help=text)
    text = "sample from the K most likely tokens (default: all)"
    group.add_argument("--top-k", type=min_int(0), metavar="K", help=text)
    text = "sample from the most likely tokens whose probabilities sum to P (default: 1)"
    group.add_argument("--top-p", type=float, metavar="P", help=text)
    text = "seed of the random numbers for each prompt (default: a random seed)"
    group.add_argument("--seed", type=min_int(0), metavar="S", help=text)
    group = parser.add_argument_group("translation and question generation")
    text = "number of hypotheses in beam search (default: 5)"
    group.add_argument("--beam", type=min_int(1), metavar="B", help=text)
    parser.add_argument("--cpu", action="store_true", default=False, help="do not use a GPU")
    options = vars(parser.parse_args(arguments))
    run = options.pop("run")
    cpu = options.pop("cpu")
    with exit_on_error("generate"):
        from fairseq_lrpe.experiments.inference.load import find, load_model

        checkpoint, settings = find(run, TASKS)
        task = settings["_name"]
        samples = FAMILIES[task] == "lm"
        for name in options:
            if samples == (name == "beam"):
                others = "translation and question generation" if samples else "language models"
                raise UserError(f"--{name.replace('_', '-')} is for {others}, not for {task}: omit it")
        lines = options.pop("prompt", None) or read_stdin_lines()
        model = load_model(checkpoint, cpu=cpu)
        if samples:
            continue_prompts(model, lines, options)
        elif task == "translation":
            for line in model.translate(lines, **options):
                print(line)
        else:
            ask_questions(model, lines, options)


def continue_prompts(model, prompts: list[str], options: dict) -> None:
    """Prints each prompt and its continuation, with a blank line between two texts.

    ``options`` are the arguments of the model's method ``stream``.
    """
    for number, prompt in enumerate(prompts):
        stream = model.stream(prompt, **options)  # raises a ValueError for an invalid option
        print("\n" * (number > 0) + prompt, end="", flush=True)
        try:
            with user_errors():  # the text may be longer than the model supports
                for text in stream:
                    print(text, end="", flush=True)
        finally:
            print(flush=True)


def ask_questions(model, lines: list[str], options: dict) -> None:
    """Prints a question for each line; a line consists of an answer, a tab and a text with the answer."""
    sources = []
    for number, line in enumerate(lines, 1):
        answer, _, text = line.partition("\t")
        try:
            sources.append(model.source(text, answer))
        except ValueError as error:
            raise UserError(f"line {number}: {error}") from None
        if sources[-1].context_cut:
            message = f"line {number}: the text is too long and was truncated around the answer"
            print(message, file=sys.stderr)
    for question in model.questions(sources, **options):
        print(question)
