"""Evaluate a trained language model at several block lengths, to see how it extrapolates.

The test split is cut into non-overlapping blocks of each length, so that the same tokens are predicted at
every length. The results are recorded in the run's folder, and recorded lengths are not evaluated again. For
example:

  lrpe evaluate results/lm/mini/linear_rope/seed-1 256 512 1024 --plot rope.png
  lrpe evaluate results/lm/mini/linear_rope/seed-1 512 1024 --rope-scaling yarn
"""

import hashlib
from dataclasses import replace
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.experiment import Experiment, build_config
from fairseq_lrpe.experiments.definition.kinds import KINDS
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution import run_directory, runner
from fairseq_lrpe.experiments.execution.evaluators.lm import LMEvaluator
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.run_extension import check_extension
from fairseq_lrpe.experiments.execution.run_files import read_evaluation, read_settings
from fairseq_lrpe.experiments.reporting.style import LINE_STYLES, method_style
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, image_path, min_int, new_parser, resumable
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, save_figure
from fairseq_lrpe.utils.gpus import gpus_here


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe evaluate", __doc__, "RUN LENGTH [LENGTH ...] [options]")
    parser.add_argument("run", type=abs_path, metavar="RUN", help="folder of a finished run of kind lm")
    text = "number of tokens per block"
    parser.add_argument("lengths", type=min_int(1), nargs="+", metavar="LENGTH", help=text)
    text = "scale the angles of rotations; TYPE is linear, ntk, dynamic, yarn or llama3, and FACTOR is by "
    text += "default LENGTH divided by the length in training, but at least 1, and for dynamic 1"
    parser.add_argument("--rope-scaling", metavar="TYPE[:FACTOR]", help=text)
    text = "write a plot of the perplexities to this file"
    parser.add_argument("--plot", type=image_path, metavar="FILE.png", help=text)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(arguments)
    with exit_on_error("evaluate"):
        lengths = sorted(set(args.lengths))
        if args.plot and len(lengths) == 1:
            raise UserError("--plot draws a line over lengths: pass two or more, or omit --plot")
        evaluator = load_evaluator(args.run, lengths, args.rope_scaling, cpu=args.cpu or not gpus_here())
        measured = evaluate_lengths(evaluator)
        print_table(measured, evaluator)
        if args.plot:
            plot(measured, evaluator, args.plot)


def load_evaluator(
    folder: Path, lengths: list[int], rope_scaling: str | None = None, cpu: bool = True
) -> LMEvaluator:
    """Returns the evaluator of the run in a folder, which may have been moved or copied.

    Raises:
        UserError: if the folder has no finished run of the kind lm, a block is too long for the model or the
            split, or ``rope_scaling`` is invalid or impossible for the model.
    """
    job = load_job(folder, length_evaluations(lengths, rope_scaling))
    evaluator = LMEvaluator(replace(job, cpu=cpu))
    check_lengths(evaluator)
    return evaluator


def load_job(folder: Path, evaluations: dict[str, dict]) -> Job:
    """Returns the job of the run in a folder.

    Args:
        folder: the folder of the run.
        evaluations: {name: settings} of the evaluations, in place of those of the experiment.

    Raises:
        UserError: if the folder has no finished run of the kind lm.
    """
    settings = read_settings(folder)
    if not settings:
        raise UserError(f"{folder} is not a run folder: pass one, such as results/lm/mini/linear_rope/seed-1")
    if settings["kind"] != "lm":
        raise UserError(f"{folder} has a run of the kind {settings['kind']}: pass a run of the kind lm")
    if "finished" not in read_evaluation(folder):
        raise UserError(f"the run in {folder} is not finished: resume it with `lrpe train`")
    check_extension(settings)
    run = Run.of(settings)
    kind = KINDS["lm"]
    cfg = build_config(kind, OmegaConf.create(settings["config"]))
    cfg.evaluations = evaluations
    experiment = Experiment(run.experiment, cfg, kind, str(folder / "run.json"), [])
    return Job(experiment, run, folder.parent, moved=folder)


def length_evaluations(lengths: list[int], rope_scaling: str | None) -> dict[str, dict]:
    """Returns {name: settings} of an evaluation for each block length."""
    evaluations = {}
    for length in lengths:
        name = f"test_{length}"
        settings = {"split": "test", "length": length}
        if rope_scaling is not None:
            scaling, comma, divisors = rope_scaling.partition(",")
            # The text is a part of a log's name, in which the divisors of longrope have a hash.
            digest = hashlib.sha256(divisors.encode()).hexdigest()[:8]
            name += "_" + scaling.replace(":", "-") + (f"-{digest}" if comma else "")
            settings["rope_scaling"] = rope_scaling
        evaluations[name] = settings
    return evaluations


def check_lengths(evaluator: LMEvaluator) -> None:
    """Raises UserError if the model or the test split does not allow one of the evaluations."""
    job = evaluator.job
    model = evaluator.model
    model.check_length("test", 1)
    check_data(job, read_settings(job.folder)["data"], model.tokens("test"))
    for evaluation in job.kind.evaluations(job.cfg).values():
        model.check_length("test", evaluation["length"])
        if "rope_scaling" in evaluation:
            model.rope_scaling(evaluation["rope_scaling"], evaluation["length"])


def check_data(job: Job, before: dict[str, int], tokens: int) -> None:
    """Raises UserError if the test split is not that of the run's training or recorded evaluations.

    Args:
        job: the run to evaluate.
        before: {file: bytes} of the run's data, as recorded.
        tokens: the number of tokens of the test split now.
    """
    folder = REPOSITORY / job.cfg.data
    files = layout.text(["test"])
    recorded = {}
    now = {}
    for name in files:
        now[name] = (folder / name).stat().st_size
        if name in before:
            recorded[name] = before[name]
    differences = run_directory.data_differences(recorded, now)
    for count in recorded_tokens(job) - {tokens}:
        differences.append(f"its test split had {count:,} tokens, now {tokens:,}")
    if differences:
        wrong = f"{folder} is not the data of the run in {job.folder} ({'; '.join(differences)})"
        raise UserError(f"{wrong}: restore the data, or train the run again")


def recorded_tokens(job: Job) -> set[int]:
    """Returns the numbers of tokens that the test split had in the recorded evaluations of a run."""
    tokens = set()
    for measured in job.record.get("evaluations", {}).values():
        if "tokens" in measured and measured.get("settings", {}).get("split") == "test":
            tokens.add(measured["tokens"])
    return tokens


def evaluate_lengths(evaluator: LMEvaluator) -> dict[int, dict]:
    """Returns {length: metrics} of the test split; block lengths without a record are evaluated first."""
    job = evaluator.job
    with run_directory.locked(job.folder) as job.lock, resumable():
        missing = job.missing_evaluations(job.record)
        for _ in tqdm(runner.evaluate(job, evaluator), "block lengths", len(missing), disable=None):
            pass
    recorded = job.record["evaluations"]
    measured = {}
    for name, evaluation in job.kind.evaluations(job.cfg).items():
        check_measured(job, evaluation["length"], recorded[name])
        measured[evaluation["length"]] = recorded[name]
    return measured


def check_measured(job: Job, length: int, measured: dict) -> None:
    """Raises UserError if a recorded evaluation lacks the number of tokens or the perplexity.

    Args:
        job: the run.
        length: number of tokens per block in the evaluation.
        measured: content of the evaluation.
    """
    missing = [name for name in ("tokens", "perplexity") if name not in measured]
    if missing:
        path = job.folder / "evaluation.json"
        wrong = f"lacks the {' and the '.join(missing)} at {length} tokens per block"
        raise UserError(f"{path} {wrong}: remove this evaluation, and run the command again")


def print_table(measured: dict[int, dict], evaluator: LMEvaluator) -> None:
    """Prints a table of perplexities; ``measured`` are {block length: metrics}."""
    job = evaluator.job
    trained = evaluator.model.tokens_per_sample
    tokens = next(iter(measured.values()))["tokens"]
    table = Table()
    is_scaled = rope_scaling_of(measured) is not None
    columns = ["tokens per block", "× training", "rope scaling", "perplexity"]
    if not is_scaled:
        columns.remove("rope scaling")
    for name in columns:
        table.add_column(name, justify="right")
    for length, metrics in measured.items():
        row = [f"{length:,}", f"{length / trained:.3g}"]
        if is_scaled:
            row.append(str(evaluator.model.rope_scaling(metrics["settings"]["rope_scaling"], length)))
        table.add_row(*row, f"{metrics['perplexity']:,.2f}")
    print(f"{job.folder}, {job.checkpoint.name}, trained on blocks of {trained:,} tokens:")
    print(f"perplexity of the {tokens:,} tokens of the test split at each block length")
    Console().print(table)


def rope_scaling_of(measured: dict[int, dict]) -> str | None:
    """Returns the value of --rope-scaling, which all evaluations of a command share, or None."""
    [scaling] = {metrics["settings"].get("rope_scaling") for metrics in measured.values()}
    return scaling


def plot(measured: dict[int, dict], evaluator: LMEvaluator, path: Path) -> None:
    """Writes a plot of the perplexity over the block length to the file ``path``."""
    from matplotlib.figure import Figure  # this import takes seconds

    run = evaluator.job.run
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axes = figure.subplots()
    color, marker = method_style(run.method)
    lengths = list(measured)
    perplexities = [metrics["perplexity"] for metrics in measured.values()]
    axes.plot(lengths, perplexities, marker=marker, color=color, linestyle=LINE_STYLES[run.attention])
    trained = evaluator.model.tokens_per_sample
    axes.axvline(trained, color="0.5", linestyle="--", linewidth=1, label="training length")
    axes.legend()
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    scaling = rope_scaling_of(measured)
    title = f"{run}, {scaling} scaling" if scaling else str(run)
    axes.set(xlabel="tokens per block", ylabel="test perplexity", title=title)
    axes.grid(alpha=0.3)
    save_figure(figure, path, dpi=150)
