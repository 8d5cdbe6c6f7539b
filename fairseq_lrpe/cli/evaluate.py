"""Evaluate a trained language model at several block lengths, to see how it extrapolates.

The test split is cut into non-overlapping blocks of each length, so that the same tokens are predicted at
every length. The results are recorded in the run's folder, and recorded lengths are not evaluated again. For
example:

  lrpe evaluate results/lm/mini/linear_rope/seed-1 256 512 1024 --plot rope.png
  lrpe evaluate results/lm/mini/linear_rope/seed-1 512 1024 --rope-scaling yarn
"""

from dataclasses import replace
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Column, Table
from tqdm import tqdm

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.experiment import Experiment, build_config
from fairseq_lrpe.experiments.definition.kinds import KINDS, lm
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution import run_directory, runner
from fairseq_lrpe.experiments.execution.run_files import read_evaluation, read_settings
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.experiments.reporting.style import LINE_STYLES, method_style
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, image_path, min_int, new_parser, resumable
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, save_figure
from fairseq_lrpe.utils.gpus import gpus_here


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe evaluate", __doc__, "RUN LENGTH [LENGTH ...] [options]")
    parser.add_argument("run", type=abs_path, metavar="RUN", help="folder of a finished run of kind lm")
    parser.add_argument("lengths", type=min_int(1), nargs="+", metavar="LENGTH", help="tokens per block")
    text = "scale the angles of rotations; TYPE is linear, ntk, dynamic, yarn or llama3, and FACTOR is by "
    text += "default LENGTH divided by the length in training, but at least 1, and for dynamic 1"
    parser.add_argument("--rope-scaling", metavar="TYPE[:FACTOR]", help=text)
    parser.add_argument("--plot", type=image_path, metavar="FILE.png", help="plot of the perplexities")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(arguments)
    with exit_on_error("evaluate"):
        lengths = sorted(set(args.lengths))
        if args.plot and len(lengths) == 1:
            raise UserError("--plot draws a line over lengths: pass two or more, or omit --plot")
        cpu = args.cpu or not gpus_here()
        job = replace(load_job(args.run, lengths, args.rope_scaling), cpu=cpu)
        trained = lm.model_flags(job)["tokens_per_sample"]
        measured = evaluate_lengths(job)
        print_table(measured, trained, job)
        if args.plot:
            plot(measured, trained, job, args.plot)


def load_job(folder: Path, lengths: list[int], rope_scaling: str | None = None) -> Job:
    """Returns the job that evaluates the run in a folder, which may have been moved or copied.

    Raises:
        UserError: if the folder has no finished run of the kind lm, a block is too long for the model or the
            split, or ``rope_scaling`` is invalid or impossible for the model.
    """
    settings = read_settings(folder)
    if not settings:
        raise UserError(f"{folder} is not a run folder, such as results/lm/mini/linear_rope/seed-1")
    if settings["kind"] != "lm":
        raise UserError(f"{folder} has a run of the kind {settings['kind']}: pass a run of the kind lm")
    if "finished" not in read_evaluation(folder):
        raise UserError(f"the run in {folder} is not finished: resume it with `lrpe train`")
    run, kind = Run.of(settings), KINDS["lm"]
    cfg = build_config(kind, OmegaConf.create(settings["config"]))
    scaled = {} if rope_scaling is None else {"rope_scaling": rope_scaling}
    suffix = "".join(f"_{text}" for text in scaled.values()).replace(":", "-")  # part of a log's name
    cfg.evaluations = {f"test_{n}{suffix}": {"split": "test", "length": n, **scaled} for n in lengths}
    experiment = Experiment(run.experiment, cfg, kind, str(folder / "run.json"), [])
    job = Job(experiment, run, folder.parent, moved=folder)
    check_data(job, settings["data"])
    for length in lengths:
        lm.check_length(job, "test", length)
        if rope_scaling is not None:
            lm.rope_scaling(rope_scaling, length, lm.model_flags(job))
    return job


def check_data(job: Job, before: dict[str, int]) -> None:
    """Raises UserError if the test split is not that of the run's training or recorded evaluations."""
    tokens, folder = lm.check_length(job, "test", 1), REPOSITORY / job.cfg.data
    different = run_directory.data_differences(
        {name: before[name] for name in layout.text(["test"]) if name in before},
        {name: (folder / name).stat().st_size for name in layout.text(["test"])},
    )
    evaluations = [of for of in job.record.get("evaluations", {}).values() if "tokens" in of]
    recorded = {of["tokens"] for of in evaluations if of.get("settings", {}).get("split") == "test"}
    different += [f"its test split had {count:,} tokens, now {tokens:,}" for count in recorded - {tokens}]
    if different:
        wrong = f"{folder} is not the data of the run in {job.folder} ({'; '.join(different)})"
        raise UserError(f"{wrong}: restore the data, or train the run again")


def evaluate_lengths(job: Job) -> dict[int, dict]:
    """Evaluates the test split at the block lengths without a record; returns {length: metrics} of all."""
    with run_directory.locked(job.folder) as job.lock, resumable():
        missing = len(runner.missing_evaluations(job, job.record))
        for _ in tqdm(runner.evaluate(job), "block lengths", missing, disable=None):
            pass
    recorded = job.record["evaluations"]
    found = {of["length"]: recorded[name] for name, of in job.kind.evaluations(job.cfg).items()}
    for length, measured in found.items():
        if lacking := [name for name in ("tokens", "perplexity") if name not in measured]:
            wrong = f"lacks the {' and the '.join(lacking)} at {length} tokens per block"
            path = job.folder / "evaluation.json"
            raise UserError(f"{path} {wrong}: remove this evaluation, and run the command again")
    return found


def print_table(measured: dict[int, dict], trained: int, job: Job) -> None:
    """Prints a table of the perplexity at each block length."""
    tokens = next(iter(measured.values()))["tokens"]
    scaled = [metrics["settings"].get("rope_scaling") for metrics in measured.values()]
    names = ("tokens per block", "× training", *["rope scaling"] * any(scaled), "perplexity")
    table = Table(*(Column(name, justify="right") for name in names))
    for (length, metrics), text in zip(measured.items(), scaled, strict=True):
        scaling = [str(lm.rope_scaling(text, length, lm.model_flags(job)))] if text else []
        table.add_row(f"{length:,}", f"{length / trained:.3g}", *scaling, f"{metrics['perplexity']:.2f}")
    print(f"{job.folder}, {job.checkpoint.name}, trained on blocks of {trained:,} tokens:")
    print(f"perplexity of the {tokens:,} tokens of the test split at each block length")
    Console().print(table)


def plot(measured: dict[int, dict], trained: int, job: Job, path: Path) -> None:
    """Plots the perplexity over the block length."""
    from matplotlib.figure import Figure  # this import takes seconds

    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axes, lengths = figure.subplots(), list(measured)
    (color, marker), line = method_style(job.run.method), LINE_STYLES[job.run.attention]
    [scaling] = {metrics["settings"].get("rope_scaling") for metrics in measured.values()}
    title = f"{job.run}, {scaling} scaling" if scaling else str(job.run)
    perplexities = [metrics["perplexity"] for metrics in measured.values()]
    axes.plot(lengths, perplexities, marker=marker, color=color, linestyle=line)
    axes.axvline(trained, color="0.5", linestyle="--", linewidth=1, label="training length")
    axes.legend()
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set(xlabel="tokens per block", ylabel="test perplexity", title=title)
    axes.grid(alpha=0.3)
    save_figure(figure, path, dpi=150)
