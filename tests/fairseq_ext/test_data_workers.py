"""Processes that load data and cannot send a batch."""

import subprocess

from support.tiny import BIN, REPOSITORY

PROGRAM = """
from torch.utils.data import DataLoader
from fairseq_lrpe.fairseq_ext.data_workers import end_workers_that_cannot_send

def lambdas(samples):  # batches that cannot be pickled
    return lambda: samples

end_workers_that_cannot_send()
list(DataLoader(range(4), num_workers=1, collate_fn=lambdas, timeout=300))
"""


def test_worker_that_cannot_send_a_batch_ends_the_program():
    """Without the patch, torch would wait for 300 seconds; fairseq sets no timeout."""
    done = subprocess.run([BIN / "python", "-c", PROGRAM], capture_output=True, text=True, cwd=REPOSITORY)
    last = done.stderr.strip().splitlines()[-1]
    assert "DataLoader worker" in last and "exited unexpectedly" in last
