"""Reads the files of pictures."""

import io

from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG")
"""The only ones that are read, whatever a file's name says: Pillow would start programs for some others."""


def decode(content: bytes) -> Image.Image:
    """Returns the picture of a file in RGB; ValueError says why it cannot be read to its end."""
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        image.load()
        return image if image.mode == "RGB" else image.convert("RGB")
    except UnidentifiedImageError:  # its words are of the place in memory
        raise ValueError(f"it is no {' or '.join(FORMATS)} file") from None
    except Exception as error:  # a file that somebody made can end in any
        raise ValueError(" ".join(str(error).split())) from None
