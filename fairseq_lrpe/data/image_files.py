"""Decodes image files."""

import io

from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG")
"""Accepted formats; for some others, Pillow would start external programs."""


def decode(content: bytes, mode: str = "RGB") -> Image.Image:
    """Returns a file's image in this mode; raises ValueError if it cannot be decoded completely."""
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        image.load()
        return image if image.mode == mode else image.convert(mode)
    except UnidentifiedImageError:  # its message contains a memory address
        raise ValueError(f"it is no {' or '.join(FORMATS)} file") from None
    except Exception as error:  # a malformed file can raise any exception
        raise ValueError(" ".join(str(error).split())) from None
