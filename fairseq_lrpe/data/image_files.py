"""Lists image files, and decodes them to 8 bits per channel."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import visible_files

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of image files in lower case, which are those of torchvision."""
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")
"""Accepted formats. Others are rejected because Pillow starts external programs for some of them."""


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def find_images(folder: Path) -> list[Path]:
    files = []
    if folder.is_dir():
        files = [path for path in visible_files(folder) if is_image(path.name)]
    if not files:
        raise UserError(f"{folder} is not a folder with images: expected {', '.join(SUFFIXES)} files")
    return files


def decode(content: bytes, mode: str = "RGB") -> Image.Image:
    """Decodes the content of an image file to an image in one of Pillow's modes, like :func:`convert`.

    Raises:
        UserError: if the file cannot be decoded completely or converted.
    """
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        image.load()
        return convert(image, mode)
    except UnidentifiedImageError:  # its message contains a memory address
        raise UserError(f"it is not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file") from None
    except Exception as error:  # a malformed file can raise any exception
        raise UserError(" ".join(str(error).split())) from None


def convert(image: Image.Image, mode: str = "RGB") -> Image.Image:
    """Returns an image in one of Pillow's modes with 8 bits per channel.

    Gray values v of n = 9 to 16 bits are scaled to v >> (n - 8). Pillow would clip them to 255.

    Raises:
        UserError: if the gray values are signed or have 32 bits, because their range is then unknown.
    """
    # Pillow reads 16-bit PGM files, and in old versions 16-bit PNG files, as 32-bit integers.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        bits = getattr(image, "tag_v2", {}).get(258, (16,))[0]  # BitsPerSample of TIFF, such as 12
        image = Image.fromarray((np.asarray(image) >> (bits - 8)).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise UserError("its gray values have 32 bits or a sign: convert it to 8 or 16 unsigned bits")
    return image if image.mode == mode else image.convert(mode)


def gray_pixels(image: Image.Image, height: int, width: int) -> np.ndarray:
    """Returns the gray values (height · width,), row by row, of an image scaled by averaging."""
    return np.asarray(convert(image, "L").resize((width, height), Image.Resampling.BOX)).ravel()
