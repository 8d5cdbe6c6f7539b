"""Classification of pictures that stay files until they are trained on, augmented as DeiT's are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II
from PIL.Image import Image
from torch.utils.data import default_collate

from fairseq_lrpe import layouts
from fairseq_lrpe.config import check_between, flag
from fairseq_lrpe.encodings import check_choice
from fairseq_lrpe.images.augment import cropped, erase, evaluated, standardized
from fairseq_lrpe.images.files import decode
from fairseq_lrpe.images.mixing import mix, soft_targets
from fairseq_lrpe.images.rand_augment import rand_augment
from fairseq_lrpe.programs import one_sentence

RECIPES = ("full", "plain")
MIXINGS = ("mixup_cutmix", "none")
ORDER, PICTURE, BATCH = range(3)
"""What a generator is for, so that no two begin alike."""


@dataclass
class ImageClassificationConfig(FairseqDataclass):
    """Declares the flags of the task."""

    # fairseq's parser knows no "str | None".
    data: Optional[str] = flag(None, "the folder that data_prep wrote")  # noqa: UP045
    image_size: int = flag(224, "pixels of each side of what the model sees")
    recipe: str = flag(
        "full",
        "what becomes of a picture in training: a random crop that may be flipped, RandAugment and erasing "
        "(full), or the crop alone (plain)",
    )
    repeats: int = flag(3, "how often a picture comes in an epoch, of which there are fewer then")
    mixing: str = flag("mixup_cutmix", "pictures of a batch are mixed by Mixup or CutMix, or none are")
    smoothing: float = flag(0.1, "the part of a target that all classes share")
    seed: int = II("common.seed")


def check_request(args) -> None:
    """Refuses, by ValueError, flags of the task that cannot be met."""
    check_choice("recipe", args.recipe, RECIPES)
    check_choice("mixing", args.mixing, MIXINGS)
    check_between("smoothing", args.smoothing, 0, 1)


class Pictures(FairseqDataset):
    """The pictures of a split: (number, pixels (3, S, S), label), as they are evaluated."""

    can_reuse_epoch_itr_across_epochs = False  # each epoch has other batches

    def __init__(self, task, split: str):
        self.prefix, self.cfg, self.classes = Path(task.cfg.data, split), task.cfg, len(task.labels)
        self.labels = np.load(f"{self.prefix}.label.npy", mmap_mode="r")
        # fairseq's dataset would read all of the file first, and make eight bytes of each.
        self.index = MMapIndexedDataset.Index(f"{self.prefix}.input0.idx")
        self.content = np.memmap(f"{self.prefix}.input0.bin", np.uint8, "r")

    def __len__(self):
        return len(self.labels)

    def num_tokens(self, index):
        return 1

    def num_tokens_vec(self, indices):
        return np.ones(len(indices), np.int64)

    def size(self, index):
        return 1

    def ordered_indices(self):
        """Returns all pictures in their order."""
        return np.arange(len(self))

    def image(self, picture: int) -> Image:
        """Returns a picture; ValueError names one that has been damaged since data_prep read it."""
        begin, size = self.index[picture]
        try:
            return decode(self.content[begin : begin + size])
        except ValueError as error:
            raise ValueError(f"{self.prefix}.input0.bin: picture {picture:,} is damaged ({error})") from None

    def __getitem__(self, index):
        image = evaluated(self.image(int(index)), self.cfg.image_size)
        return int(index), standardized(image), int(self.labels[index])

    def collater(self, samples):
        """Returns a batch of images (B, 3, S, S), with their labels as target."""
        if not samples:
            return {}
        numbers, images, labels = zip(*samples, strict=True)
        return {
            "id": torch.tensor(numbers),
            "nsentences": len(samples),
            "ntokens": len(samples),  # fairseq divides losses and gradients by it
            "net_input": {"images": default_collate(images)},  # in a worker, into memory that is shared
            "target": torch.tensor(labels),
        }


class Augmented(Pictures):
    """The pictures to train on, number p·repeats + r being the r-th time that picture p comes in an epoch.

    An epoch has as many as there are pictures, so that each of a part 1 / repeats of them comes ``repeats``
    times, side by side: the order of DeiT's sampler. What is random follows from seed, epoch and numbers.
    """

    epoch = 1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def generator(self, purpose: int, *numbers: int) -> np.random.Generator:
        """Returns the generator of this epoch for a purpose."""
        return np.random.default_rng([purpose, self.cfg.seed % 2**32, self.epoch, *numbers])

    def ordered_indices(self):
        """Returns the numbers of the pictures that come in this epoch."""
        count, repeats = len(self), self.cfg.repeats
        pictures = self.generator(ORDER).permutation(count)[: -(-count // repeats)]
        return (pictures[:, None] * repeats + np.arange(repeats)).ravel()[:count]

    def __getitem__(self, index):
        picture, rng = int(index) // self.cfg.repeats, self.generator(PICTURE, int(index))
        image, full = cropped(self.image(picture), self.cfg.image_size, rng), self.cfg.recipe == "full"
        pixels = standardized(rand_augment(image, rng) if full else image)
        if full:
            erase(pixels, rng)
        return int(index), pixels, int(self.labels[picture])

    def collater(self, samples):
        """Returns a batch whose target is (B, classes), mixed as its images are."""
        batch = super().collater(samples)
        if batch:
            batch["target"] = soft_targets(batch["target"], self.classes, self.cfg.smoothing)
            if self.cfg.mixing != "none":
                rng = self.generator(BATCH, *batch["id"].tolist())
                mixed = mix(batch["net_input"]["images"], batch["target"], rng)
                batch["net_input"]["images"], batch["target"] = mixed
        return batch


@register_task("image_classification", dataclass=ImageClassificationConfig)
class ImageClassificationTask(FairseqTask):
    """fairseq's task of it; ``labels`` are the names of the classes."""

    def __init__(self, cfg, **_):
        super().__init__(cfg)
        with one_sentence("fairseq_lrpe"):
            check_request(cfg)
            self.about = layouts.about(Path(cfg.data))
        self.labels = self.about["labels"]

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        self.datasets[split] = (Augmented if split == "train" else Pictures)(self, split)

    @property
    def source_dictionary(self):
        """Returns None: there are no tokens."""

    @property
    def target_dictionary(self):
        """Returns None: there are no tokens."""

    def max_positions(self):
        return None
