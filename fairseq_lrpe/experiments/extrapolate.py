"""Measures a trained language model at other lengths than its training's: ``scripts/extrapolate.sh``.

The test split is cut into blocks of each length that do not overlap, so that every length predicts the same
tokens. They are evaluations of the run like others: they stay on its record, and are not repeated.
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from fairseq_lrpe.experiments import runner
from fairseq_lrpe.experiments.experiment import Experiment
from fairseq_lrpe.experiments.kinds import language_modeling
from fairseq_lrpe.experiments.looks import STYLES, look
from fairseq_lrpe.experiments.run import Run
from fairseq_lrpe.experiments.run_folder import OldLayout, locked, read_json
from fairseq_lrpe.experiments.runner import Job
from fairseq_lrpe.programs import absolute, at_least, one_sentence, picture

SPLIT = "test"


def job_of(folder: Path, lengths: list[int]) -> Job:
    """Returns the job of measuring a run at these lengths, with its data; ValueError if that cannot be."""
    settings = read_json(folder / "run.json")
    if not settings:
        raise ValueError(f"{folder} holds no run: give one like results/lm/mini/linear_rope/seed-1")
    if "kind" not in settings:
        raise OldLayout(folder)
    try:
        run, data = Run.of(settings), settings["config"]["data"]
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(f"{folder / 'run.json'} is damaged: put it right, or remove the folder") from None
    if settings["kind"] != "language_modeling":
        raise ValueError(f"{folder} is of the kind {settings['kind']}: a language model is needed")
    if "finished" not in read_json(folder / "evaluation.json"):  # what is measured stays on record
        raise ValueError(f"{folder} has not been trained to its end: scripts/train.sh goes on with it")
    asked = [f"evaluations.{SPLIT}_{length}={{split: {SPLIT}, length: {length}}}" for length in lengths]
    experiment = Experiment.load(run.experiment, [f"data={data}", *asked])
    job = Job(experiment, run, folder.parents[len(str(run).split("/")) - 1])
    for length in lengths:
        language_modeling.check_length(job, SPLIT, length)
    return job


def extrapolate(job: Job, lengths: list[int]) -> dict[int, dict]:
    """Returns {length: what was measured}, as far as it is there from the run's record."""
    names = {length: f"{SPLIT}_{length}" for length in lengths}
    with locked(job.folder) as job.lock:
        missing = runner.missing(job, read_json(job.folder / "evaluation.json"))
        todo, console = [name for name in names.values() if name in missing], Console(stderr=True)
        for name in track(todo, "blocks of tokens", console=console, disable=not console.is_terminal):
            runner.evaluate(job, [name])
    measured = read_json(job.folder / "evaluation.json")["evaluations"]
    return {length: measured[name] for length, name in names.items()}


def show(measured: dict[int, dict], trained: int, job: Job) -> None:
    """Prints a line for each length."""
    tokens = next(iter(measured.values()))["tokens"]
    print(f"{job.folder}, {job.checkpoint.name}, trained on blocks of {trained:,} tokens:")
    print(f"the {tokens:,} tokens of the {SPLIT} split in other blocks")
    table = Table()
    for column in ("tokens a block", "× training", "perplexity"):
        table.add_column(column, justify="right")
    for length, found in measured.items():
        table.add_row(f"{length:,}", f"{length / trained:.3g}", f"{found['perplexity']:.2f}")
    Console().print(table)


def draw(measured: dict[int, dict], trained: int, run: Run, path: Path) -> None:
    """Draws the perplexity over the block length, as its method looks in all pictures."""
    from matplotlib.figure import Figure

    lengths = list(measured)
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axes = figure.subplots()
    (colour, marker), line = look(run.method), STYLES[run.attention]
    perplexities = [m["perplexity"] for m in measured.values()]
    axes.plot(lengths, perplexities, marker=marker, color=colour, linestyle=line)
    axes.axvline(trained, color="0.5", linestyle="--", linewidth=1, label="length of training")
    axes.legend()
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set(xlabel="tokens a block", ylabel=f"{SPLIT} perplexity", title=str(run))
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(prog="extrapolate.sh", description=__doc__)
    parser.add_argument("run", type=absolute, metavar="RUN", help="a run folder, with a checkpoint")
    parser.add_argument("lengths", type=at_least(1), nargs="+", metavar="LENGTH", help="tokens a block")
    parser.add_argument("--plot", type=picture, metavar="FILE.png", help="perplexity over the length")
    args = parser.parse_args()
    with one_sentence("extrapolate"):
        lengths = sorted(set(args.lengths))
        job = job_of(args.run, lengths)
        trained = language_modeling.trained_length(language_modeling.model_of(job))
        measured = extrapolate(job, lengths)
        show(measured, trained, job)
        if args.plot:
            draw(measured, trained, job.run, args.plot)


if __name__ == "__main__":
    main()
