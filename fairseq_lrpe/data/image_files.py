"""Decoding of image files."""

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG")
"""Accepted formats. Others are rejected because Pillow starts external programs for some of them."""


def decode(content: bytes, mode: str = "RGB") -> Image.Image:
    """Decodes the content of a JPEG or PNG file to an image in one of Pillow's modes.

    Raises:
        ValueError: If the file cannot be decoded completely.
    """
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        image.load()
        return image if image.mode == mode else image.convert(mode)
    except UnidentifiedImageError:  # its message contains a memory address
        raise ValueError(f"it is not a {' or '.join(FORMATS)} file") from None
    except Exception as error:  # a malformed file can raise any exception
        raise ValueError(" ".join(str(error).split())) from None


def gray_pixels(image: Image.Image, height: int, width: int) -> np.ndarray:
    """Returns the gray values (height · width,), row by row, of an image scaled by averaging."""
    image = image.convert("L")
    size = (width, height)
    return np.asarray(image if image.size == size else image.resize(size, Image.Resampling.BOX)).ravel()
