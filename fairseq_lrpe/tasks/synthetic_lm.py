"""Language models of algorithmic problems, whose examples are made while they train.

``python -m fairseq_lrpe.tasks.synthetic_lm PROBLEM --seed S --count N`` prints example sequences.
"""

from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from dataclasses import dataclass, fields
from random import Random
from typing import Optional

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II

from fairseq_lrpe.config import flag
from fairseq_lrpe.programs import at_least, one_sentence
from fairseq_lrpe.tasks.problems import PROBLEMS, problem_of
from fairseq_lrpe.tasks.sequences import Predicted

SEQUENCES = {"train": 10_000, "valid": 128, "test": 1024}
"""Of an epoch, and of the splits to evaluate, which are the same for every seed."""


@dataclass
class SyntheticLMConfig(FairseqDataclass):
    """Declares the flags of the task; a problem reads those that are its own."""

    problem: str = flag("search", f"what the text is: {', '.join(PROBLEMS)}")
    tokens_per_sample: int = flag(512, "characters of a sequence that are predicted")
    digits: int = flag(8, "addition: the most digits of a number")
    letters: int = flag(13, "index: the letters of a string")
    first: int = flag(48, "search: random letters at first")
    copied: int = flag(48, "search: letters of a copy")
    between: int = flag(4, "search: random letters after a copy")
    seed: int = II("common.seed")
    # A language model of fairseq asks its task for these.
    add_bos_token: bool = flag(False, "not used")
    # fairseq's parser knows no "int | None".
    max_target_positions: Optional[int] = flag(None, "the longest sequence the model reads")  # noqa: UP045


class Sequences(Predicted):
    """Sequences of a problem; number ``index`` follows from seed, epoch and index alone."""

    can_reuse_epoch_itr_across_epochs = False  # workers that go on would stay in their first epoch

    def __init__(self, task, length, count, source):
        self.task, self.length, self.count = task, length, count
        self.source, self.epoch = source, 1  # what the seeds are made from

    def set_epoch(self, epoch):
        self.epoch = epoch

    def text(self, index: int) -> str:
        """Returns a sequence, one character longer than what is predicted of it."""
        return self.task.problem.text(Random(f"{self.source} {self.epoch} {index}"), self.length + 1)

    def __getitem__(self, index):
        return index, self.task.encode(self.text(int(index)))

    def __len__(self):
        return self.count


class Evaluated(Sequences):
    """Sequences that are the same in every epoch."""

    def set_epoch(self, epoch):
        pass


@register_task("synthetic_lm", dataclass=SyntheticLMConfig)
class SyntheticLMTask(FairseqTask):
    """fairseq's task of it: no files, a dictionary of the problem's characters, splits train, valid, test."""

    def __init__(self, cfg, **_):
        super().__init__(cfg)
        with one_sentence("fairseq_lrpe"):
            self.problem = problem_of(cfg.problem, cfg, cfg.tokens_per_sample)
        self.dictionary = Dictionary()
        self.numbers = torch.zeros(128, dtype=torch.long)  # of each character's code
        for character in self.problem.characters:
            self.numbers[ord(character)] = self.dictionary.add_symbol(character)

    def encode(self, text: str) -> torch.Tensor:
        """Returns the token of each character."""
        return self.numbers[torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8).long()]

    def decode(self, tokens: list[int]) -> str:
        """Returns the characters of tokens."""
        return "".join(self.dictionary[token] for token in tokens)

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        if split not in SEQUENCES:
            raise SystemExit(f"fairseq_lrpe: no split {split!r}: choose from {', '.join(SEQUENCES)}")
        cls, source = (Sequences, f"train {self.cfg.seed}") if split == "train" else (Evaluated, split)
        length = self.cfg.tokens_per_sample
        self.datasets[split] = cls(self, length, SEQUENCES[split], source)

    @property
    def source_dictionary(self):
        return self.dictionary

    @property
    def target_dictionary(self):
        return self.dictionary

    def max_positions(self):
        return self.cfg.tokens_per_sample


def main():
    parser = ArgumentParser("python -m fairseq_lrpe.tasks.synthetic_lm", description=__doc__.splitlines()[0])
    parser.formatter_class = ArgumentDefaultsHelpFormatter
    parser.add_argument("problem", choices=PROBLEMS, help="what the text is")
    parser.add_argument("--seed", type=at_least(1), default=1, help="of the training")
    parser.add_argument("--count", type=at_least(1), default=1, help="sequences to print")
    for f in fields(SyntheticLMConfig):
        if f.name in ("tokens_per_sample", "digits", "letters", "first", "copied", "between"):
            name = "--" + f.name.replace("_", "-")
            parser.add_argument(name, type=at_least(1), default=f.default, help=f.metadata["help"])
    args = vars(parser.parse_args())
    count = args.pop("count")
    with one_sentence("synthetic_lm"):
        task = SyntheticLMTask(SyntheticLMConfig(**args))
        task.load_dataset("train")
        for index in range(count):
            print(task.datasets["train"].text(index))


if __name__ == "__main__":
    main()
