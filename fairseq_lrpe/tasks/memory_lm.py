"""fairseq task of language modeling in consecutive segments, with a memory of previous segments."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from fairseq.data import indexed_dataset, iterators
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import II

from fairseq_lrpe.config import flag
from fairseq_lrpe.config_validation import check_range
from fairseq_lrpe.tasks.datasets import SequenceDataset
from fairseq_lrpe.utils.cli import file_errors
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.suggest import check_flag

MEMORIES = ("hidden", "state")


@dataclass
class MemoryLMConfig(LanguageModelingConfig):
    """Flags of the task ``memory_lm``; --tokens-per-sample is the length of a segment."""

    streams: int = flag(60, "number of contiguous parts of the text that are processed in parallel")
    memory_length: int = flag(0, "number of positions before a segment to which the segment attends")
    memory: str = flag(
        "hidden",
        "kind of memory: hidden (inputs of each layer at the last --memory-length positions) or state "
        "(running sums of linear attention over all previous positions)",
    )
    clamp_length: int = flag(
        0, "maximum distance in encodings, which replaces larger distances (0: no maximum)"
    )
    same_length: bool = flag(
        False, "limit the attention of each position to the last --memory-length positions, including itself"
    )
    update_freq: list[int] = field(default=II("optimization.update_freq"))


@dataclass(frozen=True)
class Segment:
    """Identity of a batch: segment ``number`` of consecutive streams of a split, from ``stream`` on."""

    split: str
    stream: int
    number: int


class SegmentDataset(SequenceDataset):
    """Dataset of the segments of all streams of a text; sample t·streams + b is segment t of stream b.

    A text of N tokens is split into ``streams`` contiguous parts. Segment t predicts tokens t·length + 1
    to (t+1)·length of its stream; the last segment may be shorter.

    In training, stream b has the N' = N // streams tokens from b·N' on. In evaluation, every token but the
    first is predicted once: stream b has the tokens from b·(N-1) // streams to (b+1)·(N-1) // streams, both
    inclusive, and streams that are shorter by one end with ``pad``.
    """

    def __init__(self, tokens: np.ndarray, streams: int, length: int, split: str, pad: int):
        if len(tokens) // streams < length + 1:
            raise UserError(
                f"the {split} text has {len(tokens):,} tokens, {len(tokens) // streams:,} in each of "
                f"{streams:,} streams, but a segment of {length:,} needs {length + 1:,}: "
                "reduce --streams or --tokens-per-sample"
            )
        self.tokens = tokens
        self.streams = streams
        self.length = length
        self.split = split
        self.pad = pad
        bounds = np.arange(streams + 1) * (len(tokens) // streams)
        overlap = 0
        if split != "train":
            bounds = np.arange(streams + 1) * (len(tokens) - 1) // streams
            overlap = 1
        self.starts = bounds[:-1]
        self.ends = bounds[1:] + overlap
        self.stream_length = int((self.ends - self.starts).max())
        self.segments = -(-(self.stream_length - 1) // length)

    def __len__(self):
        return self.segments * self.streams

    def __getitem__(self, index):
        number, stream = divmod(int(index), self.streams)
        start = int(self.starts[stream]) + number * self.length
        tokens = self.tokens[start : min(start + self.length + 1, int(self.ends[stream]))]
        size = min(self.length + 1, self.stream_length - number * self.length)
        padded = np.full(size, self.pad, np.int64)
        padded[: len(tokens)] = tokens
        return int(index), torch.from_numpy(padded)

    def collater(self, samples):
        """Returns a batch of segments with the same number, with their :class:`Segment` in ``net_input``."""
        batch = super().collater(samples)
        if batch:
            number, stream = divmod(samples[0][0], self.streams)
            batch["net_input"]["segment"] = Segment(self.split, stream, number)
            batch["ntokens"] = int(batch["target"].ne(self.pad).sum())
        return batch

    def batches(self, limit: int | None, processes: int) -> list[list[int]]:
        """Returns the indices of each batch, in order; process i uses batches i, i + processes, ...

        A batch has at most ``limit`` streams. The streams are grouped in the same way for every segment.
        """
        if self.streams % processes:
            raise UserError(
                f"--streams {self.streams} must be a multiple of the number of processes, {processes}"
            )
        share = self.streams // processes
        size = min(limit or share, share)
        while share % size:
            size -= 1
        return [list(range(i, i + size)) for i in range(0, len(self), size)]


@register_task("memory_lm", dataclass=MemoryLMConfig)
class MemoryLMTask(LanguageModelingTask):
    """Language modeling of contiguous streams of text by models that have a memory."""

    @classmethod
    def setup_task(cls, args, **kwargs):
        check_flag("memory", args.memory, MEMORIES)
        check_range("streams", args.streams, 1)
        check_range("memory_length", args.memory_length, 0)
        check_range("clamp_length", args.clamp_length, 0)
        if args.memory == "state" and args.memory_length:
            raise UserError("--memory state includes all previous positions: omit --memory-length")
        for name in ("same_length", "clamp_length"):
            if getattr(args, name) and not args.memory_length:
                remedy = "omit it" if args.memory == "state" else "pass --memory-length, too"
                raise UserError(f"--{name.replace('_', '-')} requires a hidden memory: {remedy}")
        return super().setup_task(args, **kwargs)

    @staticmethod
    def check_arguments(args):
        """Raises a UserError unless --sample-break-mode is eos in generation, and none in other commands."""
        generating = hasattr(args, "beam")
        mode = args.sample_break_mode
        needed = "eos" if generating else "none"
        if mode != needed:
            purpose = "generation" if generating else "training and evaluation"
            raise UserError(f"{purpose} by memory_lm requires --sample-break-mode {needed}, not {mode}")

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        """Loads a split as streams, or for generation (--sample-break-mode eos) as lines."""
        if self.args.sample_break_mode == "eos":
            return super().load_dataset(split, epoch, combine, **kwargs)
        paths = self.args.data.split(os.pathsep)
        prefix = Path(paths[(epoch - 1) % len(paths)], split)
        streams = self.args.streams
        length = self.args.tokens_per_sample
        with file_errors():
            tokens = read_tokens(prefix)
        pad = self.dictionary.pad()
        self.datasets[split] = SegmentDataset(tokens, streams, length, split, pad)

    def get_batch_iterator(self, dataset, max_tokens=None, max_sentences=None, epoch=1, **kwargs):
        """Returns an iterator over batches of segments, which are in order instead of shuffled."""
        if not isinstance(dataset, SegmentDataset):  # lines for generation
            sizes = {"max_tokens": max_tokens, "max_sentences": max_sentences, "epoch": epoch}
            return super().get_batch_iterator(dataset, **sizes, **kwargs)
        streams = dataset.streams
        processes = kwargs.get("num_shards", 1)
        limits = [max_sentences, max_tokens and max(1, max_tokens // dataset.length)]
        batches = dataset.batches(min(filter(None, limits), default=None), processes)
        for steps in self.args.update_freq if dataset.split == "train" else []:
            size = len(batches[0])
            if streams != size * processes * steps:
                raise UserError(
                    f"an update must have all {streams} streams, but {size} (streams per batch) × "
                    f"{processes} (processes) × {steps} (--update-freq) is {size * processes * steps}: "
                    "change --batch-size, --max-tokens or --update-freq"
                )
        return iterators.EpochBatchIterator(
            dataset,
            dataset.collater,
            batches,
            num_shards=processes,
            shard_id=kwargs.get("shard_id", 0),
            epoch=epoch,
            num_workers=kwargs.get("num_workers", 0),
            buffer_size=kwargs.get("data_buffer_size", 0),
            disable_shuffling=True,
        )

    def eval_lm_dataloader(self, dataset, batch_size=None, context_window=0, **kwargs):
        if context_window:
            raise UserError("memory_lm does not support --context-window: pass --memory-length")
        return super().eval_lm_dataloader(dataset, batch_size=batch_size, **kwargs)

    def max_positions(self):
        return None


def read_tokens(prefix: Path) -> np.ndarray:
    """Returns all tokens of a binarized text as a memory map."""
    index = indexed_dataset.MMapIndexedDataset.Index(f"{prefix}.idx")
    return np.memmap(f"{prefix}.bin", index.dtype, "r")
