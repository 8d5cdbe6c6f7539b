"""Image files, a data set of images, and a simple classifier for tests of image classification."""

import io
from argparse import Namespace

import numpy as np
import torch
from fairseq.models import BaseFairseqModel, register_model, register_model_architecture
from PIL import Image

from data_prep.labeled import write_dictionary, write_split


def encode_image(values, kind="JPEG"):
    out = io.BytesIO()
    Image.fromarray(np.asarray(values, np.uint8)).save(out, kind)
    return out.getvalue()


def colored_image(label, index, kind="JPEG"):
    """Returns the bytes of a noisy image file, brightest in the color channel ``label % 3``."""
    draw = np.random.default_rng([label, index])
    values = draw.integers(0, 80, (16, 20, 3))
    values[..., label % 3] += 150
    return encode_image(values, kind)


def write_image_dataset(folder, count=24, classes=3, splits=("train", "valid", "test")):
    """Writes a data set to ``folder``, and its image files to FOLDER.images."""
    source = folder.with_name(f"{folder.name}.images")
    folder.mkdir(parents=True)
    source.mkdir()
    rows = {}
    for number, split in enumerate(splits):
        images = []
        for i in range(count):
            content = colored_image(i % classes, 1000 * number + i)
            (source / f"{split}{i}.jpg").write_bytes(content)
            images.append((np.frombuffer(content, np.uint8), i % classes))
        rows[split] = write_split(folder, split, images, types=0)
    write_dictionary(folder, (), [f"class{i}" for i in range(classes)], rows, images=True)
    return folder


@register_model("mean_color")
class MeanColor(BaseFairseqModel):
    """An image classifier: a linear layer on the mean colors of the four quadrants."""

    def __init__(self, classes):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(12), torch.nn.Linear(12, classes)

    @classmethod
    def build_model(cls, args: Namespace, task):
        return cls(len(task.labels))

    def forward(self, images):
        return self.linear(self.norm(torch.nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)))


@register_model_architecture("mean_color", "mean_color")
def _(args):
    pass
