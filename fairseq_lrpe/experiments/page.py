"""Writes one page of everything that was run: every table beside the paper's, curves, the state of each run.

The page is one HTML file that holds all it needs; it opens from disk without a network.
"""

import re
import sys
from argparse import ArgumentParser
from collections import Counter
from datetime import UTC, datetime
from importlib.util import find_spec

from fairseq_lrpe.experiments import listing, results
from fairseq_lrpe.experiments.entries import Entry, check_folder
from fairseq_lrpe.experiments.markup import Markup, grid, joined, part, tag
from fairseq_lrpe.experiments.page_runs import bar, broken, link, runs, when
from fairseq_lrpe.experiments.stylesheet import STYLE
from fairseq_lrpe.experiments.survey import STATES, Survey, survey
from fairseq_lrpe.experiments.table import Table
from fairseq_lrpe.files import new_folder, readable, write_whole
from fairseq_lrpe.programs import absolute, one_sentence, page

MARKS = {
    r"^-$": "“-” stands where there is no number: the paper has none, or no run is there that can be read.",
    r"\(\d+\)$": "In brackets stands of how many seeds a number is the mean, after ± their deviation.",
    r"\(\d+ of \d+\)$": "“2 of 3” in brackets: only so many of the planned seeds are measured yet.",
    r"^running ": "“running 240/400”: no seed is measured yet; one is being trained and has done 240 of 400 "
    "updates.",
    r"^stopped at ": "“stopped at 240 of 400”: no seed is measured yet, and none is being trained; the same "
    "command goes on from there.",
    r"^not measured$": "“not measured”: it is trained, and what this column shows is not on record.",
    r"^damaged$": "“damaged”: the records of its runs cannot be read.",
    r"diverged": "“diverged”: the number is infinite or none.",
}
"""{what a cell of a table of results may hold: what it means}"""
NOT_STARTED = "“Not started” are runs of the tables on this page that have no folder yet."
ZOOM = (
    "Curves: a line is a run, and the number before a name where its best run ends. "
    "Drag over a part to see it larger; a double-click goes back, and another one shows all there is. "
    "Point at a line for its numbers. "
    "A click on a name switches its lines off and on, a double-click all others."
)


def main(arguments: list[str] | None = None) -> None:
    program = "python -m fairseq_lrpe.measure.report"
    parser = ArgumentParser(program, "%(prog)s RESULTS [--out report.html]", __doc__)
    parser.add_argument("results", type=absolute, help="the folder that the runs were written to")
    parser.add_argument("--out", type=page, metavar="FILE.html", help="default: RESULTS/report.html")
    args = parser.parse_args(arguments)
    with one_sentence("report"):
        if find_spec("plotly") is None:
            raise ValueError(
                "it needs the package plotly: pip install -c constraints.txt -e '.[report]' installs it"
            )
        check_folder(args.results)
        out = args.out or args.results / "report.html"
        with new_folder(out.parent):
            found = survey(args.results)
            write_whole(out, whole(found, datetime.now(UTC)).encode(errors="replace"))
        told = ", ".join(f"{n} {state}" for state, n in found.counts().items() if n)
        shown = {"table": len(found.tables), "run": len(found.runs)}
        counted = " and ".join(f"{n} {what}{'s' * (n != 1)}" for what, n in shown.items())
        print(f"{out} shows {counted}: {told}", file=sys.stderr)


def whole(found: Survey, made: datetime) -> str:
    """Returns the page."""
    from plotly.offline import get_plotlyjs

    parts = {
        "tables": ("Tables beside the papers'", tables(found)),
        "experiments": ("Experiments", experiments(found)),
        "damaged": ("Damaged, failed and stopped runs", broken(found)),
        "runs": ("All runs", runs(found)),
    }
    name = f"Runs in {readable(found.results)}"
    head = joined(
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", name),
        tag("style", Markup(STYLE)),
        tag("script", Markup(get_plotlyjs())),
    )
    sections = [
        tag("section", tag("h2", title), *content, id=key)
        for key, (title, content) in parts.items()
        if content
    ]
    body = joined(
        tag("header", tag("h1", name), summary(found, made)),
        contents(found, {key: title for key, (title, content) in parts.items() if content}),
        tag("main", *sections),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def summary(found: Survey, made: datetime) -> Markup:
    """Returns how many runs are in which state, and what is being trained."""
    counts = found.counts()
    cards = (
        tag("li", tag("b", str(n), class_=state), state)
        for state, n in counts.items()
        if n or state in ("finished", "running")
    )
    running = [run for run in found.runs.values() if run.state == "running"]
    rows = [[link(run), bar(run), when(run.updated()), run.progress()] for run in running]
    return joined(
        tag("p", f"Made at {when(made)} of what was on record then.", class_="soft"),
        tag("ul", *cards, class_="counts"),
        tag("p", NOT_STARTED, class_="soft") if counts["not started"] else None,
        grid("Running", ["run", "updates", "last updated", "how it stands"], rows, "text text text long")
        if rows
        else None,
    )


def contents(found: Survey, titles: dict[str, str]) -> Markup:
    """Returns the table of contents."""
    below = {
        "tables": [table_name(table) for table, _ in found.tables],
        "experiments": list(found.experiments),
    }
    items = []
    for key, title in titles.items():
        names = enumerate(below.get(key, ()))
        links = [tag("li", tag("a", name, href=f"#{key.removesuffix('s')}-{i}")) for i, name in names]
        items.append(tag("li", tag("a", title, href=f"#{key}"), tag("ul", *links) if links else None))
    return tag("nav", tag("ul", *items), aria_label="contents")


def tables(found: Survey) -> list[Markup]:
    """Returns every table of which there is a run."""
    from fairseq_lrpe.experiments import interactive

    shown = [tag("p", sentence, class_="damaged") for sentence in found.refused]
    for i, (table, entries) in enumerate(found.tables):
        title, *said = results.blocks(table, entries)
        shown += [tag("h3", f"{title} ", tag("code", table_name(table)), id=f"table-{i}"), *map(part, said)]
        shown += notes(found, table, entries)
        if figure := interactive.over_columns(entries):
            shown.append(tag("div", interactive.drawing(figure, f"plot-table-{i}"), class_="plot"))
    return shown


def notes(found: Survey, table: Table, entries: list[Entry]) -> list[Markup]:
    """Returns in words what the marks of a table mean, and how its runs stand."""
    _, rows = results.values_grid(entries, "", {})
    cells = {cell for row in rows for cell in row[2:]}
    said = [text for mark, text in MARKS.items() if any(re.search(mark, cell) for cell in cells)]
    if any(entry.cell.published for entry in entries):
        ours = "mini" if table.scale == "mini" else "measured"
        theirs = "Columns with “(paper)” hold what the paper published"
        said.insert(0, f"{theirs}, those with “({ours})” what the runs here measured.")
    there = [found.runs.get(run.folder(found.results)) for run in table.runs()]
    states = Counter(run.state if run else "not started" for run in there)
    said.append(f"Its runs: {', '.join(f'{states[state]} {state}' for state in STATES if states[state])}.")
    notes = [tag("p", " ".join(said), class_="soft")]
    if damaged := [link(run) for run in there if run and run.state == "damaged"]:
        notes.append(tag("p", "Damaged, and counted as missing:", *damaged, class_="damaged"))
    return notes


def experiments(found: Survey) -> list[Markup]:
    """Returns what is on record of each experiment, and its curves."""
    from fairseq_lrpe.experiments import interactive

    shown = [tag("p", ZOOM, class_="soft")]
    for i, (name, rows) in enumerate(found.experiments.items()):
        _, *said = listing.parts(name, rows)
        shown += [tag("h3", name, id=f"experiment-{i}"), *map(part, said)]
        if figure := interactive.curves(rows):
            shown.append(tag("div", interactive.drawing(figure, f"plot-experiment-{i}"), class_="plot"))
        else:
            shown.append(tag("p", "No run of it has validated yet: there are no curves.", class_="soft"))
    return shown


def table_name(table: Table) -> str:
    """Returns what tells a table on the page from others."""
    return ", ".join([table.name, *["small form"] * (table.scale == "mini"), *table.overrides])
