"""Language models that read a text segment by segment and keep a memory of the segments before."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from fairseq.data import iterators
from fairseq.data.indexed_dataset import (
    MMapIndexedDataset,
    data_file_path,
    index_file_path,
    infer_dataset_impl,
)
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import II

from fairseq_lrpe.config import flag
from fairseq_lrpe.programs import one_sentence
from fairseq_lrpe.tasks.sequences import Predicted

MEMORIES = ("hidden", "state")


@dataclass
class MemoryLMConfig(LanguageModelingConfig):
    """Declares the flags of the task; --tokens-per-sample is the length of a segment."""

    streams: int = flag(60, "parts of the text that are read side by side, each from its begin to its end")
    memory_length: int = flag(0, "positions before a segment that it sees, as they were when they were read")
    memory: str = flag(
        "hidden",
        "what is kept: hidden (each layer's inputs, the last --memory-length of them) or state (linear "
        "attention's running sums of all positions before)",
    )
    clamp_length: int = flag(0, "the distance from which on all are encoded as this one (0: none)")
    same_length: bool = flag(False, "each position sees as many as --memory-length, itself among them")
    update_freq: list[int] = field(default=II("optimization.update_freq"))


@dataclass(frozen=True)
class Segment:
    """Says where in the text a batch stands: its streams are those from ``stream`` on."""

    split: str
    stream: int
    number: int


class Segments(Predicted):
    """The segments of all streams; number t·streams + b is the t-th of the stream b.

    Of N tokens stream b has those from b·N' to (b+1)·N', N' = N // streams. Segment t predicts the tokens
    t·length + 1 to (t+1)·length of its stream from those before them, each once; the last may be shorter.
    """

    def __init__(self, tokens: np.ndarray, streams: int, length: int, split: str):
        check_text(len(tokens), streams, length, split)
        self.tokens, self.streams, self.length, self.split = tokens, streams, length, split
        self.each = len(tokens) // streams
        self.in_each = -(-(self.each - 1) // length)

    def __len__(self):
        return self.in_each * self.streams

    def __getitem__(self, index):
        number, stream = divmod(int(index), self.streams)
        start = stream * self.each + number * self.length
        end = min(start + self.length + 1, (stream + 1) * self.each)
        return int(index), torch.from_numpy(self.tokens[start:end].astype(np.int64))

    def collater(self, samples):
        """Returns a batch of neighbouring streams at one segment, with its :class:`Segment`."""
        batch = super().collater(samples)
        if batch:
            number, stream = divmod(samples[0][0], self.streams)
            batch["net_input"]["segment"] = Segment(self.split, stream, number)
        return batch

    def batches(self, size: int | None, processes: int) -> list[list[int]]:
        """Returns the batches of all processes in their order: a process takes each ``processes``-th.

        Each has the same streams in every segment, as many as :func:`streams_of_a_batch` says.
        """
        size = streams_of_a_batch(self.streams, size, processes)
        return [list(range(i, i + size)) for i in range(0, len(self), size)]


@register_task("memory_lm", dataclass=MemoryLMConfig)
class MemoryLMTask(LanguageModelingTask):
    """fairseq's language modelling, but of contiguous streams; the model keeps the memory."""

    @classmethod
    def setup_task(cls, args, **kwargs):
        with one_sentence("fairseq_lrpe"):
            check_flags(args)
        return super().setup_task(args, **kwargs)

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        """Loads the streams of a split; with --sample-break-mode eos its lines, to be continued."""
        if self.args.sample_break_mode == "eos":
            return super().load_dataset(split, epoch, combine, **kwargs)
        paths = self.args.data.split(os.pathsep)
        prefix = Path(paths[(epoch - 1) % len(paths)], split)
        streams, length = self.args.streams, self.args.tokens_per_sample
        with one_sentence("fairseq_lrpe"):
            self.datasets[split] = Segments(read_tokens(prefix), streams, length, split)

    def get_batch_iterator(self, dataset, max_tokens=None, max_sentences=None, epoch=1, **more):
        """Returns the segments in their order, whatever shuffling is asked for."""
        if not isinstance(dataset, Segments):  # lines to be continued
            sizes = {"max_tokens": max_tokens, "max_sentences": max_sentences, "epoch": epoch}
            return super().get_batch_iterator(dataset, **sizes, **more)
        processes = more.get("num_shards", 1)
        with one_sentence("fairseq_lrpe"):
            batches = dataset.batches(at_most(max_sentences, max_tokens, dataset.length), processes)
            if dataset.split == "train":
                check_update(dataset.streams, len(batches[0]), processes, self.args.update_freq)
        return iterators.EpochBatchIterator(
            dataset,
            dataset.collater,
            batches,
            num_shards=processes,
            shard_id=more.get("shard_id", 0),
            epoch=epoch,
            num_workers=more.get("num_workers", 0),
            buffer_size=more.get("data_buffer_size", 0),
            disable_shuffling=True,
        )

    def eval_lm_dataloader(self, dataset, batch_size=None, context_window=0, **more):
        with one_sentence("fairseq_lrpe"):
            if context_window:
                raise ValueError("--context-window is for language_modeling: memory_lm has --memory-length")
        return super().eval_lm_dataloader(dataset, batch_size=batch_size, **more)

    def max_positions(self):
        return None


def at_most(sentences: int | None, tokens: int | None, length: int) -> int | None:
    """Returns how many streams a batch may have by --batch-size and --max-tokens, or None for all."""
    limits = [sentences, tokens and max(1, tokens // length)]
    return min((limit for limit in limits if limit), default=None)


def streams_of_a_batch(streams: int, most: int | None, processes: int) -> int:
    """Returns how many streams a batch has: at most so many, so that all batches have as many.

    ValueError if processes cannot share the streams evenly.
    """
    if streams % processes:
        raise ValueError(
            f"--streams {streams} cannot be shared evenly by {processes} processes: give a multiple of them"
        )
    share = streams // processes
    return max(n for n in range(1, min(most or share, share) + 1) if share % n == 0)


def check_request(args, splits: list[str]) -> None:
    """Refuses, by ValueError, arguments of a command that cannot be met with its data."""
    check_flags(args)
    continues = hasattr(args, "beam")
    if args.sample_break_mode != ("eos" if continues else "none"):
        what = "eos: its lines are continued" if continues else "none: it is read in streams"
        raise ValueError(f"--sample-break-mode {args.sample_break_mode}: the text needs {what}")
    if continues:
        return
    folders = args.data.split(os.pathsep)
    for split in splits:
        for folder in folders if split == getattr(args, "train_subset", None) else folders[:1]:
            check_text(len(read_tokens(Path(folder, split))), args.streams, args.tokens_per_sample, split)
    if hasattr(args, "update_freq"):
        processes = max(1, args.distributed_world_size)
        most = at_most(args.batch_size, args.max_tokens, args.tokens_per_sample)
        size = streams_of_a_batch(args.streams, most, processes)
        check_update(args.streams, size, processes, args.update_freq)


def check_flags(args) -> None:
    """Refuses, by ValueError, flags that cannot be met together."""
    if args.memory not in MEMORIES:
        raise ValueError(f"unknown memory {args.memory!r}: choose from {', '.join(MEMORIES)}")
    if args.memory == "state" and args.memory_length:
        raise ValueError("--memory state keeps all there was: leave --memory-length out")
    for name in ("same_length", "clamp_length"):
        if getattr(args, name) and not args.memory_length:
            raise ValueError(f"--{name.replace('_', '-')} is for a memory: give --memory-length too")


def check_text(tokens: int, streams: int, length: int, split: str) -> None:
    """Refuses, by ValueError, a text whose streams are shorter than a segment."""
    if tokens // streams < length + 1:
        raise ValueError(
            f"the {split} text has {tokens:,} tokens, {tokens // streams:,} in each of {streams:,} streams, "
            f"and a segment of {length:,} needs {length + 1:,}: give fewer --streams or --tokens-per-sample"
        )


def check_update(streams: int, size: int, processes: int, update_freq: list[int]) -> None:
    """Refuses, by ValueError, batches that do not make an update of all streams."""
    for steps in update_freq:
        if streams != size * processes * steps:
            raise ValueError(
                f"an update has all {streams} streams, and {size} (--batch-size) × {processes} (processes) × "
                f"{steps} (--update-freq) are {size * processes * steps}: change one of them"
            )


def read_tokens(prefix: Path) -> np.ndarray:
    """Returns all tokens of a binarised text, as they stand in its file; ValueError if that cannot be."""
    if infer_dataset_impl(str(prefix)) != "mmap":
        raise ValueError(f"{prefix}.bin is missing, or not as fairseq-preprocess writes it (mmap)")
    index = MMapIndexedDataset.Index(index_file_path(str(prefix)))
    return np.memmap(data_file_path(str(prefix)), index.dtype, "r")
