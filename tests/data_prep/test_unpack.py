"""Archives are unpacked whole, inside their folder, or not at all."""

import io
import random
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from data_prep import fetch

GOOD = {"top/one.txt": b"one", "top/deep/two.txt": b"two" * 1000}


def make_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def make_tar(path, members, *extra):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in extra:
            archive.addfile(member)
    return path


def link(name, target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def linked_zip(path):
    member = zipfile.ZipInfo("top/way")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("top/one.txt", b"one")
        archive.writestr(member, "/etc")
    return path


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_the_files_of_an_archive(make, tmp_path):
    archive, folder = make(tmp_path / "archive", GOOD), tmp_path / "folder"
    fetch.unpack(archive, folder)
    assert {name: (folder / name).read_bytes() for name in GOOD} == GOOD
    archive.unlink()
    fetch.unpack(archive, folder)  # already there


@pytest.mark.parametrize("make", [make_zip, make_tar, None])
def test_files_are_read_where_they_are(make, tmp_path):
    source = make(tmp_path / "archive", GOOD) if make else tmp_path / "folder"
    if not make:
        fetch.unpack(make_zip(tmp_path / "archive", GOOD), source)
    found = {match[1]: content for match, content in fetch.files_in(source, r"(?:^|/)(\w+)\.txt$")}
    assert found == {"one": b"one", "two": b"two" * 1000}
    assert [match[1] for match, _ in fetch.files_in(source, r"/deep/(.*)")] == ["two.txt"]
    with pytest.raises(fetch.FetchError, match=f"^{source} has none of the files that are needed"):
        list(fetch.files_in(source, "three"))
    with pytest.raises(fetch.FetchError, match=r"^nowhere is missing"):
        list(fetch.files_in(Path("nowhere"), ""))


@pytest.mark.parametrize(
    "make, member",
    [
        (lambda path: make_zip(path, {**GOOD, "../out.txt": b""}), "../out.txt"),
        (lambda path: make_zip(path, {**GOOD, "/tmp/out.txt": b""}), "/tmp/out.txt"),
        (lambda path: make_zip(path, {**GOOD, "a\\..\\..\\out.txt": b""}), "out.txt"),
        (lambda path: make_zip(path, {**GOOD, "C:/out.txt": b""}), "C:/out.txt"),
        (linked_zip, "top/way, a link"),
        (lambda path: make_tar(path, {**GOOD, "top/../../out.txt": b""}), "top/../../out.txt"),
        (lambda path: make_tar(path, {**GOOD, "/tmp/out.txt": b""}), "/tmp/out.txt"),
        (lambda path: make_tar(path, GOOD, link("top/way", "../..")), "top/way, a link to ../.."),
        (
            lambda path: make_tar(path, GOOD, link("top/way", "/etc/passwd", tarfile.LNKTYPE)),
            "top/way, a link",
        ),
        (lambda path: make_tar(path, GOOD, link("top/pipe", "", tarfile.FIFOTYPE)), "top/pipe, a device"),
    ],
)
def test_members_that_lead_out_are_refused_before_anything_is_written(make, member, tmp_path):
    archive = make(tmp_path / "archive")
    with pytest.raises(fetch.FetchError) as refused:
        fetch.unpack(archive, tmp_path / "folder")
    assert member in str(refused.value) and str(archive) in str(refused.value)
    assert list(tmp_path.iterdir()) == [archive]


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_an_interrupted_run_leaves_no_folder(make, tmp_path, monkeypatch):
    archive, folder = make(tmp_path / "archive", GOOD), tmp_path / "folder"
    (tmp_path / "folder.part").mkdir()
    (tmp_path / "folder.part" / "of a killed run").touch()

    def interrupted(archive, member, part, **_):
        (part / "one.txt").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(zipfile.ZipFile if make is make_zip else tarfile.TarFile, "extract", interrupted)
        fetch.unpack(archive, folder)
    assert list(tmp_path.iterdir()) == [archive]
    fetch.unpack(archive, folder)
    assert sorted(path.name for path in folder.rglob("*.txt")) == ["one.txt", "two.txt"]


def spoilt(content):
    return content[:60] + bytes(20) + content[80:]


def cut_off(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize("make, damage", [(make_zip, spoilt), (make_zip, cut_off), (make_tar, cut_off)])
def test_a_damaged_archive_leaves_nothing(make, damage, tmp_path):
    content = random.Random(0).randbytes(100_000)
    archive = make(tmp_path / "archive", {"one.txt": content, "two.txt": content[::-1]})
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(fetch.FetchError, match=r"is damaged|no complete zip or tar"):
        fetch.unpack(archive, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [archive]


def test_what_is_no_archive(tmp_path):
    (tmp_path / "page.zip").write_text("<html>sorry</html>")
    with pytest.raises(fetch.FetchError, match="no complete zip or tar"):
        fetch.unpack(tmp_path / "page.zip", tmp_path / "folder")
