"""Layers pinned to devices: any like device may stand for another one, and every choice of them is searched."""

from itertools import permutations, product

import pytest

from helpers.instances import equal_devices, model_of, tiny_chain
from helpers.quick import rarely
from pipeplan.analysis.judge import judge
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap, StageDevices
from pipeplan.core.errors import InfeasibleError, InputError
from pipeplan.core.job import Job
from pipeplan.search.result import Result
from pipeplan.search.space import space
from pipeplan.search.space.device_groups import Mode, Modes, device_classes
from pipeplan.search.space.pins import Pins, every_placement, exchanged
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve import solve

UNEVEN = model_of([3, 9, 2, 6, 4], saved=[5, 3, 8, 2, 4], output=[4, 1, 2, 1, 1], parameters=[4, 8, 0, 12, 4])


def nodes(*counts: int, network: Link | None = None, memory: int | None = None) -> Cluster:
    """Nodes of so many like devices."""
    rows = tuple(Node(("unit",) * count, Link(10**9)) for count in counts)
    network = Link(10**8, 3) if network is None else network
    return Cluster("nodes", {"unit": DeviceKind("unit", memory=memory)}, rows, network, Overlap.COPY)


def keeps(result: Result) -> bool:
    """Whether every pinned layer lies on a stage with its device."""
    home = {name: stage for stage in result.plan.stages for name in stage.layers}
    return all(int(where[1:]) in home[name].devices for name, where in result.job.pin)


@pytest.mark.parametrize("options", [{}, {"replicas": (1,)}, {"depths": (2,)}, {"objective": "bottleneck"}])
def test_in_one_node_a_pin_to_any_device_costs_nothing(options: dict[str, object]) -> None:
    """Devices of a node are alike, so the layer's device is only a name."""
    free = solve(UNEVEN, equal_devices(3), 4, time_limit=20, workers=1, **options)
    for device in range(3):
        found = solve(UNEVEN, equal_devices(3), 4, time_limit=20, workers=1, pin=f"l2=d{device}", **options)
        assert keeps(found) and (found.value, found.bound) == (free.value, free.bound)


def test_pins_in_any_order_of_devices_are_alike() -> None:
    """Three layers on three devices: whichever they are, only which layers lie apart counts."""
    values = {
        solve(UNEVEN, equal_devices(4), 4, pin=tuple(zip(("l0", "l2", "l4"), where, strict=True)), time_limit=20).value
        for where in permutations(("d0", "d1", "d3"))
    }
    assert len(values) == 1


def test_layers_of_one_device_lie_on_one_stage() -> None:
    """All layers between them do too, and a stage has replicas enough for all devices that its layers are pinned to."""
    found = solve(UNEVEN, equal_devices(4), 4, pin=("l0=d3", "l2=d3"), time_limit=20)
    assert keeps(found) and set(found.plan.stages[0].layers) >= {"l0", "l1", "l2"}
    found = solve(UNEVEN, equal_devices(4), 4, pin=("l0=d3", "l1=d2", "l2=d3"), time_limit=20)
    assert keeps(found) and found.plan.stages[0].replicas > 1
    with pytest.raises(InfeasibleError, match="--pin"):
        solve(UNEVEN, equal_devices(4), 4, pin=("l0=d3", "l1=d2", "l2=d3"), replicas=1, time_limit=20)


def test_pins_may_need_a_placement_that_nothing_else_would_take() -> None:
    """Layers in turn on two nodes: no packing has them so, and yet the plan exists."""
    found = solve(UNEVEN, nodes(2, 2), 4, pin=("l0=d0", "l1=d2", "l2=d1"), replicas=1, time_limit=20)
    assert keeps(found) and found.gap == 0


def test_a_node_without_pins_is_as_good_as_another_one() -> None:
    """A pin to a device of the second of two like nodes costs nothing."""
    cluster = nodes(2, 2)
    first, second = (solve(UNEVEN, cluster, 4, pin=f"l3=d{device}", time_limit=20) for device in (1, 2))
    assert keeps(first) and keeps(second) and first.value == second.value <= solve(UNEVEN, cluster, 4).value


def test_a_given_order_leaves_no_choice_of_devices() -> None:
    """The first stage has d0 then: a pin of the first layer to d1 needs two replicas of it."""
    found = solve(UNEVEN, equal_devices(3), 4, order="given", pin="l0=d1", time_limit=20)
    assert found.plan.stages[0].devices[:2] == (0, 1)
    with pytest.raises(InfeasibleError, match="--pin"):
        solve(UNEVEN, equal_devices(3), 4, order="given", pin="l0=d1", replicas=1, time_limit=20)


@pytest.mark.parametrize("schedule", ["any", "gpipe"])
def test_any_order_is_searched_on_pinned_devices_too(schedule: str) -> None:
    """Like the families."""
    values = {
        solve(tiny_chain(), equal_devices(2), 2, schedules=(schedule,), replicas=1, pin=f"l3=d{d}", time_limit=20).value
        for d in (0, 1)
    }
    assert len(values) == 1


@pytest.mark.parametrize("counts", [(4, 4), rarely((3, 3, 2)), (16,)])
def test_large_clusters_keep_to_pins(counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where device groups are not listed, a pin to the last device is met, and the bound is below the value."""
    monkeypatch.setattr(space, "FEW", 0)
    monkeypatch.setattr(space, "PAIRS", 0)
    cluster = nodes(*counts)
    last = sum(counts) - 1
    found = solve(UNEVEN, cluster, 16, pin=("l1=d0", f"l4=d{last}"), time_limit=0.7, workers=1)
    assert keeps(found) and found.bound <= found.value
    if len(counts) == 1:
        assert found.value >= solve(UNEVEN, cluster, 16, time_limit=0.7, workers=1).bound


def test_what_is_left_out_under_pins_is_said() -> None:
    """Nothing where every placement is looked at; else other placements."""
    few = solve(UNEVEN, nodes(2, 2), 4, pin="l0=d3", time_limit=20)
    assert "other placements of like devices on the nodes" not in few.searched.not_searched
    assert "any of them" in few.searched.as_text()
    alone = solve(UNEVEN, equal_devices(3), 4, pin="l0=d2", time_limit=20)
    assert "like devices exchanged where layers are pinned" in alone.searched.as_text()


def test_heuristics_plans_are_placed_for_pins() -> None:
    """A heuristic says nothing of like devices, so its plan counts wherever the pins want it."""
    found = solve(tiny_chain(), equal_devices(2), 4, replicas=1, depths=2, pin="l3=d0", time_limit=20)
    tried = [row for row in found.baselines.values() if row.value is not None]
    assert keeps(found) and tried and not [row for row in tried if "pinned" in row.outside]


def test_judged_plans_are_placed_for_pins() -> None:
    """The hand-written plan's devices are like ones, with the pinned one where its layer lies."""
    judged = judge(tiny_chain(), equal_devices(2), 4, stages="2,2", micro_batches=4, pin="l3=d0", time_limit=10)
    assert judged.outside == "" and judged.plan.stages[1].devices == (0,)


def test_regular_plans_have_pinned_devices_too() -> None:
    """Three replicas in each of two nodes of four, one of them on the device that is idle without the pin."""
    found = solve(UNEVEN, nodes(4, 4), 6, replicas=3, depths=2, regular=True, pin="l4=d3", time_limit=20)
    cluster = nodes(4, 4)
    assert keeps(found)
    assert all(len({cluster.devices[d].node for d in stage.devices}) == 1 for stage in found.plan.stages)


@pytest.mark.parametrize("pin", ["l9=d0", "l0=d9", ("l0=d0", "l0=d1"), "l0=unti"])
def test_wrong_pins_are_refused(pin: object) -> None:
    """An unknown layer, device or kind, and two places for a layer."""
    with pytest.raises(InputError, match=r"l9|d9|two places|one place|unti"):
        solve(UNEVEN, equal_devices(4), 4, pin=pin)


def likeness(cluster: Cluster, groups: StageDevices, homes: dict[int, int]) -> object:
    """The nodes of all replicas, like nodes numbered as they come; pinned devices make nodes unlike."""
    names: dict[int, object] = {}
    pinned = {node: tuple(d for d in homes if cluster.devices[d].node == node) for node in range(len(cluster.nodes))}
    for device in (device for group in groups for device in group):
        sort = cluster.nodes[device.node], pinned[device.node]
        names.setdefault(device.node, (sort, sum(name[0] == sort for name in names.values())))  # type: ignore[index]
    return tuple(tuple(names[device.node] for device in group) for group in groups)


@pytest.mark.parametrize("counts", [(4,), (2, 2), (3, 1), (2, 1, 1)])
@pytest.mark.parametrize("widths", [(1, 1), (2, 1), (1, 1, 2), (3,), (1, 1, 1)])
def test_every_placement_is_listed_once(counts: tuple[int, ...], widths: tuple[int, ...]) -> None:
    """As many as permutations of the devices have, of those that exchanges of like devices and nodes make equal one."""
    cluster = nodes(*counts)
    classes = device_classes(cluster)
    modes: Modes = tuple(Mode(0, width) for width in widths)
    for homes in ({3: 0}, {0: 0, 2: len(widths) - 1}):
        if any(list(homes.values()).count(s) > width for s, width in enumerate(widths)):
            continue
        wanted = set()
        for order in permutations(cluster.devices, sum(widths)):
            row = iter(order)
            groups = tuple(tuple(next(row) for _ in range(width)) for width in widths)
            if all(cluster.devices[d] in groups[s] for d, s in homes.items()):
                wanted.add(likeness(cluster, groups, homes))
        listed = [likeness(cluster, groups, homes) for groups in every_placement(cluster, classes, modes, homes)]
        assert len(listed) == len(set(listed)) and set(listed) == wanted


@pytest.mark.parametrize("counts, most", list(product([(1,), (3,), (2, 2), (3, 1), (2, 1, 1)], [1, 5, 20, 80, 10**6])))
def test_placements_are_few_if_all_of_them_are(counts: tuple[int, ...], most: int) -> None:
    """Without pins rows alone may be too many, with one each of its homes counts."""
    for pins in (Pins.of(3, []), Pins.of(3, [(1, 0)])):
        placing = Spaces(UNEVEN, nodes(*counts), Job(4)).lowest.placing
        assert placing.few(pins, 4, most) == (len(list(placing.every_one(pins, 4))) <= most)


@pytest.mark.parametrize("first, second", list(product(range(6), repeat=2)))
def test_exchanges_put_pinned_devices_on_their_stages(first: int, second: int) -> None:
    """Every stage keeps its width, no device is used twice, and pinned ones are where they belong."""
    cluster = nodes(3, 3)
    d = cluster.devices
    homes = {first: 0, second: 2} if first != second else {first: 1}
    moved = exchanged(cluster, ((d[0], d[1]), (d[2],), (d[3], d[4])), homes)
    assert moved is not None and [len(group) for group in moved] == [2, 1, 2]
    assert len({device.index for group in moved for device in group}) == 5
    assert all(d[device] in moved[stage] for device, stage in homes.items())


def test_homes_of_pins_leave_every_stage_a_layer() -> None:
    """Of three stages on five layers the third layer may be on any, the first one on the first stage only."""
    classes = device_classes(equal_devices(4))
    modes = tuple(Mode(0, 1) for _ in range(3))
    assert [homes[1] for homes in Pins.of(5, [(2, 1)]).homes(classes, modes)] == [0, 1, 2]
    assert [homes[1] for homes in Pins.of(5, [(0, 1)]).homes(classes, modes)] == [0]
    assert list(Pins.of(5, [(0, 1), (1, 2)]).homes(classes, modes)) == [{1: 0, 2: 1}]
    assert not list(Pins.of(5, [(0, 1), (1, 2), (2, 1)]).homes(classes, modes))
