"""Verified downloads from mirrors, and unpacking and listing of archives.

``SOURCES`` is the content of sources.yaml. The ``facts`` of a file are its ``size`` in bytes, its ``sha256``,
and its ``mirrors``, which are base URLs to which the file's name is appended. This module implements
downloads itself, because pooch cannot resume a partial download and huggingface_hub downloads only from the
Hugging Face Hub.
"""

import contextlib
import hashlib
import http.client
import lzma
import os
import shutil
import stat
import struct
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import yaml

from data_prep.parallel import progress
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import check_regular, is_hidden

SOURCES = yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text())

# WikiText's host rejects urllib's default user agent.
HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; fairseq-lrpe)"}
MS_DOS = 0  # "create_system" of zip archives that Windows makes
CHUNK = 1 << 20  # bytes read at once
TIMEOUT = 30  # seconds without data after which a download is interrupted
TRIES = 5  # attempts per mirror after interrupted responses
WAIT = 1  # seconds before the second attempt, doubled before each further one
MIN_RATE = 20_000  # bytes per second, below which a download is given up
MIN_TIME = 600  # seconds for which any download may take
TOO_MANY_REQUESTS = 429


def mismatch(path: Path, facts: dict) -> str | None:
    """Returns a text that says how a file differs from the published size or SHA-256, or None."""
    check_regular(path)
    size = path.stat().st_size
    if size != facts["size"]:
        return f"has {size:,} bytes instead of {facts['size']:,}"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == facts["sha256"] else f"has SHA-256 {digest} instead of {facts['sha256']}"


def fetch(dest: Path, facts: dict, copy: Path | None = None, option: str = "--from") -> Path:
    """Returns the path of a published file: ``copy``, or else ``dest``, which is downloaded if necessary.

    An incomplete download, ``dest``.part, is resumed.

    Args:
        dest: path of the downloaded file, with its published name.
        facts: the file's entry in ``SOURCES``.
        copy: the user's copy of the file, or None.
        option: option of the command that accepts a copy, for messages.

    Raises:
        UserError: if the copy is missing or differs from the published file, or no mirror provides the file.
    """
    if copy:
        if reason := mismatch(copy, facts):
            raise UserError(f"{copy} is not the published {dest.name}: it {reason}; download it again")
        return copy
    if dest.is_file() and not mismatch(dest, facts):
        return dest
    part = dest.with_name(dest.name + ".part")
    reasons = []
    part.parent.mkdir(parents=True, exist_ok=True)
    for mirror in facts["mirrors"]:
        url = f"{mirror}/{dest.name}"
        print(f"Downloading {url}", flush=True)
        reason = _download_verified(part, url, facts)
        if not reason:
            os.replace(part, dest)
            return dest
        reasons.append(f"{url} {reason}")
    remedy = f"try again later, or download it manually (see {option} in --help)"
    raise UserError(f"no mirror provides {dest.name}: {'; '.join(reasons)}; {remedy}")


def _download_verified(part, url, facts):
    """Completes the file ``part`` from a URL; returns None, or the reason for which this failed."""
    seconds = MIN_TIME + facts["size"] / MIN_RATE
    deadline = monotonic() + seconds
    for attempt in range(TRIES):
        if attempt:
            sleep(WAIT * 2 ** (attempt - 1))
        resumed = part.exists()
        try:
            _download(part, url, facts["size"], deadline)
        except TimeLimitError:
            return f"did not complete within {seconds:,.0f} seconds"
        except urllib.error.HTTPError as error:
            reason = f"returned HTTP error {error.code} {error.reason}"
            if error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR and error.code != TOO_MANY_REQUESTS:
                break
        except ConnectionError as error:
            reason = f"was interrupted ({error})"
        else:
            if not (reason := mismatch(part, facts)):
                break
            part.unlink()
            if not resumed:
                break
            # Start again because the first bytes may be those of another mirror or of an older version.
    return reason


class TimeLimitError(Exception):
    """Raised if a download takes too long although data arrives."""


@contextlib.contextmanager
def _connection_errors():
    """Raises ConnectionError for errors of the network, to distinguish them from errors of writing a file."""
    try:
        yield
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an invalid redirect
        raise ConnectionError(getattr(error, "reason", error)) from None


@_connection_errors()
def _open(request):
    return urllib.request.urlopen(request, timeout=TIMEOUT)


@_connection_errors()
def _read(response, limit):
    return response.read1(limit)  # returns what has arrived, so that a slow server cannot evade the deadline


def _download(part, url, size, deadline):
    """Appends the missing bytes of a file at a URL to ``part``, and one more byte if the file is too long."""
    start = part.stat().st_size if part.exists() else 0
    if start >= size:
        return
    headers = HEADERS | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(url, headers=headers)
    with _open(request) as response:
        start = start if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        bar = progress(None, part.stem, total=size, initial=start)
        with bar, part.open("ab" if start else "wb") as file:
            while file.tell() <= size and (chunk := _read(response, min(CHUNK, size + 1 - file.tell()))):
                file.write(chunk)
                bar.update(len(chunk))
                if monotonic() > deadline:
                    raise TimeLimitError
            if response.length and file.tell() <= size:  # number of bytes that are missing
                raise ConnectionError(f"after {file.tell():,} of {size:,} bytes")


def unpacked(source: Path, folder: Path) -> Path:
    """Returns ``source`` if it is a folder; otherwise unpacks the archive ``source`` and returns ``folder``.

    A previous content of ``folder`` is removed. The caller removes ``folder``, also after an error.

    Raises:
        UserError: if the archive is damaged, or contains a device, a file or link that leads out of the
            folder, or, in a zip archive, any link.
    """
    if source.is_dir():
        return source
    check_regular(source)
    print(f"Unpacking {source}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with archive_errors(source):
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:  # shutil skips every name with two dots
                members = with_slashes(archive.infolist())
                for member in members:
                    name = member.filename
                    is_link = stat.S_ISLNK(member.external_attr >> 16)
                    inside = not name.startswith("/") and ".." not in name.split("/")
                    check_member(source, name, inside and not is_link)  # zipfile cannot create links
                archive.extractall(folder, members)
        else:
            with tarfile.open(source) as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not before Python 3.11.4
                archive.extractall(folder, members=checked(archive, source, folder))
                all_members(archive)
    return folder


def with_slashes(members: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """Returns the members of a zip archive, with slashes for the backslashes of archives made by Windows."""
    names = "".join(member.filename for member in members)
    for member in members:
        if member.create_system == MS_DOS or "/" not in names:
            member.filename = member.filename.replace("\\", "/")
    return members


def all_members(archive: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """Returns the members of a tar archive; raises ReadError if it does not end with a block of zeros.

    tarfile regards a damaged or truncated header as the end of an archive.
    """
    members = archive.getmembers()
    file = archive.fileobj
    file.seek(archive.offset)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"neither a file nor its end follows at byte {archive.offset:,}")
    while file.read(CHUNK):  # compressed files have checksums
        pass
    return members


def checked(archive: tarfile.TarFile, source: Path, folder: Path) -> Iterator[tarfile.TarInfo]:
    """Yields the members of a tar archive; raises UserError before a member that is unsafe to unpack.

    Args:
        archive: the opened archive.
        source: path of the archive, for messages.
        folder: the folder into which the archive is unpacked.
    """
    root = folder.resolve()
    for member in archive:
        member.name = member.name.lstrip("/")  # as the command tar does
        path = root / member.name
        target = path.parent / member.linkname if member.issym() else root / member.linkname
        inside = path.resolve().is_relative_to(root) and target.resolve().is_relative_to(root)
        check_member(source, member.name, inside and not member.isdev())
        yield member


def check_member(archive: Path, name: str, is_safe: bool) -> None:
    if not is_safe:
        wrong = f"{name} is a device, outside of the folder, or a link that cannot be followed"
        raise UserError(f"{archive} cannot be unpacked safely ({wrong}): unpack it yourself")


def files_of_tar(archive: Path) -> Iterator[tuple[str, int, int]]:
    """Yields (path, offset, size) of each visible file in a tar archive and in tar archives inside it.

    Offsets are positions in ``archive``, which must not be compressed; offsets and sizes are in bytes.
    """
    check_regular(archive)
    with archive_errors(archive), tarfile.open(archive, "r:") as opened:
        for member in progress(all_members(opened), f"listing {archive.name}", "files"):
            if not member.isfile() or is_hidden(member.name):
                continue
            if not member.name.endswith(".tar"):
                yield member.name, member.offset_data, member.size
                continue
            with tarfile.open(fileobj=opened.extractfile(member)) as nested:
                for file in all_members(nested):
                    if file.isfile() and not is_hidden(file.name):
                        begin = member.offset_data + file.offset_data
                        yield f"{member.name}/{file.name}", begin, file.size


# Of damaged archives. LookupError: a hard link to a missing member; ValueError: a name that no file can have.
ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    LookupError,
    ValueError,
    OverflowError,
)


@contextlib.contextmanager
def archive_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except RuntimeError as error:  # encryption, or a compression method that Python does not have
        raise UserError(f"{path} cannot be unpacked ({error}): unpack it yourself") from None
    except ARCHIVE_ERRORS as error:
        if isinstance(error, OSError) and error.errno:  # an error of the file system, not of the archive
            raise
        reason = str(error).partition("\n")[0].rstrip(":")  # tarfile adds one line per format
        message = f"{path} is not a complete zip or tar archive ({reason}): download it again"
        raise UserError(message) from None
