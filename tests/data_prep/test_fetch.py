"""Downloads from working and broken mirrors of a local server, and unpacking of archives."""

import errno
import gzip
import hashlib
import http.client
import itertools
import lzma
import random
import socket
import ssl
import stat
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest
from local_server import CONTENT, Server
from small_corpora import write_tar, write_zip

from data_prep import fetch

SIZE, SHA256 = len(CONTENT), hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fetch, "WAIT", 0)
    with Server() as server:
        yield server


@pytest.fixture
def unreachable():
    """The address of a mirror that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def get(dest, *urls):
    path = fetch.fetch(dest, {"mirrors": urls, "size": SIZE, "sha256": SHA256})
    assert path == dest and path.read_bytes() == CONTENT
    assert [x.name for x in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("mirror, part, ranges", [
    ("range", CONTENT[:1000], ["bytes=1000-"]),
    ("range", CONTENT, []),
    ("no_range", CONTENT[:1000], ["bytes=1000-"]),
    ("range", CONTENT + b"more", [None]),
    ("range", b"x" * 1000, ["bytes=1000-", None]),
    ("interrupted", b"", [None, f"bytes={SIZE // 2}-"]),
], ids=["resumed", "complete", "no_range", "too_long", "of_another_file", "interrupted"])  # fmt: skip
def test_partial_downloads_are_resumed_and_verified(mirror, part, ranges, server, tmp_path):
    (tmp_path / "file.part").write_bytes(part)
    get(tmp_path / "file", server.url(mirror))
    assert [span for _, span in server.requests] == ranges


def test_broken_mirrors_are_skipped_and_busy_ones_retried(server, unreachable, tmp_path):
    names = ["missing", "wrong", "short", *["busy"] * fetch.TRIES, "range"]
    get(tmp_path / "file", unreachable, *map(server.url, dict.fromkeys(names)))
    assert server.requests == [(f"/{name}/file", None) for name in names]


def test_the_error_names_all_mirrors_with_their_reasons(server, unreachable, tmp_path):
    urls = [server.url("missing"), unreachable, server.url("wrong"), server.url("short")]
    with pytest.raises(ValueError, match=r"^no mirror provides file: .*$") as error:
        get(tmp_path / "file", *urls)
    line = str(error.value)
    for url, reason in zip(urls, ["404", "Connection refused", "SHA-256", "bytes instead of"], strict=True):
        assert reason in line.split(url)[1].split("; ")[0]
    assert not list(tmp_path.iterdir())


ERRORS = [
    OSError(errno.EHOSTUNREACH, "No route to host"),
    ssl.SSLError(1, "bad record mac"),
    TimeoutError("timed out"),
    http.client.IncompleteRead(b"", 9),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("owner", "name"), [(urllib.request, "urlopen"), (http.client.HTTPResponse, "read1")]
)
def test_errors_of_the_network_are_retried(owner, name, error, server, tmp_path, monkeypatch):
    """All attempts with the first mirror fail, and the next mirror provides the file."""
    calls, works = [], getattr(owner, name)

    def failing(*args, **kwargs):
        calls.append(name)
        if len(calls) <= fetch.TRIES:
            raise error
        return works(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)
    get(tmp_path / "file", server.url("range"), server.url("no_range"))
    assert server.requests[-1] == ("/no_range/file", None)


def test_only_failed_attempts_are_followed_by_a_wait(server, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(fetch, "sleep", waits.append)
    monkeypatch.setattr(fetch, "WAIT", 3)
    get(tmp_path / "file", server.url("range"))
    assert not waits
    get(tmp_path / "new" / "file", server.url("busy"), server.url("range"))
    assert waits == [3 * 2**n for n in range(fetch.TRIES - 1)]


def test_a_full_disk_is_not_retried(server, tmp_path):
    (tmp_path / "file.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        get(tmp_path / "file", server.url("range"), server.url("no_range"))
    assert len(server.requests) == 1


def test_a_body_without_a_length_is_read_to_one_byte_more_than_the_file(server, tmp_path):
    with pytest.raises(ValueError, match=rf"has {SIZE + 1:,} bytes instead of {SIZE:,}"):
        get(tmp_path / "file", server.url("endless"))
    assert len(server.requests) == 1 and not list(tmp_path.iterdir())
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    get(tmp_path / "file", server.url("endless"), server.url("range"))


def test_a_slow_mirror_is_given_up_and_the_next_continues(server, tmp_path, monkeypatch):
    """Each look at the clock is a second later, so that the limit does not depend on the machine."""
    monkeypatch.setattr(fetch, "monotonic", itertools.count().__next__)
    monkeypatch.setattr(fetch, "MIN_TIME", 3)
    get(tmp_path / "file", server.url("slow"), server.url("range"))
    (_, first), (path, second) = server.requests
    assert first is None and path == "/range/file" and second.startswith("bytes=")
    with pytest.raises(ValueError, match="slow/other did not complete within 16 seconds"):
        get(tmp_path / "other", server.url("slow"))


@pytest.mark.parametrize("location", ["http://[::1", "http://host:port/", "http:///x", "http://x..y/"])
def test_a_redirect_to_an_invalid_address_is_an_error_of_its_mirror(location, server, tmp_path):
    server.server.location = location.encode().decode("latin-1")
    get(tmp_path / "file", server.url("redirect"), server.url("range"))


GOOD = {"top/one.txt": b"one", "top/deep/two.txt": b"two" * 1000}


@pytest.fixture(params=["this Python", "Python 3.11.2"])
def tar_filter(request, monkeypatch):
    """The filter of tarfile for archives of others, or none, as in Python before 3.11.4."""
    if request.param == "Python 3.11.2":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


@pytest.mark.parametrize(
    "name, kind, target",
    [
        ("top/../../out.txt", tarfile.REGTYPE, ""),
        ("top/link", tarfile.SYMTYPE, "../.."),
        ("top/link", tarfile.SYMTYPE, "/etc"),
        ("top/link", tarfile.LNKTYPE, "../archive"),
        ("top/device", tarfile.CHRTYPE, ""),
    ],
)
def test_tar_members_outside_of_the_folder_are_errors(name, kind, target, tmp_path, tar_filter):
    bad = tarfile.TarInfo(name)
    bad.type, bad.linkname = kind, target
    archive = write_tar(tmp_path / "archive", GOOD, bad)
    with pytest.raises(ValueError, match=bad.name):
        fetch.unpacked(archive, tmp_path / "folder")
    assert set(tmp_path.iterdir()) == {archive, tmp_path / "folder"}


@pytest.mark.parametrize("name", ["../out.txt", "top/../../out.txt", "top/../one.txt", "/tmp/lrpe_out.txt"])
def test_zip_members_outside_of_the_folder_are_errors(name, tmp_path):
    archive = write_zip(tmp_path / "archive", {**GOOD, name: b""})
    with pytest.raises(ValueError, match=f"cannot be unpacked safely .{name} is a device, outside"):
        fetch.unpacked(archive, tmp_path / "folder")
    assert set(tmp_path.iterdir()) == {archive, tmp_path / "folder"}
    assert not Path("/tmp/lrpe_out.txt").exists()


def test_links_in_zip_archives_are_errors(tmp_path):
    link = zipfile.ZipInfo("top/link")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16  # as written by zip --symlinks
    archive = write_zip(tmp_path / "archive", {**GOOD, link: b"one.txt"})
    with pytest.raises(ValueError, match=r"top/link is .* link that cannot be followed.: unpack it yourself"):
        fetch.unpacked(archive, tmp_path / "folder")
    assert not list((tmp_path / "folder").iterdir())


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_all_members_are_unpacked(write, tmp_path, tar_filter):
    names = ("IMG_1..jpg", "a..b/...c", "a\\..\\..\\out.txt", "..x", "./here.txt")
    files = {**GOOD, **{name: name.encode() for name in names}}
    folder = fetch.unpacked(write(tmp_path / "archive", files), tmp_path / "folder")
    found = {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}
    assert found == {name.removeprefix("./"): content for name, content in files.items()}


@pytest.mark.parametrize("system", [0, 3])
def test_backslashes_of_archives_made_by_windows_separate_folders(system, tmp_path):
    files = {}
    for name, content in {**GOOD, "top/empty/": b""}.items():
        member = zipfile.ZipInfo(name)
        member.filename, member.create_system = name.replace("/", "\\"), system
        files[member] = content
    folder = fetch.unpacked(write_zip(tmp_path / "archive", files), tmp_path / "folder")
    found = {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}
    assert found == GOOD


def test_backslashes_do_not_lead_out_of_the_folder(tmp_path):
    archive = write_zip(tmp_path / "archive", {"top\\..\\..\\out.txt": b""})
    with pytest.raises(ValueError, match="cannot be unpacked safely"):
        fetch.unpacked(archive, tmp_path / "folder")


def test_a_hard_link_to_a_missing_member_is_an_error(tmp_path, tar_filter):
    link = tarfile.TarInfo("top/link")
    link.type, link.linkname = tarfile.LNKTYPE, "top/gone"
    archive = write_tar(tmp_path / "archive", GOOD, link)
    with pytest.raises(ValueError, match=r"is not a complete .*top/gone.*: download it again"):
        fetch.unpacked(archive, tmp_path / "folder")


def test_slashes_at_the_start_of_names_in_tar_archives_are_removed(tmp_path, tar_filter):
    archive = write_tar(tmp_path / "archive", {**GOOD, f"{tmp_path}/three.txt": b"three"})
    folder = fetch.unpacked(archive, tmp_path / "folder")
    assert (folder / str(tmp_path)[1:] / "three.txt").read_bytes() == b"three"
    assert not (tmp_path / "three.txt").exists()


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_truncated_archives_are_errors(write, tmp_path):
    content = random.Random(0).randbytes(100_000)
    archive = write(tmp_path / "archive", {"one.txt": content, "two.txt": content[::-1]})
    archive.write_bytes(archive.read_bytes()[:50_000])
    with pytest.raises(ValueError, match="is not a complete zip or tar archive"):
        fetch.unpacked(archive, tmp_path / "folder")


def damaged_tar(folder, mode, part=slice(0), replacement=b""):
    """Writes a tar archive, compressed after a part of its content is replaced, and returns its path."""
    content = bytearray(write_tar(folder / "tar", GOOD, mode="w").read_bytes())
    content[part] = replacement
    pack = {"": bytes, "gz": gzip.compress, "xz": lzma.compress}[mode]
    (folder / "archive").write_bytes(pack(content))
    return folder / "archive"


HEADER = 1024  # place of the second header
DAMAGES = {
    "cut in a header": (slice(HEADER + 100, None), b""),
    "changed in a header": (slice(HEADER + 5, HEADER + 6), b"?"),
    "without its end": (slice(HEADER + 512 + 3072, None), b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("mode", ["", "gz", "xz"])
def test_a_damaged_header_is_not_the_end_of_an_archive(mode, damage, tmp_path):
    archive = damaged_tar(tmp_path, mode, *DAMAGES[damage])
    with pytest.raises(ValueError, match=r"zip or tar archive \(neither a file nor its end"):
        fetch.unpacked(archive, tmp_path / "folder")


@pytest.mark.parametrize(("mode", "place"), [("gz", -6), ("xz", -40), ("xz", 100)])
def test_checksums_of_compressed_archives_are_verified(mode, place, tmp_path):
    archive = damaged_tar(tmp_path, mode)
    content = bytearray(archive.read_bytes())
    content[place] ^= 1
    archive.write_bytes(content)
    with pytest.raises(ValueError, match="archive is not a complete zip or tar archive"):
        fetch.unpacked(archive, tmp_path / "folder")


@pytest.mark.parametrize(("field", "value", "reason"), [(6, 1, "is encrypted"), (8, 9, "compression method")])
def test_archives_that_python_cannot_unpack_are_errors(field, value, reason, tmp_path):
    """Encryption is a flag of a file, and Deflate64 is method 9."""
    archive = write_zip(tmp_path / "archive", {"one.txt": b"one"})
    content = bytearray(archive.read_bytes())
    for header, place in ((b"PK\3\4", field), (b"PK\1\2", field + 2)):
        content[content.index(header) + place] = value
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=rf"cannot be unpacked \(.*{reason}.*: unpack it yourself"):
        fetch.unpacked(archive, tmp_path / "folder")
