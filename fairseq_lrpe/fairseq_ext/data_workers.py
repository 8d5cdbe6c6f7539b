"""Processes that load data for fairseq's commands, which end if such a process cannot send a batch."""

import os
from functools import wraps
from multiprocessing.queues import Queue

from torch.utils.data import get_worker_info


def end_workers_that_cannot_send() -> None:
    """Ends a data loading process after an error of its queue, such as a full /dev/shm.

    Otherwise, Python prints the error in a thread of the process and drops the batch, for which the training
    then waits forever. torch raises an error when a process has ended.
    """
    report = Queue._on_queue_feeder_error

    @wraps(report)
    def report_and_exit(error, item):
        report(error, item)
        if get_worker_info() is not None:
            os._exit(1)

    Queue._on_queue_feeder_error = staticmethod(report_and_exit)
