"""Traces: processes, threads, slices, arrows and counters as the format requires them."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.timelines import two_stages
from pipeplan.core.schedule import Kind
from pipeplan.report.plot.colours import STYLES
from pipeplan.report.trace import trace_data, write_trace


def by_phase(**tracks: Any) -> dict[str, list[dict[str, Any]]]:
    """The events of a trace by phase."""
    found = defaultdict(list)
    for event in trace_data(tracks)["traceEvents"]:
        found[event["ph"]].append(event)
    return found


def test_slices_are_the_spans_in_microseconds() -> None:
    """Every action is a slice with its start and length, to the nanosecond, on its device's thread."""
    timeline = two_stages()
    slices = [event for event in by_phase(predicted=timeline)["X"] if "action" in event["args"]]
    assert len(slices) == len(timeline.spans)
    for span in timeline.spans:
        (event,) = [event for event in slices if event["args"]["action"] == str(span.action)]
        assert event["ts"] * 1000 == span.start
        assert event["dur"] * 1000 == span.end - span.start
        assert event["tid"] == 1 + 2 * span.device


def test_predicted_and_measured_are_two_processes_in_the_same_colours() -> None:
    """Names apart from digits, which decide colours in Perfetto, and cname, which does in Chrome, agree per kind."""
    timeline = two_stages()
    phases = by_phase(predicted=timeline, measured=list(timeline.spans))
    names = {event["args"]["name"]: event["pid"] for event in phases["M"] if event["name"] == "process_name"}
    assert names == {"predicted": 1, "measured": 2}
    looks = defaultdict(set)
    for event in phases["X"]:
        looks[event["cat"]].add((event["name"].rstrip("0123456789 "), event["cname"]))
    assert set(looks) == {"forward", "backward", "update", "transfer"}
    assert all(len(look) == 1 for look in looks.values())
    assert len({look for kinds in looks.values() for look in kinds}) == 4


def test_arrows_lead_from_maker_through_transfer_to_reader() -> None:
    """Each tensor's arrow starts in the action that makes it, passes its transfer and ends in the one that reads it."""
    phases = by_phase(predicted=two_stages())
    slices = phases["X"]
    arrows = defaultdict(dict)
    for phase in "stf":
        for event in phases[phase]:
            arrows[event["id"]][phase] = event
    assert len(arrows) == 4
    ends = set()
    for stops in arrows.values():
        bound = []
        for phase in "stf":
            stop = stops[phase]
            (inside,) = [s for s in slices if s["tid"] == stop["tid"] and s["ts"] <= stop["ts"] < s["ts"] + s["dur"]]
            bound.append(inside["args"].get("action", inside["name"]))
        assert stops["f"]["bp"] == "e"
        ends.add((bound[0], bound[2]))
        assert bound[1].startswith("transfer")
    assert ends == {("0F0", "1F0"), ("0F1", "1F1"), ("1B0", "0B0"), ("1B1", "0B1")}


def test_memory_is_a_counter_for_each_device() -> None:
    """Every step of every memory line is one value of that device's counter."""
    timeline = two_stages()
    counters = by_phase(predicted=timeline)["C"]
    for device, line in enumerate(timeline.memory):
        mine = [event for event in counters if event["name"] == f"memory of device {device}"]
        assert [(event["ts"] * 1000, event["args"]["GiB"] * 2**30) for event in mine] == list(line)


def test_slices_of_one_thread_do_not_overlap() -> None:
    """Devices and links run one slice at a time, so nothing is hidden or nested by accident."""
    rows = defaultdict(list)
    for event in by_phase(predicted=two_stages())["X"]:
        rows[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        row.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(row))


def test_the_file_is_json(tmp_path: Path) -> None:
    """The file is one JSON object with a list of events."""
    write_trace(tmp_path / "t.json", {"predicted": two_stages()})
    data = json.loads((tmp_path / "t.json").read_text())
    assert data["displayTimeUnit"] == "ms"
    assert len(data["traceEvents"]) > 20


def test_kinds_have_colours_of_their_own() -> None:
    """No two kinds of action look alike, in pictures or in traces."""
    assert set(STYLES) == set(Kind)
    assert len({style.fill for style in STYLES.values()}) == len(Kind)
    assert len({style.trace for style in STYLES.values()}) == len(Kind)
