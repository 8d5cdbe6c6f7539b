"""What page.py's page tells of single runs: settings, versions, machine, what is on record, what is wrong."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from fairseq_lrpe.experiments.formats import plain
from fairseq_lrpe.experiments.markup import Markup, grid, joined, tag
from fairseq_lrpe.experiments.survey import Found, Survey
from fairseq_lrpe.files import readable

LONGEST = 500  # characters of a log's line that are shown
BROKEN = {
    "damaged": "Damaged: their records cannot be read, and they count as missing in tables",
    "failed": "Failed: the last command ended with an error",
    "stopped": "Stopped: the same command goes on with them",
}


def broken(found: Survey) -> list[Markup]:
    """Returns the runs that cannot be read, and those that nothing trains and that are not finished."""
    shown = []
    for state, title in BROKEN.items():
        of = [run for run in found.runs.values() if run.state == state]
        rows = [[link(run), run.told(), log_end(run), when(run.updated())] for run in of]
        if rows:
            shown.append(
                grid(title, ["run", "state", "its log", "last updated"], rows, "text wrap long text")
            )
    return shown


def runs(found: Survey) -> list[Markup]:
    """Returns what every run was trained with and what is on record of it, to be opened one by one."""
    places = Counter(
        (versions(run.settings), machine(run.settings), commit(run.settings)) for run in found.runs.values()
    )
    rows = [[*place, str(n)] for place, n in places.most_common()]
    columns = ["versions", "machine", "commit", "runs"]
    return [
        grid("What they ran on", columns, rows, "text text text number"),
        *(run(one) for one in found.runs.values()),
    ]


def run(one: Found) -> Markup:
    """Returns all that is known of a run."""
    facts = {
        "state": one.told(),
        "its log": log_end(one) if one.state in BROKEN else None,
        "started": one.settings.get("started"),
        "finished": one.evaluation.get("finished"),
        "last updated": when(one.updated()),
        "versions": versions(one.settings),
        "machine": machine(one.settings),
        "commit": commit(one.settings),
        "folder": str(readable(one.folder)),
        "files": ", ".join(sorted(path.name for path in one.folder.iterdir())),
    }
    pairs = (joined(tag("dt", key), tag("dd", str(value))) for key, value in facts.items() if value)
    measured = {k: v for k, v in one.evaluation.items() if k != "tried"}
    tables = [
        grid(title, ["key", "value"], list(map(list, flat(content))), "text wrap")
        for title, content in (
            ("On record (evaluation.json)", measured),
            ("Settings (run.json)", one.settings),
        )
        if content
    ]
    head = tag("summary", tag("b", one.state, class_=one.state), " ", tag("code", one.name))
    return tag("details", head, tag("dl", *pairs), *tables, id=one.key)


def flat(content: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields (key, value) of all that a JSON holds, "config.train.lr" and "0.001"."""
    if isinstance(content, dict) and content:
        for name, value in content.items():
            yield from flat(value, f"{key}.{name}".lstrip("."))
    else:
        value = plain(content)
        yield key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def versions(settings: dict) -> str:
    """Returns the versions that a run.json names."""
    found = settings.get("versions")
    return (
        ", ".join(f"{name} {version}" for name, version in found.items()) if isinstance(found, dict) else "-"
    )


def machine(settings: dict) -> str:
    """Returns the GPUs that a run.json names, or that it was the CPU, and the precision."""
    names = settings.get("gpu_names")
    gpus = Counter(map(str, names)) if isinstance(names, list) else {}
    what = ", ".join(f"{n} × {name}" for name, n in gpus.items()) or ("CPU" if settings.get("cpu") else "-")
    return " ".join(str(x) for x in (what, settings.get("precision")) if x)


def commit(settings: dict) -> str:
    """Returns the revision that a run.json names."""
    git = settings.get("git")
    revision = git.get("revision") if isinstance(git, dict) else None
    return f"{str(revision)[:12]}{' with changes' if git.get('dirty') else ''}" if revision else "-"


def log_end(run: Found) -> str:
    """Returns how the newest log of a run ends."""
    name, line = run.last_line()
    return f"{name} ends: {line[:LONGEST]}" if name else "-"


def bar(run: Found) -> Markup:
    """Returns how far a run is, as a bar."""
    done, all_ = run.record.reached, run.record.updates
    return joined(tag("progress", max=str(all_), value=str(done)), f"{done:,} of {all_:,}")


def when(time: datetime | None) -> str:
    """Returns a time as people read it, in UTC."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if time else "-"


def link(run: Found) -> Markup:
    """Returns a run's name that leads to what is known of it."""
    return tag("a", run.name, href=f"#{run.key}")
