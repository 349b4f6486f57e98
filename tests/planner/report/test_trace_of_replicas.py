"""Traces of plans with replicas: a thread for each pair of devices, and devices by their names."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from helpers.replicated import replicated_answer
from pipeplan.core.errors import InputError
from pipeplan.io.export.torch_csv import write_torch_csv
from pipeplan.report.plot.labels import device_labels
from pipeplan.report.trace import trace_data
from pipeplan.simulate import simulate

PLAN = replicated_answer()[0]
TIMELINE = simulate(PLAN.schedule, PLAN.pipeline)
EVENTS = trace_data({"predicted": TIMELINE}, device_labels(PLAN))["traceEvents"]
NAMES = {event["tid"]: event["args"]["name"] for event in EVENTS if event["name"] == "thread_name"}


def test_devices_are_called_by_stage_and_replica() -> None:
    """Each device's thread has the name that pictures give it."""
    assert [NAMES[1 + 2 * device] for device in range(6)] == [
        "d2 · stage 0 (1/3)",
        "d0 · stage 0 (2/3)",
        "d1 · stage 0 (3/3)",
        "d3 · stage 1",
        "d5 · stage 2 (1/2)",
        "d4 · stage 2 (2/2)",
    ]


def test_every_pair_of_replicas_has_a_thread() -> None:
    """Three senders to one receiver and on to two are five pairs in each direction, each with its own thread."""
    links = [name for name in NAMES.values() if name.startswith("stage")]
    assert len(links) == len(set(links)) == 10
    assert "stage 0 to stage 1, device 2 to 3" in links
    assert "stage 2 to stage 1, device 5 to 3" in links


def test_no_slices_of_a_thread_overlap() -> None:
    """Concurrent transfers between different replicas have separate threads."""
    rows = defaultdict(list)
    for event in EVENTS:
        if event["ph"] == "X":
            rows[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert set(rows) == set(NAMES)
    for row in rows.values():
        row.sort()
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(row))


def test_arrows_join_the_replicas_that_meet() -> None:
    """Micro-batch m goes from replica m mod 3 of stage 0 to stage 1, and on to replica m mod 2 of stage 2."""
    stops = defaultdict(dict)
    for event in EVENTS:
        if event["ph"] in "sf":
            stops[event["id"]][event["ph"]] = (event["tid"] - 1) // 2
    found = sorted((stop["s"], stop["f"]) for stop in stops.values())
    onward = [(m % 3, 3) for m in range(7)] + [(3, 4 + m % 2) for m in range(7)]
    assert found == sorted(onward + [(b, a) for a, b in onward])


def test_torch_files_know_no_replicas(tmp_path: Path) -> None:
    """A replicated stage is refused with its ranks, rather than written as if one rank ran it."""
    with pytest.raises(
        InputError, match=r"stage 0 runs on 3 \(ranks 0, 1, 2\), in no equal copies .*; solve with replicas of 1"
    ):
        write_torch_csv(PLAN.schedule, tmp_path / "s.csv")
    assert not list(tmp_path.iterdir())
