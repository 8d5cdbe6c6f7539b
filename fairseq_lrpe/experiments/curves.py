"""The validations over the updates of a table's runs: the results command's picture."""

import math
import statistics

from fairseq_lrpe.experiments.entries import decimals

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito
MARKERS = "osD^vP*X<>phd8"
STYLES = ("-", (0, (5, 2)), (0, (1, 1.2)))


def curve(records: dict) -> dict[int, list[float]]:
    """Returns {updates: [value of each seed]}, of the finished seeds if there are any, where all have one."""
    runs = [run for run in records.values() if run and run.curve]
    runs = [run for run in runs if run.values] or runs
    common = set.intersection(*(set(run.curve) for run in runs)) if runs else ()
    points = {updates: [run.curve[updates] for run in runs] for updates in sorted(common)}
    return {updates: values for updates, values in points.items() if all(map(math.isfinite, values))}


def curves(entries: list) -> dict[tuple, dict]:
    """Returns {(experiment, attention, its kind's curve): {row: curve}}."""
    found = {}
    for entry in entries:
        points, cell = curve(entry.records), entry.cell
        if points:
            panel = cell.experiment.name, cell.attention, cell.experiment.kind.curve
            found.setdefault(panel, {})[cell.row] = points
    return found


def draw(title: str, entries: list, path) -> object:
    """Draws the validations over the updates, a panel for each experiment and attention; returns the figure.

    A line is the mean of a method's seeds, its band the least to the largest of them.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

    panels = curves(entries)
    if not panels:
        raise ValueError("no run has validated yet: there is nothing to plot")
    across = min(len(panels), 3)
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(8.5 * across, 5 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flat
    for unused in axes[len(panels) :]:
        unused.remove()
    rows = list(dict.fromkeys(row for lines in panels.values() for row in lines))
    for ax, ((experiment, attention, drawn), lines) in zip(axes, panels.items(), strict=False):
        last = {row: statistics.fmean(list(points.values())[-1]) for row, points in lines.items()}
        end = max(max(points) for points in lines.values())
        lower = drawn.better == "lower"  # a loss falls from far above
        bottom, top = window(lines.values(), list(last.values()), end) if lower else (None, math.inf)
        for row in sorted(lines, key=last.get, reverse=not lower):
            points, i = lines[row], rows.index(row)
            x, mean = list(points), [statistics.fmean(values) for values in points.values()]
            end_value = f"{last[row]:.{decimals(last[row])}f}"
            notes = [f"at {x[-1]:,}"] * (x[-1] < end) + ["above"] * (last[row] > top)
            ax.plot(
                x,
                mean,
                color=COLOURS[i % len(COLOURS)],
                linestyle=STYLES[i // len(COLOURS) % len(STYLES)],
                marker=MARKERS[i % len(MARKERS)],
                markersize=5,
                # The markers of different methods stand at different places.
                markevery=(i % 4 * max(1, len(x) // 32), max(1, len(x) // 8)),
                linewidth=1.5,
                label=f"{end_value}  {row}" + (f" ({', '.join(notes)})" if notes else ""),
            )
            if len(next(iter(points.values()))) > 1:
                least, largest = zip(*((min(v), max(v)) for v in points.values()), strict=True)
                ax.fill_between(x, least, largest, color=COLOURS[i % len(COLOURS)], alpha=0.15, linewidth=0)
        # Up to here every line is above the window.
        visible = [u for points in lines.values() for u, v in points.items() if statistics.fmean(v) <= top]
        start = min(visible, default=0)
        ax.set(xlim=(start - 0.02 * (end - start), end + 0.02 * (end - start)))
        if lower:
            ax.set(ylim=(bottom, top), yscale="log")
        ax.set(xlabel="updates", ylabel=drawn.label, title=f"{experiment}, {attention} attention")
        ax.yaxis.set_major_locator(MaxNLocator(nbins=14, steps=[1, 2, 2.5, 5, 10]))
        ax.yaxis.set_major_formatter(ScalarFormatter())
        ax.yaxis.set_minor_locator(NullLocator())
        ax.grid(alpha=0.25)
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), title="last  method", handlelength=3.5)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return figure


def window(lines, last, end):
    """The least and largest value to show.

    The lines' ends, but those far above, fill the lower half, and the later half of the training is seen.
    """
    near = [x for x in last if x <= 1.5 * statistics.median(last)]
    spread = max(math.log(max(near) / min(near)), 0.05)
    middle = [
        min((u, statistics.fmean(v)) for u, v in points.items() if 2 * u >= end)
        for points in lines
        if 2 * max(points) >= end
    ]
    top = max(max(near) * math.exp(0.9 * spread), statistics.median(ppl for _, ppl in middle))
    return min(near) * (min(near) / top) ** 0.05, top
