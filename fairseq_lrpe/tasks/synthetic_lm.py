"""fairseq task of language modeling on synthetic problems, whose text is generated during training."""

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
from fairseq_lrpe.tasks.answer_problems import AnswerProblem
from fairseq_lrpe.tasks.datasets import SequenceDataset
from fairseq_lrpe.tasks.synthetic_problems import PROBLEMS, build_problem
from fairseq_lrpe.utils.cli import exit_on_error, file_errors, min_int

SEQUENCES = {"train": 10_000, "valid": 128, "test": 1024}
"""Number of sequences of a training epoch and of the other splits."""


@dataclass
class SyntheticLMConfig(FairseqDataclass):
    """Flags of the task ``synthetic_lm``, of which those of other problems than ``problem`` are ignored."""

    problem: str = flag("search", f"kind of problem: {', '.join(PROBLEMS)}")
    tokens_per_sample: int = flag(512, "number of symbols per sequence, without the first one")
    digits: int = flag(8, "addition: maximum number of digits per number")
    letters: int = flag(13, "index: number of letters per string")
    first: int = flag(48, "search: number of random letters at the start")
    copied: int = flag(48, "search: number of letters per copy")
    between: int = flag(4, "search: number of random letters after each copy")
    num_items: int = flag(16, "maximum number of pairs (mqar) or of items (copy, reverse, sort, sum, parity)")
    min_items: int = flag(1, "minimum number of pairs or items, whose number is random")
    vocab_size: int = flag(256, "number of different symbols (mqar) or items (copy, reverse, sort)")
    haystack: Optional[str] = flag(None, "binarized text in which needle hides a number")  # noqa: UP045
    seed: int = II("common.seed")
    # fairseq's language models read the following flags of their task.
    add_bos_token: bool = flag(False, "not used")
    max_target_positions: Optional[int] = flag(None, "maximum sequence length of the model")  # noqa: UP045


class GeneratedDataset(SequenceDataset):
    """Dataset of the generated sequences of a split of a problem.

    A sequence depends only on its index, the split and, in training, the seed and the epoch.
    """

    can_reuse_epoch_itr_across_epochs = False  # reused worker processes would stay in their first epoch

    def __init__(self, task, split):
        self.task = task
        self.split = split
        self.length = task.cfg.tokens_per_sample
        self.epoch = 1

    def set_epoch(self, epoch):
        self.epoch = epoch if self.split == "train" else 1

    def text(self, index: int) -> str:
        """Returns the text with this index of a problem with characters; all but the first are predicted."""
        return self.task.problem.text(self.random(index), self.length + 1)

    def random(self, index: int) -> Random:
        source = f"train {self.task.cfg.seed}" if self.split == "train" else self.split
        return Random(f"{source} {self.epoch} {index}")

    def __getitem__(self, index):
        if not isinstance(self.task.problem, AnswerProblem):
            return index, self.task.encode(self.text(int(index)))
        symbols, answers = self.task.problem.sequence(self.random(int(index)), self.length, self.split)
        target = torch.full((self.length + 1,), self.task.dictionary.pad())  # which criteria ignore
        tokens = torch.as_tensor(symbols) + self.task.dictionary.nspecial
        answers = torch.as_tensor(answers)
        target[answers] = tokens[answers]
        return index, torch.stack([tokens, target])

    def collater(self, samples):
        """Returns a batch; if only answers are predicted, all other targets are padding."""
        if not samples or not isinstance(self.task.problem, AnswerProblem):
            return super().collater(samples)
        batch = super().collater([(index, pair[0]) for index, pair in samples])
        batch["target"] = torch.stack([pair[1, 1:] for _, pair in samples])
        batch["ntokens"] = int(batch["target"].ne(self.task.dictionary.pad()).sum())
        return batch

    def __len__(self):
        return SEQUENCES[self.split]


@register_task("synthetic_lm", dataclass=SyntheticLMConfig)
class SyntheticLMTask(FairseqTask):
    """Language modeling of a problem's characters or symbols, with the splits train, valid and test."""

    def __init__(self, cfg, **_):
        super().__init__(cfg)
        with file_errors():
            self.problem = build_problem(cfg.problem, cfg, cfg.tokens_per_sample)
        self.dictionary = Dictionary()
        self.token_of = torch.zeros(128, dtype=torch.long)  # {character code: token}
        for character in self.problem.characters:
            self.token_of[ord(character)] = self.dictionary.add_symbol(character)
        if isinstance(self.problem, AnswerProblem):
            for symbol in self.problem.symbols:
                self.dictionary.add_symbol(symbol)

    def encode(self, text: str) -> torch.Tensor:
        return self.token_of[torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8).long()]

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.dictionary[token] for token in tokens)

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        self.datasets[split] = GeneratedDataset(self, split)

    @property
    def source_dictionary(self):
        return self.dictionary

    target_dictionary = source_dictionary

    def max_positions(self):
        return self.cfg.tokens_per_sample


def main(arguments: list[str] | None = None) -> None:
    description = "Print training sequences of a synthetic problem."
    parser = ArgumentParser("lrpe synthetic", description=description)
    parser.formatter_class = ArgumentDefaultsHelpFormatter
    parser.add_argument("problem", choices=PROBLEMS, help="kind of problem")
    parser.add_argument("--seed", type=min_int(1), default=1, help="seed of the training run")
    parser.add_argument("--count", type=min_int(1), default=1, help="number of sequences to print")
    parser.add_argument("--haystack", help="binarized text in which needle hides a number")
    for f in fields(SyntheticLMConfig):
        if type(f.default) is int:
            flag_name = "--" + f.name.replace("_", "-")
            parser.add_argument(flag_name, type=min_int(1), default=f.default, help=f.metadata["help"])
    args = vars(parser.parse_args(arguments))
    count = args.pop("count")
    with exit_on_error("lrpe synthetic"):
        task = SyntheticLMTask(SyntheticLMConfig(**args))
        task.load_dataset("train")
        for index in range(count):
            if isinstance(task.problem, AnswerProblem):
                tokens, _ = task.datasets["train"][index][1].tolist()
                print(*(task.dictionary[token] for token in tokens))
            else:
                print(task.datasets["train"].text(index))
