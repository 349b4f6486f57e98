"""Pictures of frontiers: the drawn points and bounds are those of the frontier."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from helpers.explained import lean
from helpers.instances import equal_devices, fat_head
from pipeplan.analysis.frontier import frontier
from pipeplan.core.errors import InputError

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("gap", [0.0, 0.5])
def test_points_steps_and_bounds_are_drawn(gap: float) -> None:
    """Every point is a dot at its cost and time; if a gap is left, the bound is drawn and the gap shaded."""
    from pipeplan.report.plot.frontier import plot_frontier
    from pipeplan.report.plot.library import new_figure

    found = frontier(fat_head(), equal_devices(3), lean(8), gap=gap)
    ax = plot_frontier(found, new_figure(6, 4).add_subplot())
    lines = {line.get_label(): line for line in ax.lines}
    dots = lines["plan, proved best" if found.complete else "plan"]
    assert list(zip(*dots.get_data(), strict=True)) == [(point.cost, point.value) for point in found.points]
    assert ("proved bound" in lines) == (not found.complete) == bool([p for p in found.points if p.gap])
    if not found.complete:
        costs, bounds = lines["proved bound"].get_data()
        for point in found.points:
            drawn = max(zip(costs, bounds, strict=True), key=lambda pair: (pair[0] <= point.cost, pair[0]))[1]
            assert drawn <= point.value


@pytest.mark.parametrize("over", ["memory", "devices"])
def test_the_picture_names_its_axes(over: str, tmp_path: Path) -> None:
    """The file is a picture whose text names both axes with their units."""
    from pipeplan.report.plot.frontier import save_frontier

    path = tmp_path / "frontier.svg"
    save_frontier(path, frontier(fat_head(), equal_devices(3), lean(8), over))  # type: ignore[arg-type]
    text = " ".join(ElementTree.parse(path).getroot().itertext())
    assert "chain on 3 x unit" in text and "step time (µs)" in text
    assert ("memory of the fullest device (B)" if over == "memory" else "devices") in text
    with pytest.raises(InputError, match=r"\.svg or \.png"):
        save_frontier(tmp_path / "frontier.pdf", frontier(fat_head(), equal_devices(1), lean(8)))
