"""Continue, translate or question text with a trained model, given as a run's folder or a checkpoint file.

A language model continues each prompt, or each line of standard input if there is no --prompt. The text is
printed while it is sampled. A translation model translates each line of standard input. A question generator
reads lines with an answer, a tab, and a text that contains the answer; long texts are truncated around the
answer, with a warning. For example:

  lrpe generate results/lm/mini/linear_rope/seed-1 --prompt "The city" --length 100 --top-p 0.9 --seed 1
  echo "A dog runs." | lrpe generate results/mt/multi30k/linear_base/seed-1
"""

import sys

from fairseq_lrpe.utils.cli import abs_path, exit_on_error, min_int, new_parser, read_stdin_lines
from fairseq_lrpe.utils.errors import UserError, user_errors

SAMPLING = {
    "length": ("N", min_int(1), 200, "number of tokens to sample"),
    "temperature": ("T", float, 1.0, "divisor of the logits; 0 selects the most likely token"),
    "top_k": ("K", min_int(0), 0, "sample from the K most likely tokens; 0 means all"),
    "top_p": ("P", float, 1.0, "sample from the most likely tokens whose probabilities sum to P"),
    "seed": ("S", min_int(0), None, "seed of the random numbers of each prompt (default: random)"),
}
"""{option of language models: (name of the value, type, default, help)}"""


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe generate", __doc__, "RUN [options] [< TEXT]")
    parser.add_argument("run", type=abs_path, metavar="RUN", help="run folder, or checkpoint file")
    group = parser.add_argument_group("language models")
    group.add_argument("--prompt", nargs="+", metavar="TEXT", help="beginnings of texts to continue")
    for name, (value, kind, default, text) in SAMPLING.items():
        text += "" if default is None else f" (default: {default})"
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=value, help=text)
    group = parser.add_argument_group("translation and question generation")
    group.add_argument("--beam", type=min_int(1), metavar="B", help="beam size (default: 5)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(arguments)
    with exit_on_error("generate"):
        from fairseq_lrpe.experiments.inference import trained
        from fairseq_lrpe.experiments.inference.generate import BEAM, Generator, Translator
        from fairseq_lrpe.experiments.inference.language_model import LanguageModel
        from fairseq_lrpe.experiments.inference.load import find

        tasks = {x: cls for x, cls in trained.MODELS.items() if issubclass(cls, LanguageModel | Generator)}
        remedy = "train one with `lrpe train lm/...`, `lrpe train mt/...` or `lrpe train questions/...`"
        found = find(args.run, tasks, remedy)
        samples = issubclass(tasks[found.task], LanguageModel)
        options = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
        for name in ["beam"] if samples else ["prompt", *SAMPLING]:
            if getattr(args, name) is not None:
                others = "translation and question generation" if samples else "language models"
                raise UserError(f"--{name.replace('_', '-')} is for {others}, not for {found.task}: omit it")
        lines = args.prompt or read_stdin_lines()
        model = trained.build(found, cpu=args.cpu)
        if samples:
            continue_prompts(model, lines, options)
        elif isinstance(model, Translator):
            print(*model.translate(lines, args.beam or BEAM), sep="\n", end="\n" * bool(lines))
        else:
            ask_questions(model, lines, args.beam or BEAM)


def continue_prompts(model, prompts: list[str], options: dict) -> None:
    """Prints each prompt and its continuation, with a blank line between two texts."""
    for number, prompt in enumerate(prompts):
        stream = model.stream(prompt, **options)  # raises a UserError for an invalid option
        print("\n" * (number > 0) + prompt, end="", flush=True)
        try:
            with user_errors():  # the text may be longer than the model supports
                for text in stream:
                    print(text, end="", flush=True)
        finally:
            print(flush=True)


def ask_questions(model, lines: list[str], beam: int) -> None:
    """Prints a question for each line, which consists of an answer, a tab and a text with the answer."""
    sources = []
    for number, line in enumerate(lines, 1):
        answer, tab, text = line.partition("\t")
        try:
            if not tab:
                raise UserError("there is no tab: expected an answer, a tab, and a text with the answer")
            sources.append(model.source(text, answer))
        except ValueError as error:
            raise UserError(f"line {number}: {error}") from None
        if sources[-1].context_cut:
            message = f"line {number}: the text is too long and was truncated around the answer"
            print(message, file=sys.stderr)
    for question in model.questions(sources, beam):
        print(question)
