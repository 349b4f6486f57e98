"""Regular plans: equal groups of devices inside nodes or on whole ones, and what the wish for them costs."""

import json

import pytest

from helpers.device_groups import all_device_groups
from helpers.instances import model_of
from helpers.quick import rarely
from pipeplan.analysis.explain.changes import more_never_hurt
from pipeplan.analysis.frontier.fewest import fewest_devices
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.errors import InfeasibleError, InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.search.irregular import Irregular
from pipeplan.search.space.device_groups import aligned
from pipeplan.solve import solve


def unlike_layers(count: int) -> Model:
    """Layers of unlike times, which no even cut balances."""
    times = [7 * (n * n % 5) + 30 for n in range(count)]
    return model_of(times, output=[n % 3 + 1 for n in range(count)], parameters=[200] * count, sizes=(1, 2, 4))


def nodes(*counts: int) -> Cluster:
    """Nodes of so many equal devices."""
    kind = DeviceKind("unit")
    return Cluster("drawn", {"unit": kind}, tuple(Node(("unit",) * n, Link(10**9)) for n in counts), Link(10**8, 10))


@pytest.mark.parametrize(
    ("groups", "fits"),
    [
        (((0, 1), (2, 3)), True),
        (((0, 1, 2, 3), (4, 5, 6, 7)), True),
        (((0, 1, 2, 3, 4, 5, 6, 7),), True),
        (((1, 2),), True),
        (((3, 4),), False),
        (((0, 1, 2), (3, 4, 5)), False),
        (((0, 1, 2, 3, 4, 5),), False),
    ],
)
def test_a_group_is_in_a_node_or_has_whole_ones(groups: tuple[tuple[int, ...], ...], fits: bool) -> None:
    """On two nodes of four."""
    cluster = nodes(4, 4)
    assert aligned(cluster, tuple(tuple(cluster.devices[n] for n in own) for own in groups)) is fits


def test_only_aligned_groups_are_listed() -> None:
    """Three replicas per stage lie in each node, one device idle, six in none; of tiles those that are in nodes."""
    cluster, job = nodes(4, 4), Job(24, regular=True)
    found = {tuple(map(len, groups)) for groups in all_device_groups(cluster, job, 8, 24)}
    assert (
        (3,) in found
        and (3, 3) in found
        and (3, 3, 3) not in found
        and (2, 2, 2, 2) in found
        and (8,) in found
        and (6,) not in found
    )
    assert all(aligned(cluster, groups) for groups in all_device_groups(cluster, job, 8, 24))


@pytest.mark.parametrize("counts, replicas", [((4, 4), 3), ((2, 3, 3), 3), ((5, 1, 2), 3), ((1, 1, 4), 2)])
def test_stages_that_do_not_fit_into_a_node_begin_with_the_next(counts: tuple[int, ...], replicas: int) -> None:
    """Two stages inside nodes, or on whole nodes, with devices idle between them, are a plan."""
    found = solve(unlike_layers(4), nodes(*counts), 6, replicas=replicas, depths=2, regular=True, price_regular=False)
    cluster = nodes(*counts)
    groups = tuple(tuple(cluster.devices[n] for n in stage.devices) for stage in found.plan.stages)
    assert aligned(cluster, groups) and tuple(map(len, groups)) == (replicas, replicas)


@pytest.mark.parametrize("counts", [(4, 4), rarely((3, 3, 2)), (8,) * 8])
def test_answers_are_regular_and_say_what_that_costs(counts: tuple[int, ...]) -> None:
    """Small spaces and large ones; the cost is between what both searches prove."""
    model, cluster = unlike_layers(9), nodes(*counts)
    free = solve(model, cluster, 48, time_limit=0.5, workers=1)
    found = solve(model, cluster, 48, time_limit=1, workers=1, regular=True)
    groups = tuple(tuple(cluster.devices[n] for n in stage.devices) for stage in found.plan.stages)
    assert aligned(cluster, groups) and len({stage.replicas for stage in found.plan.stages}) == 1
    assert free.bound <= found.value and found.job.equal_replicas
    assert found.irregular is not None
    least, most = found.irregular.cost(found.value, found.bound)
    assert most is None or 0 <= least <= most + 1e-9
    assert found.irregular.line(found.value, found.bound) in str(found)
    assert json.loads(json.dumps(found.as_json()))["irregular"]["costs_at_least"] == least


def test_what_is_not_proved_is_said_so() -> None:
    """Between bounds; without a bound only the least."""
    assert Irregular(90, 90).line(99, 99) == "regular: costs 10.00%, proved (without --regular 90 ns, bound 90 ns)"
    assert Irregular(99, 99).line(99, 99).startswith("regular: costs nothing, proved")
    assert Irregular(90, 80).line(100, 95).startswith("regular: costs 5.56% at least and 25.00% at most")
    assert Irregular(80, 0).line(100, 90).startswith("regular: costs 12.50% at least (without")
    assert "not known" in Irregular(120, 0).line(100, 90)
    figures = Irregular(8 * 10**9, 3 * 10**9).as_json(9 * 10**9, 5 * 10**9)
    assert figures == {"time_s": 8.0, "bound_s": 3.0, "costs_at_least": 0.0, "costs_at_most": 2.0}


def test_wishes_that_contradict_it_are_refused() -> None:
    """Teams of unlike sizes, divided layers, bottlenecks; where nothing is aligned, the way out is named."""
    for beside in ({"unlike_teams": True, "teams": (1, 2)}, {"intra_layer": True}, {"objective": "bottleneck"}):
        with pytest.raises(InputError, match="regular plans"):
            Job(8, regular=True, **beside)
    with pytest.raises(InfeasibleError, match="--regular"):
        solve(unlike_layers(4), nodes(2, 2), 8, replicas=(3,), depths=(1,), regular=True, time_limit=5)


def test_more_devices_may_spoil_whole_nodes() -> None:
    """So the fewest devices are counted up, and nothing is proved by halves; other functions do not price the wish."""
    cluster = nodes(2, 2)
    assert not more_never_hurt(cluster, Job(8, regular=True))
    assert more_never_hurt(cluster, Job(8))
    assert more_never_hurt(nodes(4), Job(8, regular=True))
    assert solve(unlike_layers(4), cluster, 8, regular=True, time_limit=5, price_regular=False).irregular is None
    found = fewest_devices(unlike_layers(4), cluster, 8, regular=True, time_limit=5)
    assert found.count == 1
