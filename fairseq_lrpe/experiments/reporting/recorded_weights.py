"""Records the attention weights of trained language models over the distance, for the atlas."""

from pathlib import Path

import pandas as pd
import torch
from rich.progress import track

from fairseq_lrpe.experiments.inference.attention import trained_weights
from fairseq_lrpe.experiments.reporting.recorded import (
    WEIGHTS,
    WEIGHTS_FILE,
    CurrentSettings,
    read_csv,
    shown_distances,
)
from fairseq_lrpe.experiments.reporting.recording import finished_runs, merge, write
from fairseq_lrpe.experiments.reporting.records import RUN
from fairseq_lrpe.utils.files import output_folder


def record_weights(experiment: str, results: Path, folder: Path) -> int:
    """Records the attention weights of an experiment's models, of the first seed without changes.

    Returns:
        The number of recorded runs.

    Raises:
        ValueError: there is no run, a run has no checkpoint, or its data does not exist.
    """
    runs = finished_runs(results)[0]
    first, current, lines = {}, CurrentSettings(), []
    for run in sorted((run for run in runs if run.experiment == experiment and not run.changes), key=str):
        first.setdefault((run.attention, run.method), run)
    if not first:
        raise ValueError(f"{results} has no finished run of {experiment}: train its models first")
    for run in track(first.values(), "models", transient=True):
        key = {name: getattr(run, name) for name in RUN if name != "changes"} | {"changes": ""}
        key["settings"] = current.digests(run)["training"]
        torch.manual_seed(0)  # some encodings are random
        weights = trained_weights(runs[run][0].folder).tolist()
        # Four digits are enough for plots.
        lines += [key | {"distance": n, "value": f"{weights[n]:.4g}"} for n in shown_distances(len(weights))]
    new, path = pd.DataFrame(lines, columns=WEIGHTS).astype({"value": float}), folder / WEIGHTS_FILE
    before = read_csv(path, WEIGHTS, [*RUN, "distance"]) if path.exists() else new[:0]
    with output_folder(folder):
        write(path, merge(before, new, pd.MultiIndex.from_frame(new[RUN]), [*RUN, "distance"]))
    return len(first)
