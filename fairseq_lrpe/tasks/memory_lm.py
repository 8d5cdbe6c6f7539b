"""Language models that read a text segment by segment and keep a memory of the segments before."""

from dataclasses import dataclass, field

import numpy as np
import torch
from fairseq.data import FairseqDataset, data_utils, iterators
from fairseq.data.indexed_dataset import MMapIndexedDataset, data_file_path
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import II

from fairseq_lrpe.config import flag
from fairseq_lrpe.programs import one_sentence

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


class Segments(FairseqDataset):
    """The segments of all streams; number t·streams + b is the t-th of the stream b.

    Of N tokens stream b has those from b·N' to (b+1)·N', N' = N // streams. Segment t predicts the tokens
    t·length + 1 to (t+1)·length of its stream from those before them, each once; the last may be shorter.
    """

    def __init__(self, tokens, streams, length, split):
        self.tokens, self.streams, self.length, self.split = tokens, streams, length, split
        self.each = len(tokens) // streams
        if self.each < 2:
            raise ValueError(
                f"the {split} text has {len(tokens):,} tokens, too few for {streams:,} streams: "
                "a stream needs two"
            )
        self.in_each = -(-(self.each - 1) // length)

    def __len__(self):
        return self.in_each * self.streams

    def __getitem__(self, index):
        number, stream = divmod(int(index), self.streams)
        start = stream * self.each + number * self.length
        end = min(start + self.length + 1, (stream + 1) * self.each)
        return int(index), torch.from_numpy(self.tokens[start:end].astype(np.int64))

    def num_tokens(self, index):
        return self.length

    def size(self, index):
        return self.length

    def collater(self, samples):
        """Returns a batch of neighbouring streams at one segment, with its :class:`Segment`."""
        if not samples:
            return {}
        number, stream = divmod(samples[0][0], self.streams)
        tokens = torch.stack([x for _, x in samples])
        return {
            "id": torch.tensor([index for index, _ in samples]),
            "nsentences": len(samples),
            "ntokens": tokens[:, 1:].numel(),
            "net_input": {
                "src_tokens": tokens[:, :-1].contiguous(),
                "src_lengths": torch.full((len(samples),), tokens.size(1) - 1),
                "segment": Segment(self.split, stream, number),
            },
            "target": tokens[:, 1:].contiguous(),
        }

    def batches(self, size, processes):
        """Returns the batches of all processes, ``size`` streams in each, or fewer so that they share evenly.

        A process takes each ``processes``-th of them, and so always the same streams.
        """
        if self.streams % processes:
            raise ValueError(f"{self.streams} streams cannot be shared by {processes} processes")
        share = self.streams // processes
        size = max(n for n in range(1, min(size or share, share) + 1) if share % n == 0)
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
        paths = self.args.data.split(":")
        prefix = f"{paths[(epoch - 1) % len(paths)]}/{split}"
        with one_sentence("fairseq_lrpe"):
            tokens = read_tokens(prefix, self.dictionary)
            streams, length = self.args.streams, self.args.tokens_per_sample
            self.datasets[split] = Segments(tokens, streams, length, split)

    def get_batch_iterator(self, dataset, max_sentences=None, num_shards=1, shard_id=0, epoch=1, **more):
        """Returns the segments in their order, whatever shuffling is asked for."""
        with one_sentence("fairseq_lrpe"):
            batches = dataset.batches(max_sentences, num_shards)
            if dataset.split == "train":
                check_update(dataset.streams, len(batches[0]), num_shards, self.args.update_freq)
        return iterators.EpochBatchIterator(
            dataset,
            dataset.collater,
            batches,
            num_shards=num_shards,
            shard_id=shard_id,
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


def check_flags(args) -> None:
    """Refuses, by ValueError, numbers that cannot be."""
    for name, least in {"streams": 1, "tokens_per_sample": 1, "memory_length": 0, "clamp_length": 0}.items():
        if getattr(args, name) < least:
            asked = f"--{name.replace('_', '-')} {getattr(args, name)}"
            raise ValueError(f"{asked}: at least {least} is needed")
    if args.memory not in MEMORIES:
        raise ValueError(f"unknown memory {args.memory!r}: choose from {', '.join(MEMORIES)}")
    if args.same_length and not args.memory_length:
        raise ValueError("--same-length is for a memory: give --memory-length too")


def check_update(streams: int, size: int, processes: int, update_freq: list[int]) -> None:
    """Refuses, by ValueError, batches that do not make an update of all streams."""
    for steps in update_freq:
        if streams != size * processes * steps:
            raise ValueError(
                f"an update has all {streams} streams, and {size} (--batch-size) × {processes} (processes) × "
                f"{steps} (--update-freq) are {size * processes * steps}: change one of them"
            )


def read_tokens(prefix: str, dictionary) -> np.ndarray:
    """Returns all tokens of a binarised text, as they stand in its file; ValueError if that cannot be."""
    dataset = data_utils.load_indexed_dataset(prefix, dictionary, None)
    if not isinstance(dataset, MMapIndexedDataset):
        raise ValueError(f"{prefix}.bin is missing, or not as fairseq-preprocess writes it (mmap)")
    return np.memmap(data_file_path(prefix), dtype=dataset._index.dtype, mode="r")
