"""Shared by tests: small folders of images with classes, as files and in the format of data_prep."""

import io
from argparse import Namespace

import numpy as np
import torch
from fairseq.models import BaseFairseqModel, register_model, register_model_architecture
from PIL import Image

from data_prep.corpora.image_folders import ImageFile, write_images
from data_prep.labelled import write_metadata


def picture(values, kind="JPEG"):
    """Returns the content of an image file with these values (height, width, 3)."""
    out = io.BytesIO()
    Image.fromarray(np.asarray(values, np.uint8)).save(out, kind)
    return out.getvalue()


def coloured(label, index, width=20, height=16):
    """Returns the values of an image that has mostly the color of its class."""
    draw = np.random.default_rng([label, index])
    values = draw.integers(0, 80, (height, width, 3))
    values[..., label % 3] += 150
    return values


def write_classes(folder, count=24, classes=3, splits=("train", "valid", "test")):
    """Writes a folder of images in the format of data_prep."""
    source = folder.with_name(f"{folder.name}.pictures")
    folder.mkdir(parents=True)
    source.mkdir()
    labels, rows = [f"class{i}" for i in range(classes)], {}
    for number, split in enumerate(splits):
        places = []
        for index in range(count):
            label = index % classes
            place = ImageFile(labels[label], f"{index:04}.jpg", source / f"{split}{index}.jpg")
            place.path.write_bytes(picture(coloured(label, 1000 * number + index)))
            places.append(place)
        rows[split] = write_images(folder, split, places, labels, 1, [])
    write_metadata(folder, labels, rows, images=True)
    return folder


@register_model("mean_colour")
class MeanColour(BaseFairseqModel):
    """A simple image classifier: the mean color of each of 2 x 2 parts, and a linear layer."""

    def __init__(self, classes):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(12), torch.nn.Linear(12, classes)

    @classmethod
    def build_model(cls, args: Namespace, task):
        return cls(len(task.labels))

    def forward(self, images):
        return self.linear(self.norm(torch.nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)))


@register_model_architecture("mean_colour", "mean_colour")
def _(args):
    pass
