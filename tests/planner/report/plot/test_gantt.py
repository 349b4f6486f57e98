"""Pictures of time lines: boxes, texts and files."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.timelines import GIB, MS, two_stages
from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Action, Kind
from pipeplan.core.timeline import Span, Timeline
from pipeplan.costs.chain import UNLIMITED
from pipeplan.report.plot import library
from pipeplan.report.plot.colours import STYLES
from pipeplan.report.plot.gantt import bubble, gantt_figure, plot_gantt, save_gantt

pytest.importorskip("matplotlib")


def boxes(ax: Any) -> list[tuple[str, float, float, float, float]]:
    """Colour, start, end, top and bottom of every box on an axis."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_hex

    found = []
    for collection in ax.collections:
        if isinstance(collection, PolyCollection):
            for path in collection.get_paths():
                (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                found.append((to_hex(collection.get_facecolor()[0]), left, right, top, bottom))
    return found


def test_the_bubble_is_what_no_device_uses() -> None:
    """Of 2 × 21 ms the devices compute 13 and 12."""
    assert bubble(two_stages()) == pytest.approx(1 - (13 + 12) / 42)


def test_every_action_is_a_box_of_its_kind_and_device() -> None:
    """Boxes lie in their device's lane from start to end, in their kind's colour."""
    timeline = two_stages()
    drawn = {
        (fill, left, right, round((top + bottom) / 2)) for fill, left, right, top, bottom in boxes(plot_gantt(timeline))
    }
    assert drawn == {(STYLES[span.action.kind].fill, span.start, span.end, span.device) for span in timeline.spans}


def test_numbers_stand_where_they_fit() -> None:
    """Micro-batch numbers are written into wide boxes and left out of narrow ones."""
    timeline = two_stages()
    assert sorted(numbers(plot_gantt(timeline))) == list("00001111")
    assert not numbers(plot_gantt(timeline, numbers=False))
    assert not numbers(plot_gantt(timeline, end=400 * timeline.makespan))


def numbers(ax: Any) -> list[str]:
    """Texts in boxes."""
    return [text.get_text() for text in ax.texts if text.get_text().isdigit()]


def test_every_lane_says_how_much_of_it_is_idle() -> None:
    """Each lane is labelled with its own share of the bubble."""
    notes = [text.get_text() for text in plot_gantt(two_stages()).texts if "idle" in text.get_text()]
    assert notes == [f"{1 - busy / 21:.0%} idle".replace("%", " %") for busy in (13, 12)]


def test_the_title_tells_time_and_bubble() -> None:
    """The default title has the step time and the share of idle time."""
    assert plot_gantt(two_stages()).get_title(loc="left") == "21 ms, bubble 40.5 %"


def test_two_lanes_share_a_device() -> None:
    """Actions of the second lane are drawn beneath those of the first, in the same device's lane."""
    spans = (Span(0, 0, Action(Kind.FORWARD, 0, 1), 0, 10), Span(0, 1, Action(Kind.BACKWARD, 0, 0), 0, 10))
    upper, lower = boxes(plot_gantt(Timeline(spans, (), (), ())))
    assert upper[4] <= lower[3]
    assert upper[3] > -0.5 and lower[4] < 0.5


def test_stages_of_one_device_differ() -> None:
    """Two stages on one device have the same kind of colour, but not the same one."""
    spans = tuple(Span(0, 0, Action(Kind.FORWARD, stage), stage * 10, stage * 10 + 10) for stage in (0, 1))
    assert len({box[0] for box in boxes(plot_gantt(Timeline(spans, (), (), ())))}) == 2


def test_time_lines_share_one_axis() -> None:
    """Predicted and measured are beneath each other on equal axes; memory has a panel if it is known."""
    slower = replace(
        two_stages(), spans=(*two_stages().spans, Span(0, 0, Action(Kind.UPDATE, 0), 21 * MS, 30 * MS)), memory=()
    )
    figure = gantt_figure({"predicted": two_stages(), "measured": slower})
    assert [ax.get_title(loc="left").partition(":")[0] for ax in figure.axes] == ["predicted", "memory", "measured"]
    assert {ax.get_xlim() for ax in figure.axes} == {(0.0, 30.0 * MS)}
    lefts = {round(ax.get_position().x0, 6) for ax in figure.axes}
    assert len(lefts) == 1
    assert len(gantt_figure({"a": two_stages()}, memory=False).axes) == 1


def test_memory_names_peaks_and_limits() -> None:
    """Each lane is labelled with its peak and limit, in red if it is exceeded; no limit is no text."""
    _, ax = gantt_figure({"a": two_stages()}, limits=(2 * GIB, UNLIMITED)).axes
    first, second = ax.texts
    assert first.get_text() == "3.00 GiB of 2.00 GiB"
    assert second.get_text() == "2.00 GiB"
    assert first.get_color() != second.get_color()


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_suffix_decides_the_format(tmp_path: Path, suffix: str) -> None:
    """The same picture is written as SVG with text that can be searched, or as PNG; twice the same bytes."""
    path = tmp_path / f"plan.{suffix}"
    save_gantt(path, {"1f1b": two_stages()})
    content = path.read_bytes()
    if suffix == "svg":
        ElementTree.fromstring(content)
        assert b"device 1" in content and b"bubble" in content
    else:
        assert content.startswith(b"\x89PNG")
    save_gantt(str(path), {"1f1b": two_stages()})
    assert path.read_bytes() == content


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    """Only the two documented formats are written."""
    with pytest.raises(InputError, match=r"must end in \.svg or \.png"):
        save_gantt(tmp_path / "plan.jpg", {"a": two_stages()})


def test_nothing_is_drawable() -> None:
    """A time line without spans gives an empty picture, not an error."""
    assert gantt_figure({"empty": Timeline((), (), (), ())}).axes


def test_a_missing_matplotlib_is_taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without matplotlib the error says how to install it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'pipeplan\[plot\]'"):
        save_gantt(tmp_path / "plan.svg", {"a": two_stages()})
    assert not list(tmp_path.iterdir())


def test_importing_the_plots_imports_no_matplotlib() -> None:
    """Colours and functions can be imported without matplotlib."""
    code = "import sys, pipeplan.report.plot.gantt, pipeplan.report.trace; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_contrast_of_numbers() -> None:
    """Numbers can be read on their boxes: contrast of at least 3 to 1 (WCAG 2, large text)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for style in STYLES.values():
        dark, light = sorted([luminance(style.fill), luminance(style.ink)])
        assert (light + 0.05) / (dark + 0.05) >= 3


def test_suffix_check() -> None:
    """The suffix counts in any case."""
    assert library.check_suffix(Path("A.SVG")) == "svg"


def test_the_legend_tells_lighter_colours() -> None:
    """If a device runs several stages, the legend explains the lighter boxes."""
    spans = tuple(Span(0, 0, Action(Kind.FORWARD, stage), stage * 10, stage * 10 + 10) for stage in (0, 1))

    def legend(timeline: Timeline) -> set[str]:
        return {text.get_text() for text in gantt_figure({"a": timeline}).legends[0].get_texts()}

    assert "a later stage of the device" in legend(Timeline(spans, (), (), ()))
    assert "a later stage of the device" not in legend(two_stages())


def test_a_picture_says_what_it_shows() -> None:
    """The title, like a plan's headline, stands above everything and takes room of its own."""
    plain, titled = (gantt_figure({"a": two_stages()}, title=title) for title in ("", "a model on a cluster"))
    assert [text.get_text() for text in titled.texts] == ["a model on a cluster"]
    assert titled.get_figheight() > plain.get_figheight()
