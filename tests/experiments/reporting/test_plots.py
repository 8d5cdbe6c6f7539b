"""Plots of validation curves: styles of methods, and the visible points."""

import pytest
from support.tiny import REPOSITORY, write_run

from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting import aggregate, column_plot, plots, style
from fairseq_lrpe.experiments.reporting.experiment_runs import read_experiment_runs
from fairseq_lrpe.experiments.reporting.tables import read_table_runs
from fairseq_lrpe.methods import METHODS, canonical
from fairseq_lrpe.utils.errors import UserError


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


def test_ticks_of_updates_are_integers(tmp_path):
    write_run(tmp_path / "lm/x/linear_base/seed-1", {1: 900.0, 2: 800.0, 3: 700.0}, None, 3)
    lines = plots.experiment_lines(read_experiment_runs("lm/x", tmp_path))
    [ax] = plots.plot_curves("x", lines, tmp_path / "x.png").axes
    assert all(tick.is_integer() for tick in ax.get_xticks())


def recorded_columns(name, path):
    """Plots the recorded numbers of a table's small configuration over its columns."""
    table = Table(name, "mini")
    summary = aggregate.summarize(table, read_table_runs(table, REPOSITORY / "docs/results"))
    return column_plot.plot_columns("x", summary, path)


def test_every_panel_shows_all_columns(tmp_path):
    """Softmax attention has no numbers in the last column of lfhc_table3."""
    panels = recorded_columns("lfhc_table3", tmp_path / "x.png").axes
    assert {len(ax.get_xticks()) for ax in panels} == {4} and len(panels) == 2
    for ax in panels:
        assert ax.yaxis.get_tick_params()["labelleft"]
        left, right = ax.get_xlim()
        assert left < 0 and right > 3


def test_a_single_column_is_not_plotted(tmp_path):
    with pytest.raises(UserError, match="the only column to plot is cifar10"):
        recorded_columns("tmlr_table3", tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


def test_titles_have_no_folders():
    overrides = ["updates=50", "data=/a/folder/bin"]
    assert plots.table_name(Table("quickstart", overrides=overrides)) == "quickstart updates=50"
    assert plots.table_name(Table("tmlr_table2", "mini")) == "tmlr_table2 --scale mini"
