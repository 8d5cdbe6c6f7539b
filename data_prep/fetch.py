"""Published files from the first mirror that has them, and archives unpacked: verified and whole, or not.

The facts of a file, as sources.yaml has them: its ``size`` in bytes, its ``sha256``, and its ``mirrors``,
folders in which it has the same name.
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
from pathlib import Path, PureWindowsPath

import yaml
from tqdm import tqdm

from data_prep.progress import AFTER
from fairseq_lrpe.files import whole_folder

SOURCES = yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text())

# WikiText's host refuses urllib's own name.
HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; fairseq-lrpe)"}
CHUNK = 1 << 20
TIMEOUT = 30  # seconds without a byte
TRIES = 5  # of one mirror, while its answers break off
WAIT = 1  # seconds before the second try, doubled before each further one


class FetchError(ValueError):
    """A file cannot be had, or is not the one asked for; the message says why and what would work."""


class _BrokenOff(FetchError):
    """The mirror's answer ended early: another try may go on from there."""


def fault(path: Path, facts: dict) -> str | None:
    """Returns why ``path`` is not the file that the facts are of, and None if it is."""
    found = path.stat().st_size
    if found != facts["size"]:
        return f"has {found:,} bytes instead of {facts['size']:,}"
    sha256, told = hashlib.sha256(), {"desc": f"checking {path.name}", "unit": "B", "unit_scale": True}
    with path.open("rb") as file, tqdm(total=found, disable=None, delay=AFTER, leave=False, **told) as bar:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
            bar.update(len(chunk))
    found = sha256.hexdigest()
    return None if found == facts["sha256"] else f"has SHA-256 {found} instead of {facts['sha256']}"


def verified(path: Path, name: str, facts: dict) -> Path:
    """Returns ``path`` if it is a copy of the published file ``name``, else raises FetchError."""
    if not path.is_file():
        raise FetchError(f"{path} is missing: a copy of the published {name} is needed")
    if reason := fault(path, facts):
        raise FetchError(f"{path} is not the published {name}: it {reason}")
    return path


def fetch(dest: Path, facts: dict) -> Path:
    """Returns ``dest``, from the first mirror that gives it; ``dest``.part of an earlier run is continued."""
    if dest.is_file() and not fault(dest, facts):
        return dest
    part = dest.with_name(dest.name + ".part")
    reasons = []
    for mirror in facts["mirrors"]:
        url = f"{mirror}/{dest.name}"
        print(f"Fetching {url}", flush=True)
        try:
            _fill(part, url, facts)
            os.replace(part, dest)
            return dest
        except FetchError as error:
            print(f"    {error}", flush=True)
            reasons.append(f"{url} {error}")
    raise FetchError(
        f"no mirror gave {dest.name}: {'; '.join(reasons)}; "
        "try again later, or get a copy elsewhere (--help says how to give it)"
    )


def _fill(part, url, facts):
    """Makes ``part`` whole and verified; FetchError says why this mirror was left."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(WAIT * 2 ** (attempt - 1))
        continued = part.exists()
        try:
            _download(url, part, facts["size"])
        except _BrokenOff as error:
            reason = error
            continue
        if not (reason := fault(part, facts)):
            return
        part.unlink()
        if not continued:
            break
        # The beginning may be of another mirror's file, or of this one before it changed: from the start.
    raise FetchError(reason)


def _download(url, part, size):
    """Writes what ``part`` lacks of the ``size`` bytes."""
    have = part.stat().st_size if part.exists() else 0
    if have == size:
        return
    if have > size:
        have = 0
    with open_url(url, Range=f"bytes={have}-") if have else open_url(url) as response:
        have, total = _place(response, have)
        if total is not None and total != size:
            raise FetchError(f"has a file of {total:,} bytes instead of {size:,}")
        part.parent.mkdir(parents=True, exist_ok=True)
        bar = tqdm(total=size, initial=have, unit="B", unit_scale=True, desc=part.stem, disable=None)
        with bar, part.open("ab" if have else "wb") as file:
            while have < size:
                try:
                    chunk = response.read(min(CHUNK, size - have))
                except (OSError, http.client.HTTPException) as error:
                    raise _BrokenOff(f"broke off at {have:,} of {size:,} bytes ({error})") from None
                if not chunk:
                    raise _BrokenOff(f"broke off at {have:,} of {size:,} bytes")
                file.write(chunk)
                have += len(chunk)
                bar.update(len(chunk))


def open_url(url: str, **headers: str) -> http.client.HTTPResponse:
    """Returns the answer to read; FetchError says why there is none."""
    request = urllib.request.Request(url, headers={**HEADERS, **headers})
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        kind = _BrokenOff if error.code == 429 or error.code >= 500 else FetchError
        raise kind(f"answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        kind = _BrokenOff if isinstance(reason, TimeoutError | ConnectionResetError) else FetchError
        raise kind(f"cannot be reached ({getattr(reason, 'strerror', None) or reason})") from None


def _place(response, wanted):
    """Returns where in the file the answer begins, as a server may ignore the range, and its size or None."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if not span or int(span[1]) != wanted:
            raise FetchError("answers with another range than asked for")
        return wanted, None if span[2] == "*" else int(span[2])
    length = response.headers.get("Content-Length")
    return 0, None if length is None else int(length)


def unpack(archive: Path, folder: Path) -> None:
    """Writes the files of a zip or tar archive into ``folder``, which appears whole or not at all.

    FetchError names the first member that is no plain file or folder or whose path leads out of ``folder``,
    before anything is written.
    """
    if folder.is_dir():
        return
    with _opened(archive) as (members, open_member):
        for name, kind, _ in members:
            if kind not in ("file", "folder"):
                raise FetchError(f"{archive} has the member {name}, {kind}: unpack it by hand")
            if PureWindowsPath(name).anchor or ".." in PureWindowsPath(name).parts:
                raise FetchError(f"{archive} has the member {name}, which leads out of the folder")
        with whole_folder(folder) as part:
            for name, kind, member in tqdm(members, desc=folder.name, unit="file", disable=None):
                path = part / name
                (path if kind == "folder" else path.parent).mkdir(parents=True, exist_ok=True)
                if kind == "file":
                    with open_member(member) as source, path.open("wb") as target:
                        shutil.copyfileobj(source, target, CHUNK)


def files_in(source: Path, pattern: str) -> Iterator[tuple[re.Match, bytes]]:
    """Yields (match of its path, content) of each file in a folder or an archive whose path has ``pattern``.

    FetchError if there is none, or if the archive is damaged.
    """
    if not source.exists():
        raise FetchError(f"{source} is missing: a folder or an archive is needed")
    wanted, found = re.compile(pattern), 0
    shown = {"desc": source.name, "unit": "files", "disable": None, "delay": AFTER, "leave": False}
    if source.is_dir():
        for path in tqdm(sorted(source.rglob("*")), **shown):
            if (match := wanted.search(path.relative_to(source).as_posix())) and path.is_file():
                found += 1
                yield match, path.read_bytes()
    else:
        with _opened(source) as (members, open_member):
            for name, kind, member in tqdm(members, **shown):
                if kind == "file" and (match := wanted.search(name)):
                    found += 1
                    yield match, open_member(member).read()
    if not found:
        raise FetchError(f"{source} has none of the files that are needed (see --help)")


def files_of_tar(archive: Path) -> Iterator[tuple[str, int, int]]:
    """Yields (path, where it begins, bytes) of each file of a tar archive, those of tars inside included.

    Where a file begins is meant in the archive as it is without its compression. FetchError if the archive is
    damaged.
    """
    if zipfile.is_zipfile(archive):
        raise FetchError(f"{archive} is a zip archive: a tar archive or a folder is needed")
    shown = {
        "desc": f"listing {archive.name}",
        "unit": "files",
        "disable": None,
        "delay": AFTER,
        "leave": False,
    }
    with _opened(archive) as (members, open_member):
        for name, kind, member in tqdm(members, **shown):
            if kind != "file":
                continue
            if not name.endswith(".tar"):
                yield name, member.offset_data, member.size
                continue
            with tarfile.open(fileobj=open_member(member)) as inside:
                for file in filter(tarfile.TarInfo.isfile, inside):
                    yield f"{name}/{file.name}", member.offset_data + file.offset_data, file.size


@contextlib.contextmanager
def uncompressed_tar(archive: Path, place: Path) -> Iterator[Path]:
    """Yields a tar archive, or where it is compressed a copy at ``place`` that is not and goes at the end."""
    try:
        tarfile.open(archive, "r:").close()
        yield archive
        return
    except tarfile.ReadError:
        pass
    try:
        with tarfile.open(archive) as packed, place.open("wb") as plain:
            packed.fileobj.seek(0)
            shutil.copyfileobj(packed.fileobj, plain, CHUNK)
        yield place
    finally:
        place.unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(path):
    """Yields (name, kind, member) of each member, and a function that opens one."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield [(m.filename, _zip_kind(m), m) for m in archive.infolist()], archive.open
        elif tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                yield [(m.name, _tar_kind(m), m) for m in archive.getmembers()], archive.extractfile
        else:
            raise FetchError(f"{path} is no whole zip or tar archive")
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk, not of the archive
        raise FetchError(f"{path} is damaged ({error}): get it again") from None


def _zip_kind(member):
    if stat.S_ISLNK(member.external_attr >> 16):
        return "a link"
    return "folder" if member.is_dir() else "file"


def _tar_kind(member):
    if member.issym() or member.islnk():
        return f"a link to {member.linkname}"
    return "file" if member.isfile() else "folder" if member.isdir() else "a device"
