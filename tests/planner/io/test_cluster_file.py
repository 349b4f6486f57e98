"""Clusters as YAML: kinds from the catalogue and by speed, nodes, links, and errors that list every fault."""

from pathlib import Path
from typing import Any

import pytest

from pipeplan.core.cluster import DeviceKind, Link, Overlap
from pipeplan.core.errors import InputError
from pipeplan.io import cluster_file
from pipeplan.io.cluster_file import cluster_from_data, read_cluster

GIB = 2**30

CLUSTER = """
name: mixed
devices:
  big: {use: board, memory: 8GiB}
  slow: {memory: 4GiB, speed: {relative_to: board, factor: 0.5}}
  plain: {memory: 2GiB}
nodes:
  - count: 2
    devices: [{kind: big, count: 2}, {kind: slow}]
    link: {bandwidth: 25GB/s, latency: 5us}
  - devices: [{kind: plain}]
network: {bandwidth: 10Gbit/s, latency: 50us}
overlap: false
"""


@pytest.fixture(autouse=True)
def _one_board(monkeypatch: pytest.MonkeyPatch) -> None:
    board = DeviceKind(
        "board",
        memory=16 * GIB,
        peak={"float32": 10**13},
        bandwidth=9 * 10**11,
        efficiency=0.4,
        overhead=5000,
        runtime=7,
    )
    monkeypatch.setattr(cluster_file, "catalogue", lambda: {"board": board})


def load(text: str, tmp_path: Path) -> Any:
    """Read a cluster from text."""
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_cluster(path)


def minimal(**devices: dict[str, Any]) -> dict[str, Any]:
    """Data of a cluster with these kinds, one device of the first."""
    return {"name": "c", "devices": devices, "nodes": [{"devices": [{"kind": next(iter(devices))}]}]}


def test_nodes_devices_and_links(tmp_path: Path) -> None:
    """Counts multiply out in order, and quantities arrive in nanoseconds and bytes."""
    cluster = load(CLUSTER, tmp_path)
    assert [device.kind.name for device in cluster.devices] == ["big", "big", "slow", "big", "big", "slow", "plain"]
    assert [device.node for device in cluster.devices] == [0, 0, 0, 1, 1, 1, 2]
    assert cluster.nodes[0].link == Link(25 * 10**9, 5_000)
    assert cluster.nodes[2].link == Link()
    assert cluster.network == Link(1_250_000_000, 50_000)
    assert cluster.overlap is Overlap.NONE


def test_a_kind_from_the_catalogue_keeps_what_it_does_not_override(tmp_path: Path) -> None:
    """Memory is overridden, everything else is the catalogue's, and so is the profile."""
    big = load(CLUSTER, tmp_path).kinds["big"]
    assert (big.name, big.memory, big.peak, big.efficiency, big.runtime) == (
        "big",
        8 * GIB,
        {"float32": 10**13},
        0.4,
        7,
    )
    assert (big.timed_as, big.speed) == ("board", 1.0)


def test_a_kind_that_overrides_its_peak_has_lost_the_profile() -> None:
    """Another peak is another device: the catalogue's profile does not time it."""
    cluster = cluster_from_data(minimal(fast={"use": "board", "peak": {"float32": "20TFLOP/s"}}), "x")
    assert cluster.kinds["fast"].timed_as is None
    assert cluster.kinds["fast"].peak == {"float32": 2 * 10**13}


def test_a_relative_speed_takes_the_timing_figures_only(tmp_path: Path) -> None:
    """Half as fast as the board: its figures for estimates, its profile, but neither its memory nor its runtime."""
    slow = load(CLUSTER, tmp_path).kinds["slow"]
    assert (slow.timed_as, slow.speed, slow.memory, slow.runtime) == ("board", 0.5, 4 * GIB, 0)
    assert (slow.peak, slow.bandwidth, slow.overhead) == ({"float32": 10**13}, 9 * 10**11, 5000)


def test_relative_speeds_multiply_along_a_chain() -> None:
    """A quarter of a half of the board is an eighth of the board."""
    cluster = cluster_from_data(
        minimal(
            c={"speed": {"relative_to": "b", "factor": 0.25}}, b={"speed": {"relative_to": "board", "factor": 0.5}}
        ),
        "x",
    )
    assert (cluster.kinds["c"].timed_as, cluster.kinds["c"].speed) == ("board", 0.125)


def test_a_speed_may_refer_to_a_profile_of_any_name() -> None:
    """A name that is no kind may be the one that an imported profile bears."""
    cluster = cluster_from_data(minimal(half={"speed": {"relative_to": "profiled", "factor": 0.5}}), "x")
    assert (cluster.kinds["half"].timed_as, cluster.kinds["half"].speed) == ("profiled", 0.5)


@pytest.mark.parametrize(
    ("written", "meant"), [(False, "none"), (True, "copy"), ("stream", "stream"), ("none", "none"), ("copy", "copy")]
)
def test_overlap_is_a_truth_or_a_word(written: Any, meant: str) -> None:
    """false, true and stream are BaPipe's synchronous, overlapping and asynchronous devices."""
    assert cluster_from_data(minimal(a={}) | {"overlap": written}, "x").overlap.value == meant


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    """Unknown, missing and ill-typed fields all stand in one error, each with its path."""
    broken = """
name: mixed
devices:
  v100: {memroy: 16GiB, efficiency: 1.5}
  slow: {speed: {relative_to: board, factr: 0.5}}
nodes:
  - count: 0
    devices: [{kind: v100, count: many}]
    link: {bandwidth: 25GX/s, latency: soon}
netwrok: {bandwidth: 10Gbit/s}
overlap: maybe
"""
    with pytest.raises(InputError) as caught:
        load(broken, tmp_path)
    said = str(caught.value).splitlines()
    assert said[0].endswith("cluster.yaml: 10 things are wrong")
    for line in [
        "devices.v100.memroy: unknown field; did you mean 'memory'?",
        "devices.v100.efficiency: should be less than or equal to 1, found 1.5",
        "devices.slow.speed.factor: missing",
        "devices.slow.speed.factr: unknown field; did you mean 'factor'?",
        "nodes[0].count: should be greater than or equal to 1, found 0",
        "nodes[0].devices[0].count: should be a whole number, found 'many'",
        "nodes[0].link.bandwidth: '25GX/s' is not a bandwidth; write it like 300GB/s or 10Gbit/s",
        "nodes[0].link.latency: 'soon' is not a time; write it like 5us, 1.5ms or 2s",
        "netwrok: unknown field; did you mean 'network'?",
        "overlap: 'maybe' is not known; write false, true or stream",
    ]:
        assert "  " + line in said


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({"a": {"use": "bord"}}, r"devices\.a\.use: 'bord' is not in the catalogue of devices; did you mean 'board'"),
        (
            {"a": {"speed": {"relative_to": "bord", "factor": 2}}},
            r"relative_to: 'bord' is not known; did you mean 'board'",
        ),
        (
            {"a": {"speed": {"relative_to": "b", "factor": 2}}, "b": {"speed": {"relative_to": "a", "factor": 2}}},
            r"circle \(a → b → a\)",
        ),
        ({"a": {"timed_as": "x", "speed": {"relative_to": "board", "factor": 2}}}, "say the same"),
    ],
)
def test_references_that_lead_nowhere(devices: dict[str, Any], message: str) -> None:
    """A kind's reference to another must end at one."""
    with pytest.raises(InputError, match=message):
        cluster_from_data(minimal(**devices), "x")


def test_an_unknown_kind_in_a_node_is_named_with_its_path() -> None:
    """The path leads to the group of devices, and the near miss is offered."""
    data = minimal(v100={}) | {"nodes": [{"devices": [{"kind": "v100"}, {"kind": "v10"}]}]}
    with pytest.raises(InputError, match=r"nodes\[0\]\.devices\[1\]\.kind: 'v10' .* did you mean 'v100'"):
        cluster_from_data(data, "x")
