"""Messages about runs whose numbers are not shown, or are shown although they are those of other code."""

from collections.abc import Iterable, Iterator

from fairseq_lrpe.experiments.execution.run_extension import extension_differences, used_extension
from fairseq_lrpe.experiments.reporting.run_record import RunRecord


def omissions(records: Iterable[RunRecord]) -> Iterator[str]:
    """Yields messages that name runs whose numbers are not shown, and the reason."""
    by_reason = {}
    for record in records:
        if record.is_outdated:
            reason = f"trained with other settings ({record.problem})"
        elif record.problem is not None:
            reason = f"the files cannot be read ({record.problem})"
        else:
            reason = f"evaluated with other settings ({'; '.join(record.omitted)})"
        if record.problem is not None or record.omitted:
            by_reason.setdefault(reason, []).append(record.folder)
    for reason, folders in by_reason.items():
        yield f"numbers of {_named(folders)} are not shown: {reason}"


def changed_extensions(records: Iterable[RunRecord]) -> Iterator[str]:
    """Yields messages that name runs whose method is imported, but in another version than the trained one.

    Their numbers are shown, whereas `lrpe train` does not take these runs for finished.
    """
    by_reason = {}
    for record in records:
        trained = record.settings
        if record.problem is None and "extension" in trained:
            now = used_extension(record.run.method, trained["config"].get("train", {}))
            if reasons := extension_differences(trained, {"method": record.run.method, **now}):
                by_reason.setdefault("; ".join(reasons), []).append(record.folder)
    for reason, folders in by_reason.items():
        remedy = "remove the runs, or use another --results, to train again"
        yield f"numbers of {_named(folders)} are those of other code ({reason}): {remedy}"


def _named(folders):
    return f"{folders[0]} and {len(folders) - 1} more runs" if len(folders) > 1 else folders[0]
