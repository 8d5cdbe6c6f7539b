"""The comparison of a folder of recorded results with an earlier state of it."""

from collections import Counter
from collections.abc import Iterator, Mapping

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.reporting.recorded_results import row_text
from fairseq_lrpe.experiments.reporting.run_record import row_key

Numbers = Mapping[tuple, Mapping[tuple, tuple]]
"""{row_key(run): {names of a number: the number and its signature, if it has one}}"""


def line_changes(before: Mapping[Run, dict], now: Mapping[Run, dict]) -> Iterator[str]:
    """Yields the differences of the lines of runs in the files of settings; new runs may be added.

    Args:
        before: {run: its line} of the earlier state.
        now: {run: its line}.
    """
    before_counts = Counter(run.experiment for run in before)
    removed_counts = Counter(run.experiment for run in before.keys() - now.keys())
    removed = {name for name, count in removed_counts.items() if 1 < count == before_counts[name]}
    for experiment in sorted(removed):
        yield f"{experiment}: all {before_counts[experiment]} runs are removed"
    for run, line in before.items():
        if run not in now:
            if run.experiment not in removed:
                yield f"{run}: it is removed"
        elif line != now[run]:
            names = [key for key in line.keys() | now[run].keys() if line.get(key) != now[run].get(key)]
            yield f"{run}: its recorded {', '.join(sorted(names))} changed"


def number_changes(content: str, before: Numbers, now: Numbers, runs: Mapping[Run, dict]) -> Iterator[str]:
    """Yields the differences of numbers; those of new runs may be added.

    Args:
        content: what the numbers are, such as "measurements".
        before: the numbers of the earlier state.
        now: the numbers.
        runs: the runs; numbers of others are not compared.
    """
    kept = {row_key(run) for run in runs}
    experiments = {}
    for key, numbers in before.items():
        if key in kept:
            experiments.setdefault(key[0], {})[key] = numbers
    for experiment, by_run in experiments.items():
        if len(by_run) > 1 and not by_run.keys() & now.keys():
            yield f"{experiment}: all {sum(map(len, by_run.values()))} {content} are missing"
            continue
        for key, numbers in by_run.items():
            if key in now:
                for text in _changed_numbers(numbers, now[key]):
                    yield f"{row_text(key)}: {content.removesuffix('s')} {text}"
            else:
                yield f"{row_text(key)}: all {len(numbers)} {content} are missing"


def _changed_numbers(before, now):
    for names in before | now:
        old = _number_text(before.get(names))
        new = _number_text(now.get(names))
        if old != new:
            yield f"{' '.join(map(str, names))} was {old}, now {new}"


def _number_text(number):
    """Returns a number and its signature as text. NaN, which differs from itself, has one text."""
    return "missing" if number is None else " ".join(map(str, number)).rstrip()
