"""fairseq task of classifying texts, pairs of texts, and images as token sequences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task

from fairseq_lrpe.config import flag
from fairseq_lrpe.config_validation import check_range
from fairseq_lrpe.data import layout
from fairseq_lrpe.tasks.datasets import LabeledDataset, LabeledTask
from fairseq_lrpe.utils.cli import file_errors
from fairseq_lrpe.utils.suggest import check_flag

POOLINGS = ("mean", "max", "first")
PAIRS = ("joined", "apart")
POOL = 4096
"""Number of random training rows that are sorted by length, to reduce padding."""


@dataclass
class ClassificationConfig(FairseqDataclass):
    """Flags of the task ``classification``."""

    data: Optional[str] = flag(None, "data folder that data_prep has prepared")  # noqa: UP045
    pooling: str = flag(
        "mean",
        "how the last layer's outputs are pooled: mean or max over tokens, or the output of <s>, which is "
        "then added as the first token (first)",
    )
    pairs: str = flag(
        "joined",
        "how pairs of texts are encoded: as one input, <s> a </s> b </s>, with segment embeddings (joined), "
        "or separately, as two inputs whose pooled outputs are compared (apart)",
    )
    max_positions: int = flag(512, "maximum input length in tokens; longer inputs are truncated")


def is_joined(metadata: dict, pairs: str) -> bool:
    """Returns whether inputs are pairs of texts that are joined into one sequence."""
    return metadata["inputs"] > 1 and pairs == "joined"


def truncated_lengths(first: int, second: int, total: int) -> tuple[int, int]:
    """Returns the lengths of two texts cut to ``total`` in all: first the longer one, down to half of it."""
    if first + second > total:
        half = total // 2
        first = min(first, max(total - half, total - second))
        second = min(second, total - first)
    return first, second


class TextDataset(LabeledDataset):
    """Dataset of the rows of a split as (index, token sequences, label); unknown labels are -1."""

    def __init__(self, task, split: str):
        super().__init__(task, split)
        self.shuffle = split == "train"
        self.task = task
        count = task.about["inputs"]
        self.texts = [MMapIndexedDataset(f"{self.prefix}.input{i}") for i in range(count)]
        lengths = [np.maximum(text.sizes.astype(np.int64), 1) for text in self.texts]
        begin = self.cfg.pooling == "first"
        sizes = sum(lengths) + 3 if task.joined else np.maximum.reduce(lengths) + begin
        self.sizes = np.minimum(sizes, self.cfg.max_positions)

    def num_tokens(self, index):
        return self.sizes[index]

    size = num_tokens_vec = num_tokens

    def ordered_indices(self):
        """Returns all indices, sorted by length; in training, each random pool of ``POOL`` rows is sorted."""
        # fairseq has seeded numpy with --seed, after version 0.12.2 plus the epoch.
        if self.shuffle:
            pools = np.array_split(np.random.permutation(len(self)), -(-len(self) // POOL))
        else:
            pools = [np.arange(len(self))]
        return np.concatenate([pool[np.argsort(self.sizes[pool], kind="stable")] for pool in pools])

    def __getitem__(self, index):
        inputs = self.task.inputs([text[index] for text in self.texts])
        return int(index), inputs, int(self.labels[index])

    def net_input(self, inputs):
        return self.task.net_input(inputs)


@register_task("classification", dataclass=ClassificationConfig)
class ClassificationTask(LabeledTask):
    """Classification of texts, pairs of texts, and images as token sequences.

    Attributes:
        joined: whether inputs are pairs of texts that are joined into one sequence.
        apart: whether inputs are pairs of texts that are encoded separately.
    """

    def __init__(self, cfg, **_):
        super().__init__(cfg)
        self.joined = is_joined(self.about, cfg.pairs)
        self.apart = self.about["inputs"] > 1 and not self.joined
        self.dictionary = Dictionary.load(str(Path(cfg.data, "dict.txt")))

    @staticmethod
    def check_arguments(cfg):
        check_flag("pooling", cfg.pooling, POOLINGS)
        check_flag("pairs", cfg.pairs, PAIRS)
        joined = is_joined(layout.read_metadata(Path(cfg.data)), cfg.pairs)
        least = 5 if joined else 1 + (cfg.pooling == "first")
        check_range("max_positions", cfg.max_positions, least)

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        self.datasets[split] = TextDataset(self, split)

    def inputs(self, texts: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the model's truncated inputs for the texts of a row."""
        # An empty text becomes one unknown word.
        texts = [text if len(text) else text.new_tensor([self.dictionary.unk()]) for text in texts]
        limit = self.cfg.max_positions
        begin = texts[0].new_tensor([self.dictionary.bos()])
        if self.joined:
            end = begin.new_tensor([self.dictionary.eos()])
            a, b = truncated_lengths(*map(len, texts), limit - 3)
            return [torch.cat([begin, texts[0][:a], end, texts[1][:b], end])]
        if self.cfg.pooling == "first":
            return [torch.cat([begin, text[: limit - 1]]) for text in texts]
        return [text[:limit] for text in texts]

    def net_input(self, inputs: list[list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Returns the padded tokens and their lengths; pairs that are encoded separately have two of each."""
        batch = {}
        for name, texts in zip(("src", "second"), zip(*inputs, strict=True), strict=False):
            batch[f"{name}_tokens"] = collate_tokens(texts, self.dictionary.pad())
            batch[f"{name}_lengths"] = torch.tensor(list(map(len, texts)))
        return batch

    def build_model(self, cfg, from_checkpoint=False):
        """Returns the model, whose embeddings --embed-path initializes if the model is to be trained."""
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint and getattr(cfg, "embed_path", None):
            with file_errors():
                model.load_word_vectors(self.dictionary, Path(cfg.embed_path))
        return model

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
        model.set_dummy(ignore_grad)  # fairseq ignores the loss of a dummy batch
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    @property
    def source_dictionary(self):
        return self.dictionary

    def max_positions(self):
        return self.cfg.max_positions
