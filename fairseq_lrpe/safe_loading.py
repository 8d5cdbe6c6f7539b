"""Importing this lets torch's safe loading read fairseq's checkpoints.

What it refuses in them is harmless: metrics that are numpy's numbers, and the Namespace of what is configured
by flags alone.
"""

import argparse

import numpy as np
import torch

torch.serialization.add_safe_globals(
    [argparse.Namespace, np.core.multiarray.scalar, np.dtype, type(np.dtype(np.float64))]
)
