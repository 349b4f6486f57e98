"""Pictures of plans with replicas."""

from dataclasses import replace

import pytest

from helpers.pipelines import line
from helpers.replicated import replicated_answer
from pipeplan.core.schedule import Kind
from pipeplan.report.plot.boxes import BOX
from pipeplan.report.plot.colours import STYLES
from pipeplan.report.plot.gantt import gantt_figure, headline, plot_gantt
from pipeplan.report.plot.labels import device_labels, label_room
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import simulate

pytest.importorskip("matplotlib")
PLAN = replicated_answer()[0]
TIMELINE = simulate(PLAN.schedule, PLAN.pipeline)


def test_lanes_say_device_stage_and_replica() -> None:
    """Names count replicas from one, and the margin grows with them."""
    labels = device_labels(PLAN)
    assert labels[0] == "d2 · stage 0 (1/3)" and labels[3] == "d3 · stage 1"
    figure = gantt_figure({"1f1b": TIMELINE}, devices=labels)
    for ax in figure.axes:
        assert [label.get_text() for label in ax.get_yticklabels()] == list(labels)
        assert ax.get_position().x0 * figure.get_figwidth() == pytest.approx(label_room(6, labels))
    assert label_room(6, labels) > label_room(6, None)


def test_a_device_with_several_stages_names_them_all() -> None:
    """A device of two stages, one of them replicated, is labelled with both."""
    pipeline = replace(line(2, 1, 1), placement=((0, 1), (0,)))
    plan = replace(PLAN, pipeline=pipeline, ranks=(4, 7))
    assert device_labels(plan) == ("d4 · stages 0 (1/2), 1", "d7 · stage 0 (2/2)")


def test_transfers_join_the_lanes_of_their_replicas() -> None:
    """Micro-batch m leaves lane m mod 3 for lane 3, and lane 3 for lane 4 or 5."""
    from matplotlib.collections import LineCollection

    (lines,) = [each for each in plot_gantt(TIMELINE).collections if isinstance(each, LineCollection)]
    half = BOX / 2
    ends = sorted((path.vertices[0][1], path.vertices[1][1]) for path in lines.get_paths())
    onward = [(m % 3, 3) for m in range(7)] + [(3, 4 + m % 2) for m in range(7)]
    expected = [(a + half, b - half) for a, b in onward] + [(b - half, a + half) for a, b in onward]
    assert [pytest.approx(pair) for pair in sorted(expected)] == ends


def test_replicas_reduce_in_a_colour_of_their_own() -> None:
    """Reductions are one box per replica, with a common start for all replicas of a stage."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_hex

    fill, drawn = STYLES[Kind.REDUCE].fill, plot_gantt(TIMELINE).collections
    boxes = [each for each in drawn if isinstance(each, PolyCollection) and to_hex(each.get_facecolor()[0]) == fill]
    starts = sorted(path.vertices[:, 0].min() for each in boxes for path in each.get_paths())
    assert len(starts) == 5
    assert len(set(starts)) == 2


def test_a_line_parts_stages_only_where_there_are_replicas() -> None:
    """Lines separate lanes of two stages, but not in a pipeline without replicas."""
    borders = [line.get_ydata()[0] for line in plot_gantt(TIMELINE).lines]
    assert borders == [2.5, 3.5]
    plain = simulate(FAMILIES["gpipe"].write((1, 1), 2), line(2, 1, 1))
    assert not plot_gantt(plain).lines


def test_flat_lanes_are_not_all_named() -> None:
    """With more lanes than the tallest picture has room for, every k-th gets its name."""
    pipeline = replace(line(1, 1, 1), placement=(tuple(range(800)),), runtime=(0,) * 800, limits=(2**62,) * 800)
    timeline = simulate(FAMILIES["gpipe"].write((800,), 800), pipeline)
    unlike = range(10**9, 10**9 + 800)
    (ax,) = gantt_figure({"wide": timeline}, memory=False, limits=unlike).axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert 100 < len(names) < 200
    assert names[:2] == ["device 0", f"device {round(ax.get_yticks()[1])}"]


def test_equal_replicas_of_a_large_plan_share_a_lane() -> None:
    """32 equal replicas are one lane with their number; the idle share in the title is that of all devices."""
    pipeline = replace(line(1, 1, 1), placement=(tuple(range(32)),), runtime=(0,) * 32, limits=(2**62,) * 32)
    timeline = simulate(FAMILIES["gpipe"].write((32,), 64), pipeline)
    labels = [f"d{i} · stage 0 ({i + 1}/32)" for i in range(32)]
    figure = gantt_figure({"wide": timeline}, devices=labels)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["d0 · stage 0 ×32"]
    assert figure.axes[0].get_title(loc="left") == headline("wide", timeline)
    uneven = simulate(FAMILIES["gpipe"].write((32,), 65), pipeline)
    names = [label.get_text() for label in gantt_figure({"a": uneven}, devices=labels).axes[0].get_yticklabels()]
    assert names == ["d0 · stage 0 (1/32)", "d1 · stage 0 ×31"]
