"""Prices of the layers on the stages' devices."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.core.cluster import DeviceKind, Link, Node
from pipeplan.core.job import Job
from pipeplan.costs.kept import Kept
from pipeplan.costs.pricing import Prices, price

MODEL = model_of([5, 7, 6, 4], saved=[8] * 4, output=[2] * 4, parameters=[40] * 4)


def test_what_like_stages_share_is_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Baselines price one stage per device of a whole cluster, so a row is made for each kind and ring, not stage."""
    asked: list[int] = []
    gradients = Kept.gradients

    def counted(kept: Kept, kind: object, replicas: int) -> object:
        asked.append(replicas)
        return gradients(kept, kind, replicas)  # type: ignore[arg-type]

    monkeypatch.setattr(Kept, "gradients", counted)
    cluster = equal_devices(40)
    chain = price(MODEL, cluster, cluster.devices, 1, Job(batch=40))
    assert chain.stages == 40
    assert chain.gradients.shape == chain.forward.shape == (40, 4)
    assert asked == [1]


@pytest.mark.parametrize(("schedules", "hidden"), [((), [10, 14, 12, 8]), (("any",), [5, 7, 6, 4])])
def test_sums_hide_behind_what_a_backward_ends_with(schedules: tuple[str, ...], hidden: list[int]) -> None:
    """Under any order a backward may be split, and then its weight gradient is last."""
    cluster = equal_devices(2)
    prices = Prices(MODEL, cluster, Job(batch=2, schedules=schedules))
    assert prices.sync.hides(cluster.devices[0].kind, 1).tolist() == hidden


@pytest.mark.parametrize("back", [False, True])
def test_teams_of_unlike_sizes_send_the_smaller_parts(back: bool) -> None:
    """Of ten bytes on devices of a small team, and five on those of a large one, five are sent; each keeps its own."""
    sizes = {"small": 10, "large": 5}
    kinds = {name: DeviceKind(name).as_team(40 // size) for name, size in sizes.items()}
    profiles = (model_of([1, 1], output=[size, size], kinds=(name,)).profiles[0] for name, size in sizes.items())
    model = replace(model_of([1, 1]), profiles=tuple(profiles))
    source, target = sorted(kinds, reverse=back)
    found = Prices(model, equal_devices(2), Job(batch=2)).crossing(kinds[source], kinds[target], 1)
    assert (found.sent.tolist(), found.received.tolist()) == ([5], [sizes[target]])


def test_a_chain_of_some_stages_is_theirs_with_the_slowest_link_between() -> None:
    """Of random devices on two nodes: all tables are those of the devices by themselves; links are no faster."""
    draw, node, later = Random(6), Node(("unit",) * 3, Link(10**9, 2)), 0
    cluster = replace(equal_devices(1), nodes=(node, node), network=Link(10**8, 9))
    job = Job(batch=2)
    for _ in range(40):
        devices = draw.sample(cluster.devices, 5)
        rows = tuple(sorted(draw.sample(range(5), draw.randint(1, 4))))
        some = price(MODEL, cluster, devices, 1, job).select(rows)
        alone = price(MODEL, cluster, [devices[s] for s in rows], 1, job)
        for table in ("forward", "backward", "update", "resident", "saved", "limit", "boundary", "received"):
            assert (getattr(some, table) == getattr(alone, table)).all(), table
        for s, (a, b) in enumerate(pairwise(rows)):
            slower = (some.send[s] - alone.send[s], some.latency[s] - alone.latency[s])
            assert (slower[0] >= 0).all() and slower[1] >= 0
            assert b - a > 1 or not (slower[0].any() or slower[1])
            later += bool(slower[1])
    assert later >= 3
