"""Commands forked from one process that has imported fairseq: to start one of its own takes seconds.

``Forks.bin`` is like the environment's folder of programs. Its fairseq commands, and its ``python`` for code
or a program of ours, ask the server for a fork, which gets their words, environment, folder and open files,
and runs the command's main function; they pass signals on and end as it ends. All else is the real program.
"""

import gc
import importlib
import json
import logging
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

BIN = Path(sys.executable).parent
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
here, name = os.path.split(sys.argv.pop(0))
modules = ("fairseq_cli.", "fairseq_lrpe", "data_prep")
if name == "python" and not (sys.argv[0] == "-c" or sys.argv[0] == "-m" and sys.argv[1].startswith(modules)):
    os.execv({python!r}, [{python!r}, *sys.argv])
files = [int(x) for x in os.listdir("/proc/self/fd")]
files = [x for x in sorted(files) if os.path.exists(f"/proc/self/fd/{{x}}")]  # not the listing's own
server = socket.socket(socket.AF_UNIX)
server.connect(f"{{here}}/server")
told = json.dumps([here, name, sys.argv, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(told).to_bytes(4, "big")], files)
server.sendall(told)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, lambda number, frame: server.send(bytes([number])))
code = int(server.recv(16) or 1)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


LATER = ("torch._dynamo", "matplotlib.figure", "rich.progress", "scipy.stats", "sacrebleu")
"""What optimizers, pictures and measures import when they are made, in seconds: a fork has it already."""


class Forks:
    """The folder and its server, which imports fairseq when it is first asked and ends with these tests."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="forks-")  # a socket's path has to be short
        self.bin = Path(self.folder.name)
        for program in BIN.iterdir():
            mine = self.bin / program.name
            if program.name == "python" or program.name.startswith("fairseq-"):
                mine.write_text(CLIENT.format(python=str(BIN / "python")))
                mine.chmod(0o755)
            else:
                mine.symlink_to(program)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self.bin / "server"))
            listening.listen(64)
            self.server = subprocess.Popen(
                [BIN / "python", __file__, str(listening.fileno())],
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )

    def close(self):
        self.server.stdin.close()
        self.server.wait()
        self.folder.cleanup()


def serve(listening):
    """Forks for each who asks until its stdin is closed; in a fork, it returns what that has to call."""
    signal.signal(signal.SIGCHLD, reap)
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        connection, _ = listening.accept()
        if "fairseq" not in sys.modules:
            import_fairseq()
        if os.fork() == 0:
            listening.close()
            return watch(connection)
        connection.close()
    return lambda: None


def reap(number, frame):
    """Takes note of the ends of those that watch."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def import_fairseq():
    """Imports fairseq, which sets up logging and says what it misses, and what its commands import later."""
    logging.disable()
    for name in ("fairseq", *LATER):
        importlib.import_module(name)
    logging.disable(logging.NOTSET)
    gc.freeze()  # a collection would write to all that the forks share


def watch(connection):
    """Forks the command, passes signals on and tells its exit code; returns what the fork has to call."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    length, files, _, _ = socket.recv_fds(connection, 4, 253)
    with connection.makefile("rb") as stream:
        told = stream.read(int.from_bytes(length, "big"))
    process = os.fork()
    if process == 0:
        connection.close()
        return become(files, *json.loads(told))
    for file in files:
        os.close(file)
    ended = os.pidfd_open(process)
    while ended not in select.select([connection, ended], [], [])[0]:
        numbers = connection.recv(16)
        if not numbers:  # who asked was killed
            os.killpg(0, signal.SIGKILL)
        for number in numbers:
            os.kill(process, number)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    connection.send(str(code).encode())
    os._exit(0)


def become(files, here, name, words, folder, environment):
    """Makes this process what a new one would be; returns the command's main function."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.executable = f"{here}/python"
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    first = {"-m": folder, "-c": ""}[words[0]] if name == "python" else str(BIN)
    sys.path[:1] = [first, *paths]
    if "PYTHONUNBUFFERED" in environment:
        sys.stdout.reconfigure(line_buffering=True)
    if environment.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    if name in ("python", "fairseq-train"):  # the other commands leave logging to what they import
        logging.root.handlers.clear()
        logging.root.setLevel(logging.WARNING)
    if "OMP_NUM_THREADS" in environment:
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if name == "python":
        kind, what, *words = words
        sys.argv = [kind, *words]
        if kind == "-c":
            return partial(exec, what, vars(sys.modules["__main__"]))
        return partial(runpy.run_module, what, run_name="__main__", alter_sys=True)
    sys.argv = [str(BIN / name), *words]
    return importlib.import_module("fairseq_cli." + name.removeprefix("fairseq-").replace("-", "_")).cli_main


if __name__ == "__main__":
    main = serve(socket.socket(fileno=int(sys.argv[1])))
    main()
