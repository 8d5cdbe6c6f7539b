"""The figure with examples of generated corpora."""

from PIL import Image
from tiny import run_here

from data_prep.lra_examples import main


def test_examples_are_drawn(tmp_path):
    file = tmp_path / "new" / "examples.png"
    done = run_here(main, file)
    assert done.returncode == 0 and not done.stderr
    with Image.open(file) as image:
        assert min(image.size) > 400
    done = run_here(main, tmp_path / "other" / "examples.txt")
    assert done.returncode == 2 and "must be a file that ends in .png, .pdf or .svg" in done.stderr
    assert not (tmp_path / "other").exists()
