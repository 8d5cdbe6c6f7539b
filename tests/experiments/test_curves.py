"""Pictures of validations: how a method looks, and what is seen of few points."""

import json

import pytest
from tiny import write_run

from fairseq_lrpe.experiments import curves, listing, looks
from fairseq_lrpe.methods import METHODS, canonical


def drawn(folder, tmp_path):
    rows = listing.to_draw(listing.read("lm/x", folder))
    return curves.draw("x", rows, tmp_path / "x.png").axes


def seen(ax):
    """{row: its points inside the panel, those that have a marker}."""
    (left, right), (bottom, top), found = ax.get_xlim(), ax.get_ylim(), {}
    for line in ax.lines:
        assert line.get_marker() not in (None, "None")
        marked = line.get_markevery()
        points = list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        points = points if marked == 1 else points[marked[0] :: marked[1]]
        inside = [p for p in points if left <= p[0] <= right and bottom <= p[1] <= top]
        found[line.get_label().split("  ")[1]] = inside
    return found


def test_every_method_has_a_look_of_its_own():
    methods = [*dict.fromkeys(map(canonical, METHODS)), "fairseq"]
    assert set(looks.LOOKS) <= set(methods)
    assert len({looks.look(method) for method in methods}) == len(methods)
    assert looks.look("iclr_type2") == looks.look("tmlr_type2")


def test_a_method_of_ones_own_keeps_its_look():
    before = looks.look("mine")
    assert before not in looks.LOOKS.values() and before == looks.look("mine")
    assert before != looks.look("other") and looks.look(None) not in looks.LOOKS.values()


def test_a_method_looks_the_same_in_every_picture(tmp_path):
    for method in ("base", "rope", "per", "tmlr_type1"):
        write_run(tmp_path / f"all/lm/x/linear_{method}/seed-1", {100: 20, 200: 10}, 10, 200)
    for name in ("linear_per", "softmax_per"):
        write_run(tmp_path / f"one/lm/x/{name}/seed-1", {100: 20, 200: 10}, 10, 200)
    [many] = drawn(tmp_path / "all", tmp_path)
    linear, softmax = drawn(tmp_path / "one", tmp_path)
    [per] = [line for line in many.lines if line.get_label().endswith("per")]
    for line in (linear.lines[0], softmax.lines[0]):
        assert (
            (line.get_color(), line.get_marker()) == (per.get_color(), per.get_marker()) == looks.look("per")
        )
    assert linear.lines[0].get_linestyle() != softmax.lines[0].get_linestyle()


def test_rows_of_one_method_differ_in_their_markers(tmp_path):
    for changes in ("", "train.lr=0.1/", "updates=100/"):
        write_run(tmp_path / f"lm/x/linear_rope/{changes}seed-1", {100: 20, 200: 10}, 10, 200)
    [ax] = drawn(tmp_path, tmp_path)
    assert len({line.get_color() for line in ax.lines}) == 1
    assert len({line.get_fillstyle() for line in ax.lines}) == 3


@pytest.mark.parametrize("points", [{40: 900.0}, {40: 900.0, 60: 800.0}, {400: 11.0}])
def test_a_run_with_one_or_two_points_is_seen(tmp_path, points):
    for i, method in enumerate(("base", "rope", "per", "spe", "nope")):  # markers of long lines stand apart
        many = {40 * k: 1000 / k + i for k in range(1, 11)}
        write_run(tmp_path / f"lm/x/linear_{method}/seed-1", many, 10, 400)
    write_run(tmp_path / "lm/x/linear_tmlr_type1/seed-1", points, None, 400)
    [ax] = drawn(tmp_path, tmp_path)
    found = seen(ax)
    [row] = [row for row in found if row.startswith("tmlr_type1")]
    assert found[row] == list(points.items()) and all(found.values())


def test_a_run_alone_with_one_point_is_seen(tmp_path):
    write_run(tmp_path / "lm/x/linear_rope/seed-1", {400: 11.0}, 11, 400)
    [ax] = drawn(tmp_path, tmp_path)
    assert seen(ax) == {"rope": [(400, 11.0)]}
    assert ax.get_title() == "lm/x, linear attention"


def test_a_loss_that_the_log_rounds_to_zero_is_drawn(tmp_path):
    write_run(tmp_path / "lm/x/linear_rope/seed-1", {1: 0.0, 2: 0.0}, 1, 2)
    write_run(tmp_path / "lm/x/linear_base/seed-1", {1: 0.5, 2: 0.2}, 1, 2)
    [ax] = drawn(tmp_path, tmp_path)
    assert len(seen(ax)["rope"]) == 2


def test_a_problem_is_seen_whole_with_four_decimals(tmp_path):
    folder, losses = tmp_path / "lm/x/linear_rope/seed-1", {1: 64.0, 2: 32.0, 3: 2.0, 4: 2.0}
    write_run(folder, {1: 0.0}, 1, 4)
    settings = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**settings, "kind": "synthetic"}))
    lines = [{"kind": "valid", "valid_num_updates": u, "valid_loss": loss} for u, loss in losses.items()]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    [ax] = drawn(tmp_path, tmp_path)
    assert ax.lines[0].get_label() == "1.3863  rope"
    assert [u for u, _ in seen(ax)["rope"]] == list(losses)
