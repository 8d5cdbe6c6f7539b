"""A paper's table beside what was measured: ``python -m fairseq_lrpe.experiments.results``.

Published numbers come from configs/paper and are labelled as the paper's; every other one comes from the
logs and evaluations of the runs below the results folder, finished or not.
"""

import argparse
import csv
import fcntl
import json
import math
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table
from scipy.stats import rankdata, spearmanr, t

from fairseq_lrpe.experiments import compose, curves, glue
from fairseq_lrpe.experiments import table as tables

# --- a run folder ---------------------------------------------------------------------------------


@dataclass
class Run:
    """``curve``: {updates: validation perplexity}; ``values``: {split: metric}, empty until finished."""

    updates: int
    reached: int
    active: bool
    curve: dict
    values: dict
    epochs: int | None = None
    """Of a fine-tuning, whose updates depend on the task."""
    signatures: dict = field(default_factory=dict)
    """{split: what sacreBLEU measured, and how}, of a translation."""

    def state(self):
        if self.active:
            return f"running {self.reached}/{self.updates}"
        return f"stopped at {self.reached} of {self.updates}"


def read_log(path):
    """The objects of a JSON lines file; a last line that is still being written does not count."""
    lines = path.read_text().splitlines() if path.exists() else []
    objects = []
    for number, line in enumerate(lines, 1):
        try:
            objects.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise
    return objects


def is_active(folder):
    """Whether a process trains there: it holds a lock."""
    if not (folder / "lock").exists():
        return False
    with (folder / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read_run(folder, metric):
    """The run in ``folder``, or None where there is none or, said on stderr, a damaged one."""
    if not folder.is_dir():
        return None
    try:
        settings = json.loads((folder / "run.json").read_text())
        log, evaluation, splits = read_log(folder / "log.jsonl"), folder / "evaluation.json", {}
        if evaluation.exists():
            splits = json.loads(evaluation.read_text())["splits"]
        reached = [int(value) for entry in log for key, value in entry.items() if key.endswith("num_updates")]
        return Run(
            updates=int(settings["updates"]),
            reached=max(reached, default=0),
            active=is_active(folder),
            curve={
                int(entry["valid_num_updates"]): float(entry["valid_ppl"])
                for entry in log
                if entry["kind"] == "valid"
            },
            values={split: float(result[metric]) for split, result in splits.items()},
            epochs=settings.get("config", {}).get("epochs"),
            signatures={
                split: f"{metric}, signature {result[f'{metric}_signature']}"
                for split, result in splits.items()
                if f"{metric}_signature" in result
            },
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else error
        print(f"results: {folder} cannot be read ({what}) and counts as missing", file=sys.stderr)
        return None


# --- a table ----------------------------------------------------------------------------------------


@dataclass
class Entry:
    """One row and column of the paper's table; ``experiment`` is None where no run is planned."""

    attention: str
    row: str
    column: str
    better: str
    published: tuple | None
    """(mean, std or None)."""
    experiment: str | None = None
    method: str | None = None
    split: str | None = None
    runs: dict = field(default_factory=dict)
    base: dict = field(default_factory=dict)
    """{seed: run or None}, of the method and of the base of the same attention."""
    parts: list = field(default_factory=list)
    """The entries of which it is the average, instead of runs of its own."""

    def values(self, of="runs"):
        """{seed: value} of the finished ``runs``, or of those of the ``base``."""
        if self.parts:
            values = [part.values(of) for part in self.parts]
            return {
                seed: statistics.fmean(v[seed] for v in values)
                for seed in set.intersection(*map(set, values))
            }
        runs = getattr(self, of)
        return {
            seed: run.values[self.split] for seed, run in runs.items() if run and self.split in run.values
        }

    def measured(self):
        """(mean, sample standard deviation or None, seeds), or None."""
        values = list(self.values().values())
        if not values:
            return None
        return statistics.fmean(values), _deviation(values), len(values)

    def state(self):
        """Of its seeds: "3", "2 of 3", or how far the furthest unfinished one is, or "-" for nothing."""
        done, started = len(self.values()), [run for run in self.runs.values() if run and not run.values]
        if done:
            planned = len((self.parts[0] if self.parts else self).runs)
            return f"{done}" if done == planned else f"{done} of {planned}"
        return max(started, key=lambda run: (run.active, run.reached)).state() if started else "-"

    def comparable(self):
        """Whether both the paper and we have a number."""
        ours = self.measured()
        return self.published is not None and ours is not None and math.isfinite(ours[0])

    def difference(self):
        """To the base: (mean, its 95% confidence interval or None, common seeds), or None."""
        ours, base = self.values(), self.values("base")
        pairs = [ours[seed] - base[seed] for seed in ours if seed in base]
        if not pairs or self.method == "base":
            return None
        mean, deviation, n = statistics.fmean(pairs), _deviation(pairs), len(pairs)
        if deviation is None:
            return mean, None, n
        half = float(t.ppf(0.975, n - 1)) * deviation / n**0.5
        return mean, (mean - half, mean + half), n


def _deviation(values):
    return float(statistics.stdev(values)) if len(values) > 1 else None


def without_numbers(plan):
    """The columns of a figure, of which the paper gives no numbers."""
    columns = {column: {"better": "lower"} for run in plan for column in run["columns"].values()}
    return {"columns": columns, "rows": []}


def with_ours(rows, plan):
    """The paper's rows, then those that are planned beside them."""
    planned = dict.fromkeys((run["attention"], row) for run in plan for row in run["methods"])
    theirs = {(row.get("attention"), row["row"]) for row in rows}
    ours = (key for key in planned if not {key, (None, key[1])} & theirs)
    return [*rows, *({"row": row, "attention": attention, "values": {}} for attention, row in ours)]


def read_table(name, scale, results):
    """The table's settings and its entries, in the paper's order. ValueError where nothing can be shown."""
    table = tables.load(name)
    if not results.is_dir():
        raise ValueError(
            f"the results folder {results} does not exist: give the one that runs were written to"
        )
    plan = [dict(run, experiment=tables.experiment_of(run, scale)) for run in table["runs"]]
    plan = [run for run in plan if run["experiment"]]
    if not plan:
        raise ValueError(f"the table {name!r} has no small form: leave --scale mini out")
    configs = {run["experiment"]: compose.load(run["experiment"]) for run in plan}
    for part in plan:
        cfg = configs[part["experiment"]]
        if cfg.family == "glue":  # the small form has fewer tasks
            tasks = tables.tasks_of(cfg, part)
            part["columns"] = {s: c for s, c in part["columns"].items() if glue.task_of(s).name in tasks}
    paper = OmegaConf.to_container(OmegaConf.load(compose.CONFIGS / "paper" / f"{table['paper']}.yaml"))
    published, read = paper["tables"].get(table["table"]) or without_numbers(plan), {}

    def runs(part, attention, method, split):
        """{seed: run or None} of the method's trainings, or of its fine-tunings on the split's task."""
        cfg = configs[part["experiment"]]
        tasks = [glue.task_of(split).name] if cfg.family == "glue" else []
        seeds = tables.seeds_of(table, scale, cfg)
        found = {}
        for run in tables.plan(cfg, part["experiment"], attention, method, seeds, tasks):
            key = tables.folder_of(run, results), part.get("metric", table["metric"])
            if key not in read:
                read[key] = read_run(*key)
            found[run.seed] = read[key]
        return found

    columns = {column for run in plan for column in run["columns"].values()} if scale == "mini" else None
    entries = []
    for row in with_ours(published["rows"], plan):
        of_row = [run for run in plan if run["attention"] == row.get("attention", run["attention"])]
        for column, about in published["columns"].items():
            if not of_row or (columns is not None and column not in columns):
                continue
            value = row["values"].get(column)
            value = (value["mean"], value["std"]) if isinstance(value, dict) else value and (value, None)
            entry = Entry(row.get("attention", ""), row["row"], column, about["better"], value)
            for run in of_row:
                split = {c: s for s, c in run["columns"].items()}.get(column)
                if split and row["row"] in run["methods"]:
                    entry.attention, entry.experiment, entry.split = (
                        run["attention"],
                        run["experiment"],
                        split,
                    )
                    entry.method = run["methods"][row["row"]]
                    entry.runs = runs(run, entry.attention, entry.method, split)
                    entry.base = runs(run, entry.attention, "base", split)
            entries.append(entry)
    for column, of in table.get("average", {}).items():
        for entry in entries:
            parts = [
                e for e in entries if (e.attention, e.row) == (entry.attention, entry.row) and e.column in of
            ]
            if entry.column == column and all(part.runs for part in parts) and len(parts) == len(of):
                entry.parts, entry.method = parts, parts[0].method
    if not any(run for entry in entries for run in entry.runs.values()):
        first = results / str(tables.runs(table, scale)[0])
        small = [
            run["mini"]
            for run in plan
            if scale != "mini" and run["mini"] and (results / run["mini"]).is_dir()
        ]
        hint = f"; for the runs of {small[0]} give --scale mini" if small else ""
        raise ValueError(f"{results} holds no run of the table {name!r}, the first would be {first}{hint}")
    return {**table, "source": paper["source"]}, entries


# --- what is shown ----------------------------------------------------------------------------------


def number(mean, deviation):
    if not math.isfinite(mean):
        return "diverged"
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def heading(table, entries, scale):
    """What the numbers are and what they were measured on."""
    measured, signatures = {}, {}
    for entry in entries:
        for run in filter(None, entry.runs.values()):
            length = (run.epochs, "epochs") if run.epochs else (run.updates, "updates")
            measured.setdefault((entry.experiment, length[1]), set()).add(length[0])
            if entry.split in run.signatures:
                signatures[f"{entry.column}: {run.signatures[entry.split]}"] = None
    names = [f"{name} ({' or '.join(map(str, sorted(n)))} {unit})" for (name, unit), n in measured.items()]
    stand_in = ", a small stand-in: compare orders, not values" if scale == "mini" else ""
    return [
        table["title"],
        f"paper: {table['source']}, {table['table']}",
        f"measured on {', '.join(names)}{stand_in}",
        f"{table['metric']}: mean ± sample standard deviation (seeds)",
        *signatures,
    ]


def grid(entries, cells, value):
    """A line for each of the paper's rows, for each of its columns the cells that ``value(entry)`` gives."""
    columns = list(dict.fromkeys(entry.column for entry in entries))
    header = ["attention", "row", *(f"{column} {cell}".strip() for column in columns for cell in cells)]
    rows = {}
    for entry in entries:
        rows.setdefault((entry.attention, entry.row), {})[entry.column] = value(entry)
    blank = ["-"] * len(cells)
    return header, [
        [*key, *(cell for column in columns for cell in row.get(column, blank))] for key, row in rows.items()
    ]


def values_grid(entries, ours):
    numbers = any(entry.published for entry in entries)

    def value(entry):
        measured = entry.measured()
        text = entry.state() if measured is None else f"{number(*measured[:2])} ({entry.state()})"
        return [*([number(*entry.published) if entry.published else "-"] if numbers else []), text]

    return grid(entries, ("paper", ours) if numbers else (ours,), value)


def ranks(entries):
    """{(attention, column): ({row: (the paper's rank, ours)}, Spearman's ρ or None)}."""
    groups = {}
    for entry in entries:
        if entry.comparable():
            groups.setdefault((entry.attention, entry.column), []).append(entry)
    found = {}
    for key, group in groups.items():
        sign = 1 if group[0].better == "lower" else -1
        paper, ours = (
            [sign * x[0] for x in xs]
            for xs in zip(*((e.published, e.measured()) for e in group), strict=True)
        )
        # Of two methods the correlation is 1 or -1 whatever they are; of equal values it is not defined.
        known = len(group) > 2 and len(set(paper)) > 1 and len(set(ours)) > 1
        rho = float(spearmanr(paper, ours).statistic) if known else None
        pairs = zip(rankdata(paper), rankdata(ours), strict=True)
        found[key] = {entry.row: pair for entry, pair in zip(group, pairs, strict=True)}, rho
    return found


def ranks_grid(entries, ours):
    found = ranks(entries)

    def value(entry):
        pair = found.get((entry.attention, entry.column), ({}, None))[0].get(entry.row)
        return [f"{rank:g}" for rank in pair] if pair else ["-", "-"]

    header, rows = grid([e for e in entries if e.comparable()], ("paper", ours), value)
    columns = list(dict.fromkeys(e.column for e in entries if e.comparable()))
    lines = []
    for attention in dict.fromkeys(row[0] for row in rows):
        rhos = [found.get((attention, column), ({}, None))[1] for column in columns]
        last = [x for rho in rhos for x in ("", "needs 3 methods" if rho is None else f"{rho:.2f}")]
        lines += [row for row in rows if row[0] == attention] + [[attention, "Spearman ρ", *last]]
    return header, lines


def differences_grid(entries):
    def value(entry):
        mean, interval, n = entry.difference() or (None, None, 0)
        if mean is None:
            return ["-"]
        if interval is None:
            return [f"{mean:+.2f} (1 seed: no interval)"]
        return [f"{mean:+.2f} [{interval[0]:+.2f}, {interval[1]:+.2f}] ({n})"]

    return grid([e for e in entries if e.difference()], ("",), value)


def blocks(table, entries, scale):
    """What is printed, in order: lines of text, and (title, header, rows) for a table."""
    yield from heading(table, entries, scale)
    ours = "mini" if scale == "mini" else "measured"
    yield "", *values_grid(entries, ours)
    if any(entry.comparable() for entry in entries):
        yield "Ranks among the methods that both have, 1 is best", *ranks_grid(entries, ours)
    elif any(entry.published for entry in entries):
        yield "Ranks need a finished run."
    else:
        yield "The paper gives no numbers here to rank by."
    if any(entry.difference() for entry in entries):
        yield (
            "Measured difference to the base of the same attention, seed by seed: mean "
            "[95% confidence interval, Student t] (common seeds)",
            *differences_grid(entries),
        )
    else:
        yield "Differences to the base need a seed that both the base and another method have finished."


def show_rich(parts):
    console = Console()
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False, highlight=False)
            continue
        title, header, rows = part
        table = Table(title=title or None, title_justify="left")
        for name in header:
            table.add_column(name, justify="left" if name in ("attention", "row") else "right")
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            table.add_row(*row, end_section=following is not None and following[0] != row[0])
        console.print(table)


def show_markdown(parts):
    for part in parts:
        if isinstance(part, str):
            print(part + "  ")  # two spaces keep the line's end
            continue
        title, header, rows = part
        print(f"\n{title}\n" if title else "")
        print(f"| {' | '.join(header)} |")
        print(f"|{'|'.join([':--', ':--', *['--:'] * (len(header) - 2)])}|")
        for row in rows:
            print(f"| {' | '.join(row)} |")
        print()


LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "×": r"$\times$", "ρ": r"$\rho$"}


def show_latex(parts):
    def escape(text):
        return "".join(LATEX.get(character, character) for character in text)

    for part in parts:
        if isinstance(part, str):
            print(f"% {part}")
            continue
        title, header, rows = part
        if title:
            print(f"% {title}")
        print(rf"\begin{{tabular}}{{ll{'r' * (len(header) - 2)}}}")
        print(r"\hline")
        for row, before in zip([header, *rows], [None, header, *rows], strict=False):
            if before is header or (before and before[0] != row[0]):
                print(r"\hline")
            print(" & ".join(map(escape, row)) + r" \\")
        print(r"\hline")
        print(r"\end{tabular}")


CSV = "attention row column measured_on paper paper_std mean std state seeds paper_rank rank".split()
CSV += "difference low high common_seeds".split()


def show_csv(entries):
    """A line for each row and column, with everything that the other formats show in several tables."""
    found = ranks(entries)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(CSV)
    for e in entries:
        rank = found.get((e.attention, e.column), ({}, None))[0].get(e.row, ("", ""))
        mean, interval, n = e.difference() or ("", None, "")
        line = [
            e.attention,
            e.row,
            e.column,
            e.experiment,
            *(e.published or ("", "")),
            *(e.measured() or ("", ""))[:2],
        ]
        writer.writerow([*line, e.state(), len(e.values()), *rank, mean, *(interval or ("", "")), n])


def main():
    parser = argparse.ArgumentParser(prog="python -m fairseq_lrpe.experiments.results", description=__doc__)
    parser.add_argument("results", type=Path, help="the folder that the runs were written to")
    parser.add_argument("--table", required=True, help="a file's name in configs/tables")
    parser.add_argument(
        "--scale", choices=["full", "mini"], default="full", help="mini: the table's small stand-in"
    )
    parser.add_argument(
        "--format", choices=["markdown", "csv", "latex"], help="default: a table on a terminal, else Markdown"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="validation perplexity over updates")
    args = parser.parse_args()
    try:
        table, entries = read_table(args.table, args.scale, args.results)
        if args.format == "csv":
            show_csv(entries)
        else:
            show = {"markdown": show_markdown, "latex": show_latex, None: show_rich}
            form = args.format or (None if sys.stdout.isatty() else "markdown")
            show[form](blocks(table, entries, args.scale))
        if args.plot:
            curves.draw(table, entries, args.plot)
            print(f"{args.plot} shows validation perplexity over updates.", file=sys.stderr)
    except ValueError as error:
        sys.exit(f"results: {error}")


if __name__ == "__main__":
    main()
