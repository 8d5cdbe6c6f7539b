"""The rules for a recorded run's measurements and curve."""

import math
import sys
from collections.abc import Collection, Iterator, Mapping

from fairseq_lrpe.experiments.definition.kinds import KINDS
from fairseq_lrpe.experiments.execution import endings
from fairseq_lrpe.experiments.execution.run_schema import SPEEDS

PERCENT = 100 + 1e-6
"""100%, with the rounding error of metrics such as BLEU."""
PERCENTAGES = (
    "accuracy accuracy5 bleu exact f1 majority quarter_1 quarter_2 quarter_3 quarter_4 rouge_l sacrebleu"
)
CORRELATIONS = "matthews pearson spearman score"
RANGES = {
    **dict.fromkeys(PERCENTAGES.split(), (0.0, PERCENT)),
    **dict.fromkeys(CORRELATIONS.split(), (-PERCENT, PERCENT)),
    "perplexity": (1.0, math.inf),
}
"""{metric: (smallest value, largest value)}; other metrics are not negative."""
UNDEFINED = ("pearson", "spearman", "score")
"""Metrics that are NaN if all predictions are equal."""
TIMES = (*SPEEDS, "milliseconds")


def measurement_problems(
    rows: Mapping[tuple[str, str], tuple],
    line: dict,
    defined: Collection[str],
    usual: Collection[tuple[str, str]],
) -> Iterator[str]:
    """Yields what is wrong with the measurements of a run.

    Args:
        rows: {(evaluation, metric): (value, signature)} of the run.
        line: the run's line in the file of settings.
        defined: the names of the evaluations that configs defines for the run.
        usual: (evaluation, metric) of all runs that differ at most in method and seed.
    """
    if not rows:
        yield "it has no measurements"
        return
    metrics = {}
    for evaluation, metric in rows:
        metrics.setdefault(evaluation, []).append(metric)
    for name in sorted({*line["evaluations"], *defined} - metrics.keys()):
        yield f"its evaluation {name} has no measurements"
    for name in sorted(metrics.keys() - line["evaluations"].keys() - {"training"}):
        yield f"its evaluation {name} has measurements, but no settings"
    kind = KINDS[line["kind"]]
    main = next(iter(kind.metrics))
    for name in sorted(metrics.keys() - {"training"}):
        expected = {main}
        if not endings.is_diverged(line):  # only its main metric is recorded
            expected |= {metric for evaluation, metric in usual if evaluation == name}
        for metric in sorted(expected.intersection(kind.metrics).difference(metrics[name])):
            yield f"its evaluation {name} has no {metric}"
    possible = {}
    for (evaluation, metric), (value, _) in rows.items():
        known = SPEEDS if evaluation == "training" else (*kind.metrics, *SPEEDS)
        if metric not in known:
            yield f"its evaluation {evaluation} has the unknown metric {metric}: expected {', '.join(known)}"
        elif wrong := _wrong_value(metric, value, endings.is_diverged(line)):
            yield f"its {evaluation} {metric} is {value:g}: {wrong}"
        else:
            possible.setdefault(evaluation, {})[metric] = value
    for evaluation, values in possible.items():
        yield from _contradictions(evaluation, values)


def _wrong_value(metric, value, is_diverged):
    """Returns a text about the values that a metric can have, or None if ``value`` is one."""
    if math.isnan(value):
        is_allowed = metric in UNDEFINED or (is_diverged and metric not in SPEEDS)
        return None if is_allowed else "expected a number, because its settings name no divergence (ended)"
    low, high = RANGES.get(metric, (0.0, math.inf))
    if low <= value <= high and value < math.inf:
        return None
    limits = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
    return f"expected a finite number {limits}"


def _contradictions(evaluation, values):
    """Yields a text for each metric that contradicts the evaluation's bits per token.

    perplexity = 2^bits, but fairseq rounds perplexities to 2 decimals, and bits to 3 or 4.
    nats = ln 2 · bits, of the rounded bits.
    """
    if "bits" not in values:
        return
    bits = values["bits"]
    perplexity = 2**bits if bits < sys.float_info.max_exp else math.inf
    expected = {
        "perplexity": (perplexity, 0.005 + 0.0005 * math.log(2) * perplexity),
        "nats": (math.log(2) * bits, 1e-6),
    }
    for metric, (implied, rounding) in expected.items():
        if abs(values.get(metric, implied) - implied) > rounding:
            yield (
                f"its {evaluation} {metric} is {values[metric]:g}, which contradicts its {bits:g} bits: "
                f"expected {implied:g}"
            )


def curve_problems(points: Mapping[int, float], line: dict) -> Iterator[str]:
    """Yields what is wrong with the curve of a run.

    Args:
        points: {updates: value} of the run.
        line: the run's line in the file of settings.
    """
    config = line["config"]
    updates = line["updates"]
    is_diverged = endings.is_diverged(line)
    if not points:
        is_validated = KINDS[line["kind"]].curve and not config.get("train.disable_validation")
        if is_validated and updates and not is_diverged:
            yield "it has no curve"
        return
    last = max(points)
    reached = line.get("ended", line)["updates"]
    if last > reached:
        yield f"its curve ends at update {last}, after the {reached} updates of its training"
    if last < reached and "ended" not in line:
        yield f"its curve ends at update {last}, before the {reached} updates of its training"
    interval = config.get("train.validate_interval_updates")
    if len(points) == 1 and isinstance(interval, int) and interval < reached:
        yield "its curve has only one point"
    if not is_diverged and not math.isfinite(points[last]):
        yield f"its curve ends with {points[last]}, but its settings name no divergence (ended)"
    if min(points.values()) < 0:
        yield f"its curve has a negative value, {min(points.values())}"


def fingerprint(rows: Mapping[tuple[str, str], tuple], points: Mapping[int, float]) -> tuple | None:
    """Returns numbers that no two seeds share, or None if there may be none among those of a run.

    These are a curve that is not constant, or a speed, together with all other measurements; accuracies are
    often equal.

    Args:
        rows: {(evaluation, metric): (value, signature)} of the run.
        points: {updates: value} of its curve.
    """
    is_constant = len(set(points.values())) < 2
    numbers = []
    for (evaluation, metric), (value, _) in rows.items():
        if is_constant or metric not in SPEEDS:
            numbers.append((evaluation, metric, value))
    is_timed = any(metric in TIMES for _, metric, _ in numbers)
    return (tuple(points.items()), *sorted(numbers)) if is_timed or not is_constant else None
