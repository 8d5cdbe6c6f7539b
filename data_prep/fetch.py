"""Published files from the first mirror that has them, and archives unpacked: verified and whole, or not.

As a command: ``python data_prep/fetch.py DEST URL [URL ...] --size BYTES --sha256 HEX``.
"""

import argparse
import contextlib
import hashlib
import http.client
import os
import re
import shutil
import stat
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path, PureWindowsPath

from tqdm import tqdm

# WikiText's host refuses urllib's own name.
HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; fairseq-lrpe)"}
CHUNK = 1 << 20
TIMEOUT = 30  # seconds without a byte
TRIES = 5  # of one mirror, while its answers break off
WAIT = 1  # seconds before the second try, doubled before each further one


class FetchError(Exception):
    """A file cannot be had, or is not the one asked for; the message says why and what would work."""


class _NotHere(Exception):
    """This mirror has no such file."""


class _BrokenOff(Exception):
    """The mirror's answer ended early: another try may go on from there."""


def fault(path, size, sha256):
    """Why ``path`` is not the file of this size and SHA-256; None if it is."""
    found = path.stat().st_size
    if found != size:
        return f"has {found:,} bytes instead of {size:,}"
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return None if found == sha256 else f"has SHA-256 {found} instead of {sha256}"


def verified(path, name, size, sha256):
    """``path``, a copy of the published file ``name``; FetchError if it is not."""
    if not path.is_file():
        raise FetchError(f"{path} is missing: a copy of the published {name} is needed")
    reason = fault(path, size, sha256)
    if reason:
        raise FetchError(f"{path} is not the published {name}: it {reason}")
    return path


def fetch(dest, urls, size, sha256):
    """``dest`` from the first of ``urls`` that gives it; ``dest``.part of an earlier run is continued."""
    if dest.is_file() and not fault(dest, size, sha256):
        return dest
    dest.parent.mkdir(parents=True, exist_ok=True)
    part = dest.with_name(dest.name + ".part")
    reasons = []
    for url in urls:
        print(f"Fetching {url}", flush=True)
        reason = _try_mirror(url, part, size, sha256)
        if reason is None:
            os.replace(part, dest)
            return dest
        print(f"    {reason}", flush=True)
        reasons.append(f"{url} {reason}")
    raise FetchError(
        f"no mirror gave {dest.name}: {'; '.join(reasons)}; "
        "try again later, or get a copy elsewhere (--help says how to give it)"
    )


def _try_mirror(url, part, size, sha256):
    """None once ``part`` is whole and verified, else why this mirror was left."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(WAIT * 2 ** (attempt - 1))
        continued = part.exists()
        try:
            _download(url, part, size)
        except _NotHere as error:
            return str(error)
        except _BrokenOff as error:
            reason = str(error)
            continue
        reason = fault(part, size, sha256)
        if reason is None:
            return None
        part.unlink()
        if not continued:
            break
        # The beginning may be of another mirror's file, or of this one before it changed: from the start.
    return reason


def _download(url, part, size):
    """Writes what ``part`` lacks of the ``size`` bytes."""
    have = part.stat().st_size if part.exists() else 0
    if have == size:
        return
    if have > size:
        have = 0
    headers = {**HEADERS, "Range": f"bytes={have}-"} if have else HEADERS
    with _open(urllib.request.Request(url, headers=headers)) as response:
        have, total = _place(response, have)
        if total is not None and total != size:
            raise _NotHere(f"has a file of {total:,} bytes instead of {size:,}")
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


def _open(request):
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        kind = _BrokenOff if error.code == 429 or error.code >= 500 else _NotHere
        raise kind(f"answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        kind = _BrokenOff if isinstance(reason, TimeoutError | ConnectionResetError) else _NotHere
        raise kind(f"cannot be reached ({reason})") from None


def _place(response, wanted):
    """(where in the file the answer begins, the file's size or None): a server may ignore the range."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if not span or int(span[1]) != wanted:
            raise _NotHere("answers with another range than asked for")
        return wanted, None if span[2] == "*" else int(span[2])
    length = response.headers.get("Content-Length")
    return 0, None if length is None else int(length)


def unpack(archive, folder):
    """``folder`` with the files of a zip or tar ``archive``; it appears whole or not at all.

    FetchError names the first member that is no plain file or folder or whose path leads out of ``folder``,
    before anything is written.
    """
    if folder.is_dir():
        return
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with _opened(archive) as (members, open_member):
            for name, kind, _ in members:
                if kind not in ("file", "folder"):
                    raise FetchError(f"{archive} has the member {name}, {kind}: unpack it by hand")
                if PureWindowsPath(name).anchor or ".." in PureWindowsPath(name).parts:
                    raise FetchError(f"{archive} has the member {name}, which leads out of the folder")
            part.mkdir(parents=True)
            for name, kind, member in tqdm(members, desc=folder.name, unit="file", disable=None):
                path = part / name
                if kind == "folder":
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                with open_member(member) as source, path.open("wb") as target:
                    shutil.copyfileobj(source, target, CHUNK)
        os.replace(part, folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


@contextlib.contextmanager
def _opened(path):
    """([(name, kind, member)], a function that opens a member)."""
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


def main():
    parser = argparse.ArgumentParser(
        prog="fetch", description="Fetch DEST from the first URL that gives it; a rerun continues."
    )
    parser.add_argument("dest", type=Path, metavar="DEST")
    parser.add_argument("urls", nargs="*", metavar="URL")
    parser.add_argument("--size", type=int, required=True, help="the file's bytes")
    parser.add_argument("--sha256", required=True, help="the file's SHA-256, hexadecimal")
    parser.add_argument(
        "--from", dest="copy", type=Path, metavar="FILE", help="a copy that is there already, instead of URLs"
    )
    args = parser.parse_args()
    wrong = [url for url in args.urls if not url.startswith(("http://", "https://"))]
    try:
        if wrong or not (args.urls or args.copy):
            raise FetchError(f"{wrong[0] if wrong else 'nothing'} given where an http(s) address is needed")
        if args.copy:
            verified(args.copy, args.dest.name, args.size, args.sha256)
            args.dest.parent.mkdir(parents=True, exist_ok=True)
            part = args.dest.with_name(args.dest.name + ".part")
            shutil.copyfile(args.copy, part)
            os.replace(part, args.dest)
        else:
            fetch(args.dest, args.urls, args.size, args.sha256)
    except KeyboardInterrupt:
        print("\nfetch: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except (FetchError, OSError) as error:
        sys.exit(f"fetch: {error}")


if __name__ == "__main__":
    main()
