"""Plots of validation curves: styles of methods, and the visible points."""

import pytest
from support.tiny import write_run

from fairseq_lrpe.experiments.reporting import plots, style
from fairseq_lrpe.experiments.reporting.tables import read_experiment_runs
from fairseq_lrpe.methods import METHODS, canonical


def visible_points(ax):
    """Returns {row: its points with markers inside the panel}."""
    (left, right), (bottom, top), found = ax.get_xlim(), ax.get_ylim(), {}
    for line in ax.lines:
        assert line.get_marker() not in (None, "None")
        marked = line.get_markevery()
        points = list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        points = points if marked == 1 else points[marked[0] :: marked[1]]
        inside = [p for p in points if left <= p[0] <= right and bottom <= p[1] <= top]
        found[line.get_label().split("  ")[1]] = inside
    return found


def test_every_method_has_a_unique_style():
    methods = [*dict.fromkeys(map(canonical, METHODS)), "fairseq"]
    assert set(style.METHOD_STYLES) <= set(methods)
    assert len({style.method_style(method) for method in methods}) == len(methods)
    assert style.method_style("iclr_type2") == style.method_style("tmlr_type2")


@pytest.mark.parametrize("method", ["base", "mine"])
def test_rows_of_the_same_method_have_different_styles(method):
    found = list(style.line_styles(plots.Line("", "linear", str(k), method, []) for k in range(15)).values())
    assert found[0] == style.method_style(method) and len(set(found)) == 15


@pytest.mark.parametrize("points", [{40: 900.0}, {400: 11.0}])
def test_lines_with_one_or_two_points_are_visible(tmp_path, points):
    for i, method in enumerate(("base", "rope", "per", "spe", "nope")):
        many = {40 * k: 1000 / k + i for k in range(1, 11)}
        write_run(tmp_path / f"lm/x/linear_{method}/seed-1", many, 10, 400)
    write_run(tmp_path / "lm/x/linear_tmlr_type1/seed-1", points, None, 400)
    lines = plots.experiment_lines(read_experiment_runs("lm/x", tmp_path))
    [ax] = plots.plot_curves("x", lines, tmp_path / "x.png").axes
    found = visible_points(ax)
    [row] = [row for row in found if row.startswith("tmlr_type1")]
    assert found[row] == list(points.items()) and all(found.values())
