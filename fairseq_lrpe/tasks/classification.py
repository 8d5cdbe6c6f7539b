"""Classification of texts, of pairs of texts and of pictures, all of which are tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset
from fairseq.data.data_utils import collate_tokens
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task

from fairseq_lrpe import layouts
from fairseq_lrpe.config import flag
from fairseq_lrpe.encodings import check_choice
from fairseq_lrpe.programs import one_sentence

POOLINGS = ("mean", "max", "first")
PAIRS = ("joined", "apart")
POOL = 4096
"""Rows that are sorted by length for batches with little padding, while the others stay at random."""


@dataclass
class ClassificationConfig(FairseqDataclass):
    """Declares the flags of the task."""

    # fairseq's parser knows no "str | None".
    data: Optional[str] = flag(None, "the folder that data_prep wrote")  # noqa: UP045
    pooling: str = flag(
        "mean",
        "what of the last layer is classified: the mean or the maximum over the tokens, or the first, which "
        f"is then <s>: {', '.join(POOLINGS)}",
    )
    pairs: str = flag(
        "joined",
        "a pair is one text, <s> a </s> b </s>, with an embedding for each half (joined), or two, whose "
        "vectors are compared (apart)",
    )
    max_positions: int = flag(512, "the longest input; a longer one is cut")


def check_request(args, training: bool) -> None:
    """Refuses, by ValueError, flags of the task that cannot be met, and word vectors that are missing."""
    check_choice("pooling", args.pooling, POOLINGS)
    check_choice("pairs", args.pairs, PAIRS)
    about = layouts.about(Path(args.data))
    joined = is_joined(about, args.pairs)
    least = 5 if joined else 1 + (args.pooling == "first")
    if args.max_positions < least:
        what = "<s> a </s> b </s>" if joined else "<s> and a text"
        raise ValueError(f"--max-positions {args.max_positions}: {what} has {least} tokens at least")
    numbers = "pixels" in about and getattr(args, "pixels", "linear") == "linear"
    if numbers and (joined or args.pooling == "first"):
        raise ValueError("<s> is no pixel's number: give --pixels embedding, or do without first and joined")
    if training and getattr(args, "embed_path", None) and not Path(args.embed_path).is_file():
        raise ValueError(f"--embed-path {args.embed_path}: there is no such file: leave it out, or name one")


def is_joined(about: dict, pairs: str) -> bool:
    """Returns whether the inputs are pairs that are read as one text."""
    return about["inputs"] > 1 and pairs == "joined"


def shortened(first: int, second: int, most: int) -> tuple[int, int]:
    """Returns the lengths of a pair that has ``most`` tokens at most: the longer text is cut first."""
    if first + second > most:
        half = most // 2
        first = min(first, max(most - half, most - second))
        second = min(second, most - first)
    return first, second


class Labelled(FairseqDataset):
    """The rows of a split of a task: (index, the inputs as tokens, label), -1 where that is not known."""

    can_reuse_epoch_itr_across_epochs = False  # each epoch has other batches

    def __init__(self, task, split: str):
        prefix, self.shuffle = Path(task.cfg.data, split), split == "train"
        self.cfg, self.dictionary, self.joined = task.cfg, task.dictionary, task.joined
        self.labels = np.load(f"{prefix}.label.npy", mmap_mode="r")
        self.texts = [MMapIndexedDataset(f"{prefix}.input{i}") for i in range(task.about["inputs"])]
        lengths = [np.maximum(text.sizes.astype(np.int64), 1) for text in self.texts]
        sizes = (
            sum(lengths) + 3 if self.joined else np.maximum.reduce(lengths) + (self.cfg.pooling == "first")
        )
        self.sizes = np.minimum(sizes, self.cfg.max_positions)

    def __len__(self):
        return len(self.labels)

    def num_tokens(self, index):
        return self.sizes[index]

    def num_tokens_vec(self, indices):
        return self.sizes[indices]

    def size(self, index):
        return self.sizes[index]

    def ordered_indices(self):
        """Returns all rows, shorter ones first; to train, at random but for the length within a pool.

        fairseq calls it with numpy's seed made of its own and the epoch.
        """
        order = np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))
        pools = np.array_split(order, -(-len(self) // POOL)) if self.shuffle else [order]
        return np.concatenate([pool[np.argsort(self.sizes[pool], kind="stable")] for pool in pools])

    def __getitem__(self, index):
        texts = [text[index] for text in self.texts]
        # A text without a word is one unknown word.
        texts = [text if len(text) else text.new_tensor([self.dictionary.unk()]) for text in texts]
        return int(index), self.inputs(texts), int(self.labels[index])

    def inputs(self, texts: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns what the model reads of a row's texts, cut to the longest."""
        most, begin = self.cfg.max_positions, texts[0].new_tensor([self.dictionary.bos()])
        if self.joined:
            end = begin.new_tensor([self.dictionary.eos()])
            a, b = shortened(*map(len, texts), most - 3)
            return [torch.cat([begin, texts[0][:a], end, texts[1][:b], end])]
        if self.cfg.pooling == "first":
            return [torch.cat([begin, text[: most - 1]]) for text in texts]
        return [text[:most] for text in texts]

    def collater(self, samples):
        """Returns a batch: the tokens, of a pair that is apart also the second ones, and the labels.

        A batch with a row whose label is not known has no target.
        """
        if not samples:
            return {}
        indices, inputs, labels = zip(*samples, strict=True)
        found = {}
        for name, texts in zip(("src", "second"), zip(*inputs, strict=True), strict=False):
            found[f"{name}_tokens"] = collate_tokens(texts, self.dictionary.pad())
            found[f"{name}_lengths"] = torch.tensor([len(text) for text in texts])
        target = {} if min(labels) < 0 else {"target": torch.tensor(labels)}
        return {
            "id": torch.tensor(indices),
            "nsentences": len(samples),
            "ntokens": len(samples),  # fairseq divides losses and gradients by it
            "net_input": found,
            **target,
        }


@register_task("classification", dataclass=ClassificationConfig)
class ClassificationTask(FairseqTask):
    """fairseq's task of it: one vector of an input, or of two, is classified.

    ``about`` says what the folder's inputs are, and ``labels`` are their names.
    """

    def __init__(self, cfg, **_):
        super().__init__(cfg)
        with one_sentence("fairseq_lrpe"):
            self.about = layouts.about(Path(cfg.data))
        self.labels = self.about["labels"]
        self.dictionary = Dictionary.load(str(Path(cfg.data, "dict.txt")))

    @property
    def joined(self) -> bool:
        """Whether an input is a pair in one text."""
        return is_joined(self.about, self.cfg.pairs)

    @property
    def apart(self) -> bool:
        """Whether an input is a pair in two texts."""
        return self.about["inputs"] > 1 and not self.joined

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        self.datasets[split] = Labelled(self, split)

    def build_model(self, cfg, from_checkpoint=False):
        """Returns the model; a new one starts from the vectors of its --embed-path, if it has one."""
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint and getattr(cfg, "embed_path", None):
            with one_sentence("fairseq_lrpe"):
                model.start_from_vectors(self.dictionary, Path(cfg.embed_path))
        return model

    @property
    def source_dictionary(self):
        return self.dictionary

    @property
    def target_dictionary(self):
        """Returns None: the criterion takes a target as it is, none of them for padding."""

    def max_positions(self):
        return self.cfg.max_positions
