"""A trained language model: the lengths at which it can be evaluated on the data of its run."""

from functools import cached_property
from typing import TYPE_CHECKING

from fairseq_lrpe.experiments.definition.language_model import ModelFlags
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, file_exists

if TYPE_CHECKING:
    from fairseq_lrpe.ops.rope_scaling import RopeScaling


class TrainedLM(ModelFlags):
    """The flags of a trained language model, read from the checkpoint of a job, and its data.

    Raises:
        UserError: if the checkpoint is missing or damaged, or is that of fairseq's own model.
    """

    def __init__(self, job: Job):
        from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint  # imports torch, which takes seconds

        flags = read_checkpoint(job.checkpoint, "train the run first")["cfg"]["model"]
        if "token_positions" not in flags:
            wrong = "is fairseq's own model, whose maximum length is not known"
            raise UserError(f"{job.checkpoint} {wrong}: choose a method of this plugin")
        super().__init__(flags)
        self.scalings: dict[tuple[str, int], RopeScaling] = {}
        self.data = REPOSITORY / job.cfg.data

    @cached_property
    def limit(self) -> tuple[float, str]:
        """The maximum number of tokens that the model can read, and the reason for this limit."""
        return self.max_length()

    def rope_scaling(self, text, length):
        # The encoding that is built to check a scaling takes time.
        key = (text, length)
        if key not in self.scalings:
            self.scalings[key] = super().rope_scaling(text, length)
        return self.scalings[key]

    def tokens(self, split: str) -> int:
        """Returns the number of tokens of a split of the run's data."""
        from fairseq.data.indexed_dataset import make_dataset  # this import takes seconds

        path = self.data / split
        if not file_exists(path.with_suffix(".idx")):
            raise UserError(f"{path}.idx does not exist: prepare the {split} split of the run's data")
        dataset = make_dataset(str(path), impl="mmap")  # must outlive its sizes, which are memory-mapped
        return int(dataset.sizes.sum())

    def check_length(self, split: str, length: int) -> None:
        """Raises UserError if a block of ``length`` tokens is too long for the model or for the split."""
        limit, reason = self.limit
        if length > limit:
            wrong = f"this model reads at most {limit:,} tokens, not {length:,}, because {reason}"
            raise UserError(f"{wrong}: use shorter blocks")
        tokens = self.tokens(split)
        if length > tokens:
            wrong = f"has {tokens:,} tokens, too few for a block of {length:,}"
            raise UserError(f"the {split} split {wrong}: use shorter blocks")
