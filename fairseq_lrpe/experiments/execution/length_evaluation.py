"""Evaluating a trained language model at block lengths other than that of its training.

The evaluations are recorded like those of the run's own experiment and are not repeated.
"""

from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import track

from fairseq_lrpe.experiments.execution import runner
from fairseq_lrpe.experiments.execution.run_directory import locked, read_json
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.experiments.spec.experiment import Experiment, build_config
from fairseq_lrpe.experiments.spec.kinds import KINDS, language_modeling
from fairseq_lrpe.experiments.spec.run import Run

SPLIT = "test"


def load_job(folder: Path, lengths: list[int]) -> Job:
    """Returns the job that evaluates the run in a folder, which may have been moved or copied.

    Raises:
        ValueError: the folder has no finished language model, or the model cannot be evaluated at a length.
    """
    settings = read_json(folder / "run.json")
    if not settings:
        raise ValueError(f"{folder} is not a run folder, such as results/lm/mini/linear_rope/seed-1")
    try:
        run, kind = Run.of(settings), KINDS[settings["kind"]]
        cfg = build_config(kind, OmegaConf.create(settings["config"]))
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(f"{folder / 'run.json'} is damaged: repair it, or remove the folder") from None
    if settings["kind"] != "language_modeling":
        raise ValueError(f"{folder} is of kind {settings['kind']}; a language model is required")
    if "finished" not in read_json(folder / "evaluation.json"):
        raise ValueError(f"{folder} is not finished: resume it with `lrpe train`")
    cfg.evaluations = {f"{SPLIT}_{length}": {"split": SPLIT, "length": length} for length in lengths}
    experiment = Experiment(run.experiment, cfg, kind, [folder / "run.json"], [])
    job = Job(experiment, run, folder.parent, moved=folder)
    for length in lengths:
        language_modeling.check_length(job, SPLIT, length)
    return job


def evaluate_lengths(job: Job, lengths: list[int]) -> dict[int, dict]:
    """Returns {length: metrics} of the test split in blocks of each length; recorded ones are not repeated.

    Blocks do not overlap, so that the same tokens are predicted at every length.
    """
    names = {length: f"{SPLIT}_{length}" for length in lengths}
    with locked(job.folder) as job.lock:
        missing = runner.missing_evaluations(job, read_json(job.folder / "evaluation.json"))
        todo, console = [name for name in names.values() if name in missing], Console(stderr=True)
        for name in track(todo, "block lengths", console=console, disable=not console.is_terminal):
            runner.evaluate(job, [name])
    recorded = read_json(job.folder / "evaluation.json")["evaluations"]
    return {length: recorded[name] for length, name in names.items()}
