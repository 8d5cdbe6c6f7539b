"""fairseq task of classifying images, with the data augmentation of DeiT."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Optional

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II
from torch import Tensor
from torch.nn import Module
from torch.utils.data import default_collate

from fairseq_lrpe.config import flag
from fairseq_lrpe.config_validation import check_range
from fairseq_lrpe.data import image_transforms as transforms
from fairseq_lrpe.data.mixup import Mixing, random_mixing, soft_targets
from fairseq_lrpe.tasks.datasets import LabeledDataset, LabeledTask
from fairseq_lrpe.utils.suggest import check_flag

if TYPE_CHECKING:
    from PIL.Image import Image

RECIPES = ("full", "plain")
MIXINGS = ("mixup_cutmix", "none")
ORDER, IMAGE, BATCH = range(3)
"""Purposes of random generators; the purpose of a generator is a part of its seed."""


@dataclass
class ImageClassificationConfig(FairseqDataclass):
    """Flags of the task ``image_classification``."""

    data: Optional[str] = flag(None, "data folder that data_prep has prepared")  # noqa: UP045
    image_size: int = flag(224, "side length of the model's input images in pixels")
    recipe: str = flag(
        "full",
        "data augmentation: random crops and flips, RandAugment and random erasing (full), or only random "
        "crops and flips (plain)",
    )
    repeats: int = flag(
        3, "repeated augmentation: an epoch uses 1/REPEATS of the images, each of them REPEATS times"
    )
    mixing: str = flag("mixup_cutmix", f"mixing of the images of a batch: {', '.join(MIXINGS)}")
    smoothing: float = flag(0.1, "label smoothing: the part of a target that is spread over all classes")
    seed: int = II("common.seed")


@dataclass
class BatchAugmentation:
    """Augmentation of a batch that is drawn by the workers and applied on the training device."""

    boxes: list[transforms.Region | None]  # rectangle to erase in each image
    noise_seed: int  # seed of the noise in the erased rectangles
    mixing: Mixing | None  # Mixup or CutMix of the images

    def apply(self, images: Tensor) -> None:
        """Erases and mixes normalized images (B, 3, S, S) in place."""
        transforms.erase(images, self.boxes, self.noise_seed)
        if self.mixing:
            self.mixing.mix_images(images)


class ImageDataset(LabeledDataset):
    """Dataset of the images of a split, cropped for evaluation, as (index, bytes (S, S, 3), label).

    Images remain bytes until they are on the training device, which is faster.
    """

    def __init__(self, task, split: str):
        super().__init__(task, split)
        self.classes = len(task.labels)

    # Each process maps the files. MMapIndexedDataset would read all bytes and convert each to an int64.
    @cached_property
    def index(self) -> MMapIndexedDataset.Index:
        return MMapIndexedDataset.Index(f"{self.prefix}.input0.idx")

    @cached_property
    def content(self) -> np.ndarray:
        return np.memmap(f"{self.prefix}.input0.bin", np.uint8, "r")

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name not in ("index", "content")}

    def num_tokens(self, index):
        return 1

    size = num_tokens

    def image(self, index: int) -> "Image":
        """Returns the decoded image."""
        from fairseq_lrpe.data.image_files import decode

        begin, size = self.index[index]
        return decode(self.content[begin : begin + size])

    def __getitem__(self, index):
        image = transforms.resize_and_center_crop(self.image(int(index)), self.cfg.image_size)
        return int(index), transforms.to_tensor(image), int(self.labels[index])

    def net_input(self, images):
        return {"images": default_collate(images)}  # (B, S, S, 3), in shared memory in a worker


class AugmentedDataset(ImageDataset):
    """Dataset of augmented training images; sample i·repeats + r is repetition r of image i in an epoch.

    Items are (index, (bytes (S, S, 3), box to erase or None), label). An epoch consists of a random
    1 / repeats of the images, each ``repeats`` times in a row, as in DeiT's sampler. All random choices
    depend only on the seed, the epoch and the indices of a sample or batch.
    """

    epoch = 1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def generator(self, purpose: int, *numbers: int) -> np.random.Generator:
        """Returns the random generator of this epoch for a purpose and indices."""
        return np.random.default_rng([purpose, self.cfg.seed % 2**32, self.epoch, *numbers])

    def ordered_indices(self):
        """Returns the sample indices of this epoch in order."""
        count = len(self)
        repeats = self.cfg.repeats
        images = self.generator(ORDER).permutation(count)[: -(-count // repeats)]
        return (images[:, None] * repeats + np.arange(repeats)).ravel()[:count]

    def __getitem__(self, index):
        number = int(index) // self.cfg.repeats
        rng = self.generator(IMAGE, int(index))
        image = transforms.random_resized_crop(self.image(number), self.cfg.image_size, rng)
        box = None
        if self.cfg.recipe == "full":
            from fairseq_lrpe.data.rand_augment import rand_augment

            image = rand_augment(image, rng)
            box = transforms.random_erase_box(*image.size[::-1], rng)
        return int(index), (transforms.to_tensor(image), box), int(self.labels[number])

    def net_input(self, images):
        return super().net_input([pixels for pixels, _ in images])

    def collater(self, samples):
        """Returns a batch with a BatchAugmentation and the soft, mixed targets (B, classes)."""
        batch = super().collater(samples)
        if batch:
            rng = self.generator(BATCH, *batch["id"].tolist())
            mixing = None
            batch["target"] = soft_targets(batch["target"], self.classes, self.cfg.smoothing)
            if self.cfg.mixing != "none":
                mixing = random_mixing(*batch["net_input"]["images"].shape[1:3], rng)
                batch["target"] = mixing.mix_targets(batch["target"])
            boxes = [box for _, (_, box), _ in samples]
            batch["augmentation"] = BatchAugmentation(boxes, int(rng.integers(2**63)), mixing)
        return batch


@register_task("image_classification", dataclass=ImageClassificationConfig)
class ImageClassificationTask(LabeledTask):
    """Classification of images by ``labels``, the names of the classes."""

    source_dictionary = None  # because images are not tokens

    @staticmethod
    def check_arguments(cfg):
        check_flag("recipe", cfg.recipe, RECIPES)
        check_flag("mixing", cfg.mixing, MIXINGS)
        check_range("smoothing", cfg.smoothing, 0, 1)
        check_range("repeats", cfg.repeats, 1)

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        self.datasets[split] = (AugmentedDataset if split == "train" else ImageDataset)(self, split)

    def train_step(self, sample, model, *args, **kwargs):
        return super().train_step(prepare_images(sample, model), model, *args, **kwargs)

    def valid_step(self, sample, model, criterion):
        return super().valid_step(prepare_images(sample, model), model, criterion)

    def max_positions(self):
        return None


def prepare_images(sample: dict, model: Module) -> dict:
    """Returns a batch with normalized and augmented images in the model's data type."""
    images = transforms.normalize(sample["net_input"]["images"])
    if "augmentation" in sample:
        sample["augmentation"].apply(images)
    return {**sample, "net_input": {"images": images.to(next(model.parameters()).dtype)}}
