"""The states of a run."""

from enum import StrEnum


class State(StrEnum):
    """How far a run is; a run is QUEUED only on a cluster.

    The folder of a run does not tell whether a job is queued, and its settings do not tell whether it failed:
    ``Job.state`` is ABSENT, RUNNING, STOPPED, DAMAGED or FINISHED.
    """

    ABSENT = "absent"  # has no folder
    QUEUED = "queued"
    RUNNING = "running"  # in use by a process or thread
    STOPPED = "stopped"  # something is left to be trained or evaluated
    FAILED = "failed"  # stopped with an error
    DAMAGED = "damaged"  # has files that cannot be read
    OUTDATED = "other settings"  # has other settings than configs
    FINISHED = "finished"
