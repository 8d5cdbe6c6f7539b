"""Listing and decoding of image files."""

import io

import numpy as np
import pytest
from PIL import Image
from support.image_files import encode_image

from fairseq_lrpe.data.image_files import convert, decode, find_images

RAMP = np.linspace(0, 65535, 1024).reshape(32, 32).astype(np.uint16)
BIG_ENDIAN = Image.frombytes("I;16B", (32, 32), RAMP.astype(">u2").tobytes())


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("content", [
    saved(Image.fromarray(RAMP), "PNG"),
    saved(Image.fromarray(RAMP), "TIFF"),
    saved(BIG_ENDIAN, "TIFF"),
    b"P5 32 32 65535\n" + RAMP.astype(">u2").tobytes(),
    b"P5 32 32 1023\n" + (RAMP >> 6).astype(">u2").tobytes(),
], ids=["png", "tiff", "big_endian", "pgm", "pgm_10_bits"])  # fmt: skip
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_16_bit_gray_values_are_scaled(content, mode):
    pixels = np.asarray(decode(content, mode))
    assert np.array_equal(pixels[..., 0] if mode == "RGB" else pixels, RAMP // 256)
    assert np.array_equal(convert(BIG_ENDIAN, mode), pixels)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_gray_values_of_unknown_range_are_errors(dtype):
    image = Image.fromarray(RAMP.astype(dtype))
    for read in (lambda: convert(image, "L"), lambda: decode(saved(image, "TIFF"))):
        with pytest.raises(ValueError, match="its gray values have 32 bits or a sign: convert it to 8 or 16"):
            read()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_incomplete_files_are_errors(kind):
    content = encode_image(np.random.default_rng(0).integers(0, 256, (32, 32, 3)), kind)
    assert decode(content).size == (32, 32)
    for part in (0, len(content) * 9 // 10):
        with pytest.raises(ValueError):
            decode(content[:part])


def test_listed_images(tmp_path):
    names = ["a/1.JPG", "a/2.webp", "b.Tiff"]
    for name in (*names, "a/._1.JPG", ".ipynb_checkpoints/1.jpg", "__MACOSX/1.jpg", "a/1.txt", "a/jpg"):
        (tmp_path / "real" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "real" / name).touch()
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "link").symlink_to("../real")
    assert find_images(tmp_path / "given") == [tmp_path / "given" / "link" / name for name in names]
    with pytest.raises(ValueError, match="is not a folder with images: expected"):
        find_images(tmp_path / "nowhere")
