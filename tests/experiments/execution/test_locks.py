"""Run folders on file systems without locks, and those of other users."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.tiny import REPOSITORY

from fairseq_lrpe.experiments.execution.run_directory import LocksUnsupported, is_locked, locked

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@pytest.mark.parametrize("number", UNSUPPORTED)
def test_file_system_without_locks(number, tmp_path, monkeypatch):
    """Writing is refused and leaves nothing; reading works."""

    def flock(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    message = f"run cannot be locked .{os.strerror(number)}.: use a results folder whose file system supports"
    with pytest.raises(LocksUnsupported, match=message), locked(tmp_path / "run"):
        pass
    assert not list((tmp_path / "run").iterdir())
    (tmp_path / "run/lock").touch()
    assert not is_locked(tmp_path / "run")


@pytest.mark.parametrize("create", [None, Path.mkdir, os.mkfifo], ids=["missing", "folder", "pipe"])
def test_without_a_lock_file_there_is_no_lock(create, tmp_path):
    if create:
        create(tmp_path / "lock")
    assert not is_locked(tmp_path)


OTHER_USER = """
import os, sys
from pathlib import Path
from fairseq_lrpe.experiments.execution.run_directory import is_locked, locked
from fairseq_lrpe.utils.errors import UserError

folder = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(12345)
    os.setuid(12345)
assert not is_locked(folder)
try:
    with locked(folder):
        print("locked")
except UserError as error:
    print(error)
"""


def test_folder_of_another_user(tmp_path):
    """In a process without the rights of root, to whom permissions do not apply."""
    top = Path(tempfile.gettempdir())
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to(top) and folder != top:
            folder.chmod(0o755)
    with locked(tmp_path):
        pass
    (tmp_path / "lock").chmod(0o400 if os.geteuid() else 0o600)
    command = [sys.executable, "-c", OTHER_USER, str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    message = f"{tmp_path} cannot be written (Permission denied): make the folder and its files writable"
    assert done.stdout.startswith(message)
