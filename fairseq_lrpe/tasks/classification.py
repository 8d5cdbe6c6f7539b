"""Classification of texts, pairs of texts and images given as tokens."""

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

from fairseq_lrpe.config import check_range, flag
from fairseq_lrpe.data import layout
from fairseq_lrpe.encodings import check_choice
from fairseq_lrpe.utils.cli import exit_on_error

POOLINGS = ("mean", "max", "first")
PAIRS = ("joined", "apart")
POOL = 4096
"""Rows that are sorted by length, for batches with little padding; the order is random otherwise."""


@dataclass
class ClassificationConfig(FairseqDataclass):
    """Flags of the task."""

    # fairseq's parser does not support "str | None".
    data: Optional[str] = flag(None, "data folder that data_prep wrote")  # noqa: UP045
    pooling: str = flag(
        "mean",
        "pooling of the last layer: the mean or maximum over tokens, or the first token, which is then <s>: "
        f"{', '.join(POOLINGS)}",
    )
    pairs: str = flag(
        "joined",
        "pairs of texts are one input, <s> a </s> b </s>, with segment embeddings (joined), or two inputs "
        "whose vectors are compared (apart)",
    )
    max_positions: int = flag(512, "maximum input length; longer inputs are truncated")


def check_arguments(args, training: bool) -> None:
    """Raises a ValueError for invalid flags of the task, or if the file of word vectors does not exist."""
    check_choice("pooling", args.pooling, POOLINGS)
    check_choice("pairs", args.pairs, PAIRS)
    about = layout.read_metadata(Path(args.data))
    joined = is_joined(about, args.pairs)
    check_range("max_positions", args.max_positions, 5 if joined else 1 + (args.pooling == "first"))
    linear_pixels = "pixels" in about and getattr(args, "pixels", "linear") == "linear"
    if linear_pixels and (joined or args.pooling == "first"):
        raise ValueError(
            "--pixels linear has no <s>: pass --pixels embedding, --pooling mean or --pairs apart"
        )
    if training and getattr(args, "embed_path", None) and not Path(args.embed_path).is_file():
        raise ValueError(f"--embed-path {args.embed_path}: the file does not exist")


def is_joined(about: dict, pairs: str) -> bool:
    """Returns whether inputs are pairs of texts that are read as one."""
    return about["inputs"] > 1 and pairs == "joined"


def truncated_lengths(first: int, second: int, total: int) -> tuple[int, int]:
    """Returns the lengths of a pair truncated to ``total`` tokens; the longer text is truncated first."""
    if first + second > total:
        half = total // 2
        first = min(first, max(total - half, total - second))
        second = min(second, total - first)
    return first, second


class LabeledDataset(FairseqDataset):
    """The rows of a split as (index, input token sequences, label); unknown labels are -1."""

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

    def size(self, index):
        return self.sizes[index]

    num_tokens_vec = num_tokens

    def ordered_indices(self):
        """Returns all rows sorted by length; for training, random pools of rows that are sorted by length.

        fairseq calls this method with numpy's seed set to its own and the epoch.
        """
        order = np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))
        pools = np.array_split(order, -(-len(self) // POOL)) if self.shuffle else [order]
        return np.concatenate([pool[np.argsort(self.sizes[pool], kind="stable")] for pool in pools])

    def __getitem__(self, index):
        texts = [text[index] for text in self.texts]
        # An empty text becomes one unknown word.
        texts = [text if len(text) else text.new_tensor([self.dictionary.unk()]) for text in texts]
        return int(index), self.inputs(texts), int(self.labels[index])

    def inputs(self, texts: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the truncated inputs of the model for the texts of a row."""
        limit, begin = self.cfg.max_positions, texts[0].new_tensor([self.dictionary.bos()])
        if self.joined:
            end = begin.new_tensor([self.dictionary.eos()])
            a, b = truncated_lengths(*map(len, texts), limit - 3)
            return [torch.cat([begin, texts[0][:a], end, texts[1][:b], end])]
        if self.cfg.pooling == "first":
            return [torch.cat([begin, text[: limit - 1]]) for text in texts]
        return [text[:limit] for text in texts]

    def collater(self, samples):
        """Returns a batch; separate pairs have "second" tokens, and rows of unknown label no target."""
        if not samples:
            return {}
        indices, inputs, labels = zip(*samples, strict=True)
        net_input = {}
        for name, texts in zip(("src", "second"), zip(*inputs, strict=True), strict=False):
            net_input[f"{name}_tokens"] = collate_tokens(texts, self.dictionary.pad())
            net_input[f"{name}_lengths"] = torch.tensor([len(text) for text in texts])
        return {
            "id": torch.tensor(indices),
            "nsentences": len(samples),
            "ntokens": len(samples),  # fairseq divides losses and gradients by it
            "net_input": net_input,
            **({} if min(labels) < 0 else {"target": torch.tensor(labels)}),
        }


@register_task("classification", dataclass=ClassificationConfig)
class ClassificationTask(FairseqTask):
    """Classification of one pooled vector, or of the two of a separate pair.

    Attributes:
        about: description of the data folder, see :func:`fairseq_lrpe.data.layout.read_metadata`.
        labels: names of the labels.
        joined: whether inputs are pairs of texts that are read as one.
        apart: whether inputs are pairs of separate texts.
    """

    target_dictionary = None  # the criterion must not take a label for padding

    def __init__(self, cfg, **_):
        super().__init__(cfg)
        with exit_on_error("fairseq_lrpe"):
            self.about = layout.read_metadata(Path(cfg.data))
        self.labels = self.about["labels"]
        self.joined = is_joined(self.about, cfg.pairs)
        self.apart = self.about["inputs"] > 1 and not self.joined
        self.dictionary = Dictionary.load(str(Path(cfg.data, "dict.txt")))

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        self.datasets[split] = LabeledDataset(self, split)

    def build_model(self, cfg, from_checkpoint=False):
        """Returns the model; a new one is initialized from the word vectors of --embed-path."""
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint and getattr(cfg, "embed_path", None):
            with exit_on_error("fairseq_lrpe"):
                model.load_word_vectors(self.dictionary, Path(cfg.embed_path))
        return model

    @property
    def source_dictionary(self):
        return self.dictionary

    def max_positions(self):
        return self.cfg.max_positions
