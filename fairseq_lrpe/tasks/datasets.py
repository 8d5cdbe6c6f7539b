"""Base classes of this plugin's datasets and tasks."""

from argparse import Namespace
from dataclasses import is_dataclass
from pathlib import Path

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.tasks import FairseqTask

from fairseq_lrpe.data import layout
from fairseq_lrpe.utils.cli import file_errors


class SequenceDataset(FairseqDataset):
    """Base class of language modeling datasets, whose items are (index, tokens).

    All tokens except the first are predicted; an item has at most ``length`` predicted tokens.
    """

    length: int

    def num_tokens(self, index):
        return self.length

    size = num_tokens

    def collater(self, samples):
        """Returns a language modeling batch of items whose sequences have equal lengths."""
        if not samples:
            return {}
        indices, sequences = zip(*samples, strict=True)
        tokens = torch.stack(sequences)
        source = tokens[:, :-1].contiguous()
        target = tokens[:, 1:].contiguous()
        lengths = torch.full((len(samples),), source.size(1))
        return {
            "id": torch.tensor(list(map(int, indices))),
            "nsentences": len(samples),
            "ntokens": target.numel(),
            "net_input": {"src_tokens": source, "src_lengths": lengths},
            "target": target,
        }


class LabeledDataset(FairseqDataset):
    """Base class of datasets of labeled rows, whose items are (index, input, label).

    ``net_input(inputs)`` returns the keyword arguments of the model for a batch of inputs.
    """

    can_reuse_epoch_itr_across_epochs = False  # because batches differ between epochs

    def __init__(self, task, split: str):
        self.cfg = task.cfg
        self.prefix = Path(task.cfg.data, split)
        self.labels = np.load(f"{self.prefix}.label.npy", mmap_mode="r")

    def __len__(self):
        return len(self.labels)

    def collater(self, samples):
        """Returns a batch, which has no targets if a label is unknown (-1)."""
        if not samples:
            return {}
        indices, inputs, labels = zip(*samples, strict=True)
        batch = {
            "id": torch.tensor(indices),
            "nsentences": len(samples),
            "ntokens": len(samples),  # by which fairseq divides losses and gradients
            "net_input": self.net_input(inputs),
        }
        if min(labels) >= 0:
            batch["target"] = torch.tensor(labels)
        return batch


class LabeledTask(FairseqTask):
    """Base class of classification tasks; ``about`` is the data's metadata, ``labels`` are the class names.

    ``check_arguments(cfg)`` raises a UserError for invalid flags of the task.
    """

    target_dictionary = None  # otherwise, criteria would ignore the label with the index of padding

    def __init__(self, cfg, **_):
        # A node of fairseq's configuration refers to the whole configuration, which cannot be pickled.
        super().__init__(Namespace(**(vars(cfg) if is_dataclass(cfg) else cfg)))
        with file_errors():
            self.check_arguments(cfg)
            self.about = layout.read_metadata(Path(cfg.data))
        self.labels = self.about["labels"]

    def __getstate__(self):
        # Workers that are not forked, as on macOS, get a copy of the task. The iterators contain the model.
        unused = ("datasets", "dataset_to_epoch_iter", "state")
        return {name: value for name, value in vars(self).items() if name not in unused}
