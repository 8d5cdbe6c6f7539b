"""Runs commands as forks of a server process that has imported fairseq, which saves seconds per command.

The folder ``Forks.bin`` replaces the ``bin`` folder of the virtual environment. Its fairseq commands are
clients that request a fork from the server. Its ``python`` is such a client if it is called with ``-c``, or
with ``-m`` and a module of fairseq_lrpe, data_prep or fairseq_cli. The fork gets the client's arguments,
environment, working directory and open files, and runs the command's main function. The client forwards
signals to the fork and exits with the fork's exit code. All other programs are links to the real ones.
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
import json, os, select, signal, socket, sys
here, name = os.path.split(sys.argv.pop(0))
modules = ("fairseq_cli.", "fairseq_lrpe", "data_prep")
if sys.argv[:2] == ["-u", "-m"]:  # torchrun's option, which the environment variable replaces
    del sys.argv[0]
    os.environ["PYTHONUNBUFFERED"] = "1"
if name == "python" and not (sys.argv[0] == "-c" or sys.argv[0] == "-m" and sys.argv[1].startswith(modules)):
    os.execv({python!r}, [{python!r}, *sys.argv])
files = [int(x) for x in os.listdir("/proc/self/fd")]
files = [x for x in sorted(files) if os.path.exists(f"/proc/self/fd/{{x}}")]  # not the listing's own
server = socket.socket(socket.AF_UNIX)
server.connect(f"{{here}}/server")
forwarded = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
mask = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)  # until their handlers are installed
request = json.dumps([here, name, sys.argv, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(request).to_bytes(4, "big")], files)
server.sendall(request)
server.setblocking(False)
# A handler in Python would not run if the signal came just before a blocking call.
signal.set_wakeup_fd(server.fileno())
for number in forwarded:
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, lambda number, frame: None)
signal.pthread_sigmask(signal.SIG_SETMASK, mask)
select.select([server], [], [])
code = int(server.recv(16) or 1)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


SLOW_IMPORTS = ("torch._dynamo", "matplotlib.figure", "rich.progress", "scipy.stats", "sacrebleu")
"""Modules that commands import late and that take seconds to import; the server imports them in advance."""


class Forks:
    """A fork server, which imports fairseq at the first request, and the folder ``bin`` of its clients."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="forks-")  # a Unix socket's path must be short
        self.bin = Path(self.folder.name)
        for program in BIN.iterdir():
            link = self.bin / program.name
            if program.name == "python" or program.name.startswith("fairseq-"):
                link.write_text(CLIENT.format(python=str(BIN / "python")))
                link.chmod(0o755)
            else:
                link.symlink_to(program)
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
        self.server.kill()  # a process that a test left behind may keep its standard input open
        self.server.wait()
        self.folder.cleanup()


def serve(listening):
    """Serves requests until standard input is closed; in a fork, returns the command's main function."""
    signal.signal(signal.SIGCHLD, reap)
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        connection, _ = listening.accept()
        if "fairseq" not in sys.modules:
            import_fairseq()
        if os.fork() == 0:
            listening.close()
            return supervise(connection)
        connection.close()
    return lambda: None


def reap(number, frame):
    """Collects the exit codes of finished supervisors."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def import_fairseq():
    """Imports fairseq and ``SLOW_IMPORTS``, without their log messages."""
    logging.disable()
    # Frozen objects are not collected at the end of a fork, which Triton's bindings would report as an error.
    sys.modules["triton"] = None
    for name in ("fairseq", *SLOW_IMPORTS):
        with suppress(ModuleNotFoundError):  # an environment for fairseq's commands only
            importlib.import_module(name)
    logging.disable(logging.NOTSET)
    del sys.modules["triton"]
    gc.freeze()  # a collection would write to memory that the forks share


def supervise(connection):
    """Forks a process for the command, forwards signals to it, and sends its exit code to the client.

    Returns only in the forked process: the main function of the command.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    length, files, _, _ = socket.recv_fds(connection, 4, 253)
    with connection.makefile("rb") as stream:
        request = stream.read(int.from_bytes(length, "big"))
    process = os.fork()
    if process == 0:
        connection.close()
        return set_up(files, *json.loads(request))
    for file in files:
        os.close(file)
    ended = os.pidfd_open(process)
    while ended not in select.select([connection, ended], [], [])[0]:
        numbers = connection.recv(16)
        if not numbers:  # the client was killed
            os.killpg(0, signal.SIGKILL)
        for number in numbers:
            os.kill(process, number)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    connection.send(str(code).encode())
    os._exit(0)


def set_up(files, here, name, arguments, folder, environment):
    """Makes this process equivalent to a new one and returns the main function of the command.

    The arguments are those of the client, of whose ``files`` the first three are its standard streams.
    """
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.executable = f"{here}/python"
    paths = dict.fromkeys(path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path)
    first = {"-m": folder, "-c": ""}[arguments[0]] if name == "python" else str(BIN)
    sys.path[:1] = [first, *paths]
    if "PYTHONUNBUFFERED" in environment:
        sys.stdout.reconfigure(line_buffering=True)
    if environment.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    if name in ("python", "fairseq-train"):  # the imports of other commands configure logging
        logging.root.handlers.clear()
        logging.root.setLevel(logging.WARNING)
    if "OMP_NUM_THREADS" in environment:
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if name == "python":
        kind, code, *arguments = arguments
        sys.argv = [kind, *arguments]
        if kind == "-c":
            return partial(exec, code, vars(sys.modules["__main__"]))
        return partial(runpy.run_module, code, run_name="__main__", alter_sys=True)
    sys.argv = [str(BIN / name), *arguments]
    return importlib.import_module("fairseq_cli." + name.removeprefix("fairseq-").replace("-", "_")).cli_main


if __name__ == "__main__":
    main = serve(socket.socket(fileno=int(sys.argv[1])))
    main()
