"""Verified downloads from mirrors, and reading and unpacking of archives.

``SOURCES`` is the content of sources.yaml. The ``facts`` of a file are its ``size`` in bytes, its ``sha256``,
and its ``mirrors``, which are base URLs to which the file's name is appended. This module
implements downloads itself, because pooch cannot resume a partial download and huggingface_hub downloads only
from the Hugging Face Hub.
"""

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import yaml
from tqdm import tqdm

from data_prep.progress import progress, show_written
from fairseq_lrpe.utils.files import (
    MAX_BYTES,
    atomic_folder,
    check_size,
    is_hidden,
    read_file,
    visible_files,
)

SOURCES = yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text())

# WikiText's host rejects urllib's default user agent.
HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; fairseq-lrpe)"}
CHUNK = 1 << 20  # bytes read at once
TIMEOUT = 30  # seconds without data after which a download is interrupted
TRIES = 5  # attempts per mirror after interrupted responses
WAIT = 1  # seconds before the second attempt, doubled before each further one


class FetchError(ValueError):
    """Raised if a file is unavailable or differs from the published one."""


class _Interrupted(FetchError):
    """Raised for errors that may be temporary, such as an incomplete response."""


def mismatch(path: Path, facts: dict) -> str | None:
    """Returns how a file differs from the published size and SHA-256, or None if it is identical."""
    size = path.stat().st_size
    if size != facts["size"]:
        return f"has {size:,} bytes instead of {facts['size']:,}"
    sha256 = hashlib.sha256()
    with path.open("rb") as file, progress(None, f"checking {path.name}", total=size) as bar:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
            bar.update(len(chunk))
    digest = sha256.hexdigest()
    return None if digest == facts["sha256"] else f"has SHA-256 {digest} instead of {facts['sha256']}"


def verified(path: Path, name: str, facts: dict) -> Path:
    """Returns ``path`` if it is a copy of the published file ``name``, otherwise raises FetchError."""
    if not path.is_file():
        raise FetchError(f"{path} is missing: put a copy of the published {name} there")
    if reason := mismatch(path, facts):
        raise FetchError(f"{path} is not the published {name}: it {reason}")
    return path


def fetch(dest: Path, facts: dict) -> Path:
    """Downloads a file from the first working mirror and returns its path ``dest``.

    A valid ``dest`` is not downloaded again, and an incomplete ``dest``.part is resumed.

    Raises:
        FetchError: If no mirror provides the published file.
    """
    if dest.is_file() and not mismatch(dest, facts):
        return dest
    part = dest.with_name(dest.name + ".part")
    reasons = []
    for mirror in facts["mirrors"]:
        url = f"{mirror}/{dest.name}"
        print(f"Downloading {url}", flush=True)
        try:
            _download_verified(part, url, facts)
            os.replace(part, dest)
            return dest
        except FetchError as error:
            print(f"    {error}", flush=True)
            reasons.append(f"{url} {error}")
    raise FetchError(
        f"no mirror provides {dest.name}: {'; '.join(reasons)}; "
        "try again later, or download it manually (see --from in --help)"
    )


def _download_verified(part, url, facts):
    """Completes the file ``part`` from a URL and verifies it; raises FetchError if that is impossible."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(WAIT * 2 ** (attempt - 1))
        resumed = part.exists()
        try:
            _download(url, part, facts["size"])
        except _Interrupted as error:
            reason = error
            continue
        if not (reason := mismatch(part, facts)):
            return
        part.unlink()
        if not resumed:
            break
        # Start again because the first bytes may be those of another mirror or of an older version.
    raise FetchError(reason)


def _download(url, part, size):
    """Appends the missing bytes of a file at a URL to ``part``."""
    start = part.stat().st_size if part.exists() else 0
    if start == size:
        return
    with _open(url, start if start < size else 0) as response:
        start, total = _response_range(response)
        if total is not None and total != size:
            raise FetchError(f"provides a file of {total:,} bytes instead of {size:,}")
        part.parent.mkdir(parents=True, exist_ok=True)
        bar = tqdm(total=size, initial=start, unit="B", unit_scale=True, desc=part.stem, disable=None)
        with bar, part.open("r+b" if start else "wb") as file:
            file.seek(start)
            while (done := file.tell()) < size:
                try:
                    chunk = response.read(min(CHUNK, size - done))
                except (OSError, http.client.HTTPException) as error:
                    raise _Interrupted(f"was cut off after {done:,} of {size:,} bytes ({error})") from None
                if not chunk:
                    raise _Interrupted(f"was cut off after {done:,} of {size:,} bytes")
                file.write(chunk)
                bar.update(len(chunk))


def _open(url, start):
    """Opens a URL from byte ``start`` on; raises FetchError with the reason if that fails."""
    headers = HEADERS | ({"Range": f"bytes={start}-"} if start else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        kind = _Interrupted if error.code == 429 or error.code >= 500 else FetchError
        raise kind(f"returned HTTP error {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        kind = _Interrupted if isinstance(reason, TimeoutError | ConnectionResetError) else FetchError
        raise kind(f"is unreachable ({getattr(reason, 'strerror', None) or reason})") from None


def _response_range(response):
    """Returns (offset of the response's first byte in the file, size of the file or None if unknown)."""
    if span := re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "")):
        return int(span[1]), None if span[2] == "*" else int(span[2])
    length = response.headers.get("Content-Length")
    return 0, None if length is None else int(length)


def unpack(archive: Path, folder: Path) -> None:
    """Extracts a zip or tar archive to ``folder`` atomically, unless the folder exists.

    Raises:
        FetchError: If the archive is damaged, or contains a device or a link to a path outside the folder.
    """
    if folder.is_dir():
        return
    kind = {"format": "tar", "filter": "data"}
    with _archive_errors(archive), atomic_folder(folder) as part, show_written(f"unpacking {archive}", part):
        if zipfile.is_zipfile(archive):
            kind = {"format": "zip"}
            with zipfile.ZipFile(archive) as opened:
                members_of(opened, archive)
        shutil.unpack_archive(archive, part, **kind)


def files_in(source: Path, pattern: str, limit: int = MAX_BYTES) -> Iterator[tuple[re.Match, bytes]]:
    """Yields (match, content) of each file whose path matches a pattern, in a folder or an archive.

    Hidden files are left out.

    Raises:
        FetchError: If ``source`` is missing, no file matches, or the archive is damaged or contains a
            symbolic link.
        ValueError: If a file exceeds ``limit`` bytes.
    """
    if not (source.is_dir() or source.is_file()):
        raise FetchError(f"{source} is missing: expected a folder or an archive")
    regex, count = re.compile(pattern), 0
    if source.is_dir():
        for path in progress([*visible_files(source)], source.name, "files"):
            if match := regex.search(path.relative_to(source).as_posix()):
                count += 1
                yield match, read_file(path, limit)
    else:
        is_zip = zipfile.is_zipfile(source)
        with _archive_errors(source), zipfile.ZipFile(source) if is_zip else tarfile.open(source) as archive:
            for name, member in progress(members_of(archive, source), source.name, "files"):
                if match := regex.search(name):
                    count += 1
                    with archive.open(member) if is_zip else archive.extractfile(member) as file:
                        content = file.read(limit + 1)
                    check_size(f"{source}: {name}", len(content), limit)
                    yield match, content
    if not count:
        raise FetchError(f"{source} contains none of the expected files: see --help")


def members_of(archive: zipfile.ZipFile | tarfile.TarFile, source: Path) -> list[tuple]:
    """Returns [(path, member)] of the files in the open archive ``source``, without hidden ones.

    Raises:
        FetchError: If there is a symbolic link, which a zip archive stores like a file.
    """
    if isinstance(archive, zipfile.ZipFile):
        found = [(m.filename, m, stat.S_ISLNK(m.external_attr >> 16)) for m in archive.infolist()]
    else:
        found = [(m.name, m, m.issym()) for m in archive.getmembers() if not (m.isdir() or m.isdev())]
    found = [member for member in found if not is_hidden(member[0])]
    if link := next((name for name, _, is_link in found if is_link), None):
        advice = "unpack it, and give the folder to --from"
        raise FetchError(f"{source} contains a symbolic link, {link}: {advice}")
    return [(name, member) for name, member, _ in found]


def files_of_tar(archive: Path) -> Iterator[tuple[str, int, int]]:
    """Yields (path, offset, size) of each file in a tar archive and in the tar archives inside it.

    Offset and size are in bytes, in ``archive``. The archive must not be compressed.

    Raises:
        FetchError: If the archive is damaged or compressed.
    """
    with _archive_errors(archive), tarfile.open(archive, "r:") as opened:
        for member in progress(opened.getmembers(), f"listing {archive.name}", "files"):
            if not member.isfile() or is_hidden(member.name):
                continue
            if not member.name.endswith(".tar"):
                yield member.name, member.offset_data, member.size
                continue
            with tarfile.open(fileobj=opened.extractfile(member)) as nested:
                for file in (x for x in nested if x.isfile() and not is_hidden(x.name)):
                    yield f"{member.name}/{file.name}", member.offset_data + file.offset_data, file.size


@contextlib.contextmanager
def _archive_errors(path):
    """Converts the errors of a damaged archive to FetchError."""
    try:
        yield
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, OSError, KeyError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # caused by the disk, not by the archive
        reason = str(error).partition("\n")[0].rstrip(":")  # tarfile adds one line per format
        message = f"{path} is not a complete zip or tar archive ({reason}): download it again"
        raise FetchError(message) from None
