"""Classification of image files, with the data augmentation of DeiT."""

from dataclasses import dataclass
from typing import Optional

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II
from PIL.Image import Image
from torch.utils.data import default_collate

from fairseq_lrpe.config import check_range, flag
from fairseq_lrpe.data.image_files import decode
from fairseq_lrpe.data.image_transforms import (
    normalize,
    random_erase,
    random_resized_crop,
    resize_and_center_crop,
)
from fairseq_lrpe.data.mixup import mix, soft_targets
from fairseq_lrpe.data.rand_augment import rand_augment
from fairseq_lrpe.encodings import check_choice
from fairseq_lrpe.tasks.datasets import LabeledDataset, LabeledTask

RECIPES = ("full", "plain")
MIXINGS = ("mixup_cutmix", "none")
ORDER, IMAGE, BATCH = range(3)
"""Purposes of random generators, so that no two have the same seed."""


@dataclass
class ImageClassificationConfig(FairseqDataclass):
    """Flags of the task."""

    data: Optional[str] = flag(None, "data folder that data_prep wrote")  # noqa: UP045
    image_size: int = flag(224, "side length of the model's input in pixels")
    recipe: str = flag(
        "full",
        "data augmentation: random crops and flips, RandAugment and random erasing (full), or crops and "
        "flips alone (plain)",
    )
    repeats: int = flag(
        3, "repeated augmentation: how often an epoch has each of its images, which are fewer"
    )
    mixing: str = flag("mixup_cutmix", f"mixing of the images of a batch: {', '.join(MIXINGS)}")
    smoothing: float = flag(0.1, "label smoothing: the part of a target that all classes share")
    seed: int = II("common.seed")


class ImageDataset(LabeledDataset):
    """The images of a split as (index, pixels (3, S, S), label), preprocessed for evaluation."""

    def __init__(self, task, split: str):
        super().__init__(task, split)
        self.classes = len(task.labels)
        # fairseq's dataset would read the whole file and convert each byte to an int64.
        self.index = MMapIndexedDataset.Index(f"{self.prefix}.input0.idx")
        self.content = np.memmap(f"{self.prefix}.input0.bin", np.uint8, "r")

    def num_tokens(self, index):
        return 1

    size = num_tokens

    def num_tokens_vec(self, indices):
        return np.ones(len(indices), np.int64)

    def image(self, index: int) -> Image:
        """Returns the decoded image; raises a ValueError that names it if its file is damaged."""
        begin, size = self.index[index]
        try:
            return decode(self.content[begin : begin + size])
        except ValueError as error:
            raise ValueError(f"{self.prefix}.input0.bin: image {index:,} is damaged ({error})") from None

    def __getitem__(self, index):
        image = resize_and_center_crop(self.image(int(index)), self.cfg.image_size)
        return int(index), normalize(image), int(self.labels[index])

    def net_input(self, images):
        """Returns the images (B, 3, S, S)."""
        return {"images": default_collate(images)}  # uses shared memory in a worker


class AugmentedDataset(ImageDataset):
    """Augmented training images; index i·repeats + r is the r-th repetition of image i in an epoch.

    An epoch has as many samples as the split: a random part 1 / repeats of the images, each ``repeats`` times
    in a row, which is the order of DeiT's sampler. Everything random depends on seed, epoch and indices only.
    """

    epoch = 1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def generator(self, purpose: int, *numbers: int) -> np.random.Generator:
        """Returns the random generator of this epoch for a purpose."""
        return np.random.default_rng([purpose, self.cfg.seed % 2**32, self.epoch, *numbers])

    def ordered_indices(self):
        """Returns the indices of this epoch."""
        count, repeats = len(self), self.cfg.repeats
        images = self.generator(ORDER).permutation(count)[: -(-count // repeats)]
        return (images[:, None] * repeats + np.arange(repeats)).ravel()[:count]

    def __getitem__(self, index):
        number, rng = int(index) // self.cfg.repeats, self.generator(IMAGE, int(index))
        image = random_resized_crop(self.image(number), self.cfg.image_size, rng)
        full = self.cfg.recipe == "full"
        pixels = normalize(rand_augment(image, rng) if full else image)
        if full:
            random_erase(pixels, rng)
        return int(index), pixels, int(self.labels[number])

    def collater(self, samples):
        """Returns a batch whose targets (B, classes) are mixed like its images."""
        batch = super().collater(samples)
        if batch:
            batch["target"] = soft_targets(batch["target"], self.classes, self.cfg.smoothing)
            if self.cfg.mixing != "none":
                rng = self.generator(BATCH, *batch["id"].tolist())
                mixed = mix(batch["net_input"]["images"], batch["target"], rng)
                batch["net_input"]["images"], batch["target"] = mixed
        return batch


@register_task("image_classification", dataclass=ImageClassificationConfig)
class ImageClassificationTask(LabeledTask):
    """Classification of images; ``labels`` are the names of the classes."""

    source_dictionary = None  # there are no tokens

    @staticmethod
    def check_arguments(cfg):
        check_choice("recipe", cfg.recipe, RECIPES)
        check_choice("mixing", cfg.mixing, MIXINGS)
        check_range("smoothing", cfg.smoothing, 0, 1)
        check_range("repeats", cfg.repeats, 1)

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        self.datasets[split] = (AugmentedDataset if split == "train" else ImageDataset)(self, split)

    def max_positions(self):
        return None
