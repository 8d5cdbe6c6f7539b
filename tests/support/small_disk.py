"""Small file systems in a mount namespace of their own, as in containers, and limits of file sizes."""

import functools
import resource
import shutil
import subprocess
from contextlib import contextmanager

ENTER = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]


def on_small_disk(folder, size, command):
    """Returns a command that mounts an empty file system of ``size`` on a folder and runs ``command``."""
    mount = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
    return [*ENTER, mount, str(folder), *map(str, command)]


@functools.cache
def can_mount():
    """Returns whether this user may mount a file system in a namespace; many containers forbid it."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(on_small_disk("/tmp", "64k", ["true"]), capture_output=True).returncode == 0


@contextmanager
def full_disk(size=2000):
    """Makes files fail to grow beyond ``size`` bytes in the block, with the errors of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
