"""Archives are unpacked completely and inside their folder, or not at all."""

import random
import tarfile
from pathlib import Path

import pytest
from small_corpora import write_files, write_tar, write_zip

from data_prep import fetch

GOOD = {"top/one.txt": b"one", "top/deep/two.txt": b"two" * 1000}
HIDDEN = ("top/._one.txt", "__MACOSX/top/._one.txt", "top/.ipynb_checkpoints/one.txt", ".DS_Store")


def member(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("write", [write_zip, write_tar, write_files])
def test_files_of_archives_and_folders_without_hidden_ones(write, tmp_path):
    source = write(tmp_path / "source", {**dict.fromkeys(HIDDEN, b""), **GOOD})
    folder = fetch.unpacked(source, tmp_path / "unpacked")
    found = {match[0]: path.read_bytes() for match, path in fetch.files_in(folder, ".+", source)}
    assert found == GOOD
    with pytest.raises(fetch.FetchError, match=f"^{source} contains none of the expected files"):
        list(fetch.files_in(folder, "three", source))
    with pytest.raises(fetch.FetchError, match=r"^nowhere is missing"):
        fetch.unpacked(Path("nowhere"), tmp_path / "none")


@pytest.mark.parametrize(
    "bad",
    [
        member("top/../../out.txt", tarfile.REGTYPE),
        member("top/link", tarfile.SYMTYPE, "../.."),
        member("top/link", tarfile.LNKTYPE, "/etc/passwd"),
        member("top/pipe", tarfile.FIFOTYPE),
    ],
)
def test_tar_members_outside_of_the_folder_are_errors(bad, tmp_path):
    archive = write_tar(tmp_path / "archive", GOOD, bad)
    with pytest.raises(fetch.FetchError, match=bad.name):
        fetch.unpacked(archive, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [archive]


def test_zip_members_stay_inside_the_folder(tmp_path):
    names = ("../out.txt", "/tmp/lrpe_out.txt", "a\\..\\..\\out.txt")
    archive = write_zip(tmp_path / "archive", {**GOOD, **dict.fromkeys(names, b"")})
    fetch.unpacked(archive, tmp_path / "folder")
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "folder"}
    assert not Path("/tmp/lrpe_out.txt").exists()


def test_links_in_tar_archives_are_followed(tmp_path):
    links = [member("top/three.txt", tarfile.LNKTYPE, "top/one.txt")]
    links.append(member("top/four.txt", tarfile.SYMTYPE, "one.txt"))
    archive = write_tar(tmp_path / "archive", GOOD, *links)
    folder = fetch.unpacked(archive, tmp_path / "folder")
    assert [path.read_bytes() for _, path in fetch.files_in(folder, "three|four", archive)] == [b"one"] * 2


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_truncated_archives_leave_nothing(write, tmp_path):
    content = random.Random(0).randbytes(100_000)
    archive = write(tmp_path / "archive", {"one.txt": content, "two.txt": content[::-1]})
    archive.write_bytes(archive.read_bytes()[:50_000])
    with pytest.raises(fetch.FetchError, match="is not a complete zip or tar archive"):
        fetch.unpacked(archive, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [archive]
