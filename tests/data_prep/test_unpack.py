"""Archives are unpacked completely and inside their folder, or not at all."""

import random
import tarfile
from pathlib import Path

import pytest
from small_corpora import write_tar, write_zip

from data_prep import fetch

GOOD = {"top/one.txt": b"one", "top/deep/two.txt": b"two" * 1000}


@pytest.mark.parametrize(
    "name, kind", [("top/../../out.txt", tarfile.REGTYPE), ("top/link", tarfile.SYMTYPE)]
)
def test_tar_members_outside_of_the_folder_are_errors(name, kind, tmp_path):
    bad = tarfile.TarInfo(name)
    bad.type, bad.linkname = kind, "../.."
    archive = write_tar(tmp_path / "archive", GOOD, bad)
    with pytest.raises(ValueError, match=bad.name):
        fetch.unpacked(archive, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [archive]


def test_zip_members_stay_inside_the_folder(tmp_path):
    names = ("../out.txt", "/tmp/lrpe_out.txt", "a\\..\\..\\out.txt")
    archive = write_zip(tmp_path / "archive", {**GOOD, **dict.fromkeys(names, b"")})
    fetch.unpacked(archive, tmp_path / "folder")
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "folder"}
    assert not Path("/tmp/lrpe_out.txt").exists()


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_truncated_archives_leave_nothing(write, tmp_path):
    content = random.Random(0).randbytes(100_000)
    archive = write(tmp_path / "archive", {"one.txt": content, "two.txt": content[::-1]})
    archive.write_bytes(archive.read_bytes()[:50_000])
    with pytest.raises(ValueError, match="is not a complete zip or tar archive"):
        fetch.unpacked(archive, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [archive]
