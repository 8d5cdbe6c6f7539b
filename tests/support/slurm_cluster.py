"""A SLURM cluster of two nodes on the loopback interface: real daemons, started and stopped by tests."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
NODES = ("node1", "node2")
CONF = """\
ClusterName=lrpe
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=20
SlurmdTimeout=30
MinJobAge=60
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,defer_batch
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """The running daemons. ``environment`` lets SLURM's commands use this cluster."""

    def __init__(self, folder: Path):
        self.folder, self.daemons = folder, {}
        ports = free_ports(1 + len(NODES))
        lines = [
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=1 State=UNKNOWN"
            for name, port in zip(NODES, ports[1:], strict=True)
        ]
        host, names = socket.gethostname(), ",".join(NODES)
        text = CONF.format(host=host, ports=ports, folder=folder, nodes="\n".join(lines), names=names)
        (folder / "slurm.conf").write_text(text)
        (folder / "state").mkdir()
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        names = {"key-file": key, "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
        names["seed-file"] = "munge.seed"
        flags = [f"--{name}={self.folder / path}" for name, path in names.items()]
        self.start_daemon("munged", "--foreground", "--force", *flags)
        wait_until(lambda: (self.folder / "munge.socket").exists(), "munged's socket")
        self.start_controller()
        for name in NODES:
            self.start_daemon("slurmd", "-D", "-N", name, key=name)
        wait_until(
            lambda: self.run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(NODES), "idle nodes"
        )

    def start_controller(self) -> None:
        self.start_daemon("slurmctld", "-D")
        wait_until(lambda: "is UP" in self.run("scontrol", "ping"), "slurmctld")

    def start_daemon(self, program, *flags, key=None) -> None:
        with (self.folder / f"{key or program}.out").open("ab") as output:
            command = [shutil.which(program), *flags]
            self.daemons[key or program] = subprocess.Popen(
                command, env=self.environment, stdout=output, stderr=output, start_new_session=True
            )

    def stop_daemon(self, key: str) -> None:
        process = self.daemons.pop(key)
        process.terminate()
        process.wait(60)

    def restart_controller(self) -> None:
        self.stop_daemon("slurmctld")
        self.start_controller()

    def stop(self) -> None:
        """Cancels all jobs and stops the daemons."""
        if "slurmctld" in self.daemons:
            self.run("scancel", "--user=root")
            wait_until(lambda: not self.run("squeue", "-h"), "the end of all jobs")
        for key in list(self.daemons)[::-1]:
            self.stop_daemon(key)

    def run(self, *command: str) -> str:
        """Returns the output of one of SLURM's commands, or "" if it fails."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True).stdout


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_until(condition, what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not appear within {seconds} seconds")
        time.sleep(0.1)


@contextmanager
def slurm_cluster():
    """Yields a running cluster; skips the test where SLURM is not installed."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install slurm-wlm munge")
    if os.geteuid():
        pytest.skip("needs root to start the daemons of SLURM")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = SlurmCluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
