"""The throughput of image decoding and augmentation, step by step."""

import re

import pytest
from image_files import colored_image
from tiny import run_here

from fairseq_lrpe.benchmarks import images
from fairseq_lrpe.data.image_files import decode


@pytest.mark.parametrize("source", ["folder", "synthetic"])
def test_every_step_is_measured(source, tmp_path):
    (tmp_path / "a.JPEG").write_bytes(colored_image(0, 0))
    words = "--rounds 1 --batch-size 6 --image-size 64".split()
    words += ["--from", tmp_path] if source == "folder" else []
    done = run_here(images.main, *words)
    assert done.returncode == 0, done.stderr
    rows = [re.split(r"\s*│\s*", line)[1:5] for line in done.stdout.splitlines() if line.startswith("│")]
    end = [row[0] for row in rows].index("total") + 1
    for process in (rows[:end], rows[end:]):
        total = sum(float(row[1]) for row in process[:-1])
        assert process[-1][0] == "total"
        assert float(process[-1][1]) == pytest.approx(total, abs=0.01 * len(process))
    names = [row[0] for row in rows]
    assert names[:3] == ["decoding", "crop, resizing, mirror image", "RandAugment"]
    assert names[end:] == ["normalizing", "erasing", "Mixup or CutMix", "total"]
    assert "to 64 x 64: 6 in one thread" in " ".join(done.stdout.split())


def test_synthetic_images_are_like_those_of_imagenet():
    content = images.synthetic_jpeg(images.np.random.default_rng(0))
    assert decode(content).size == (500, 375) and 80_000 < len(content) < 120_000
