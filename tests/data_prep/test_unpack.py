"""Archives are unpacked completely and inside their folder, or not at all."""

import random
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from small_corpora import write_files, write_tar, write_zip

from data_prep import fetch

GOOD = {"top/one.txt": b"one", "top/deep/two.txt": b"two" * 1000}


def member(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_archives_are_unpacked_once(write, tmp_path):
    archive, folder = write(tmp_path / "archive", GOOD), tmp_path / "folder"
    fetch.unpack(archive, folder)
    assert {name: (folder / name).read_bytes() for name in GOOD} == GOOD
    archive.unlink()
    fetch.unpack(archive, folder)


@pytest.mark.parametrize("write", [write_zip, write_tar, write_files])
def test_files_are_read_from_archives_and_folders(write, tmp_path):
    source = write(tmp_path / "source", GOOD)
    found = {match[1]: content for match, content in fetch.files_in(source, r"(?:^|/)(\w+)\.txt$")}
    assert found == {"one": b"one", "two": b"two" * 1000}
    assert [match[1] for match, _ in fetch.files_in(source, r"/deep/(.*)")] == ["two.txt"]
    with pytest.raises(fetch.FetchError, match=f"^{source} contains none of the expected files"):
        list(fetch.files_in(source, "three"))
    with pytest.raises(fetch.FetchError, match=r"^nowhere is missing"):
        list(fetch.files_in(Path("nowhere"), ""))


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
        fetch.unpack(archive, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [archive]


def test_zip_members_stay_inside_the_folder(tmp_path):
    names = ("../out.txt", "/tmp/lrpe_out.txt", "a\\..\\..\\out.txt")
    archive = write_zip(tmp_path / "archive", {**GOOD, **dict.fromkeys(names, b"")})
    fetch.unpack(archive, tmp_path / "folder")
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "folder"}
    assert not Path("/tmp/lrpe_out.txt").exists()


def test_symbolic_links_of_zip_archives_are_errors(tmp_path):
    archive, link = write_zip(tmp_path / "archive", GOOD), zipfile.ZipInfo("top/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr(link, "deep")
    for read in (
        lambda: fetch.unpack(archive, tmp_path / "folder"),
        lambda: [*fetch.files_in(archive, "one")],
    ):
        with pytest.raises(fetch.FetchError, match="contains a symbolic link, top/link: unpack it, and give"):
            read()
    assert list(tmp_path.iterdir()) == [archive]


@pytest.mark.parametrize("write", [write_zip, write_tar, write_files])
def test_hidden_files_are_left_out(write, tmp_path):
    hidden = ("top/._one.txt", "__MACOSX/top/._one.txt", "top/.ipynb_checkpoints/one.txt", ".DS_Store")
    source = write(tmp_path / "source", {**dict.fromkeys(hidden, b""), **GOOD})
    assert sorted(match[0] for match, _ in fetch.files_in(source, ".+")) == sorted(GOOD)


def test_links_in_tar_archives(tmp_path):
    archive = write_tar(tmp_path / "archive", GOOD, member("top/three.txt", tarfile.LNKTYPE, "top/one.txt"))
    assert [content for _, content in fetch.files_in(archive, "three")] == [b"one"]
    archive = write_tar(tmp_path / "archive", GOOD, member("top/three.txt", tarfile.SYMTYPE, "one.txt"))
    with pytest.raises(fetch.FetchError, match="contains a symbolic link, top/three"):
        [*fetch.files_in(archive, "three")]


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_an_interruption_leaves_no_folder(write, tmp_path, monkeypatch):
    archive, folder = write(tmp_path / "archive", GOOD), tmp_path / "folder"
    write_files(tmp_path / "folder.part", {"of_a_killed_run": b""})

    def interrupted(archive, part, *_, **__):
        (part / "one.txt").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "unpack_archive", interrupted)
        fetch.unpack(archive, folder)
    assert list(tmp_path.iterdir()) == [archive]
    fetch.unpack(archive, folder)
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["one.txt", "two.txt"]


def overwrite(content):
    return content[:60] + bytes(20) + content[80:]


def truncate(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("write", "damage"), [(write_zip, overwrite), (write_zip, truncate), (write_tar, truncate)]
)
def test_damaged_archives_leave_nothing(write, damage, tmp_path):
    content = random.Random(0).randbytes(100_000)
    archive = write(tmp_path / "archive", {"one.txt": content, "two.txt": content[::-1]})
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(fetch.FetchError, match="is not a complete zip or tar archive"):
        fetch.unpack(archive, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [archive]
