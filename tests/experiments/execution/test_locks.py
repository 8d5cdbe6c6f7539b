"""Run folders on file systems without locks, and those of other users."""

import errno
import fcntl
import os

import pytest

from fairseq_lrpe.experiments.execution.run_directory import LocksUnsupported, is_locked, locked
from fairseq_lrpe.utils.errors import UserError

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


def test_folder_of_another_user(tmp_path):
    """In a fork without the rights of root, to whom permissions do not apply."""
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    with locked(tmp_path):
        pass
    (tmp_path / "lock").chmod(0o400 if os.geteuid() else 0o600)
    child = os.fork()
    if child == 0:
        os._exit(_try_as_other_user(tmp_path))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _try_as_other_user(folder):
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(12345)
        os.setuid(12345)
    try:
        with locked(folder):
            return 1
    except UserError as error:
        expected = f"{folder} cannot be written (Permission denied): make the folder and its files writable"
        return 0 if str(error).startswith(expected) and not is_locked(folder) else 2
