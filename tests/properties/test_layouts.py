"""Bounds of layouts against the plans that they have, on nodes of one or two kinds of device."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from random import Random

import pytest

from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.job import Job
from pipeplan.core.model import Tie
from pipeplan.search import root_nodes
from pipeplan.search.evaluate import evaluate
from pipeplan.search.nodes import layouts as module
from pipeplan.search.nodes.aggregate import AggregateNode
from pipeplan.search.nodes.aggregate_problem import allocation_problem, layout_lower_bound
from pipeplan.search.nodes.layouts import Layout, layouts
from pipeplan.search.space import space as spaces_module
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.device_groups import Mode, Modes
from pipeplan.search.space.mixed import MixedSpace
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.allocation.place import Place
from referee.bridge import objects
from referee.questions import question

LAYERS, DEEPEST, ROWS = 4, 3, 6
KINDS = {"one": DeviceKind("one"), "other": DeviceKind("other")}
"""Unlike ones, also in what passes between their layers."""
NODES = (
    (("one",) * 2,) * 2,
    (("one",) * 4,) * 2,
    (("one",) * 2,) * 3,
    (("one",) * 3,) * 2,
    (("one",) * 2, ("other",) * 2),
)


def drawn_space(draw: Random) -> Space:
    """Four layers on two or three nodes, whose network is faster or slower than the links inside."""

    def numbers(most: int, least: int = 0) -> list[int]:
        return [draw.randint(least, most) for _ in range(LAYERS)]

    def link() -> Link:
        return Link(10**9 * draw.choice([1, 1, 4]), draw.randint(0, 5))

    weights, updates = numbers(200), numbers(9)
    models = [
        model_of(
            numbers(20, 1),
            numbers(20, 1),
            output=numbers(60),
            parameters=weights,
            update=updates,
            saved=numbers(9),
            kinds=(kind,),
        )
        for kind in KINDS
    ]
    model = replace(models[0], profiles=tuple(profile for own in models for profile in own.profiles))
    kinds = draw.choice(NODES)
    nodes = tuple(Node(each, link()) for each in kinds)
    if draw.random() < 0.7:
        nodes = tuple(Node(node.kinds, nodes[0].link) for node in nodes)
    used = {kind: KINDS[kind] for node in nodes for kind in node.kinds}
    overlap = draw.choice(["none", "copy", "stream"])
    cluster = Cluster("nodes", used, nodes, link(), Overlap(overlap))
    pairs = [("1f1b-sno", "gpipe"), ("1f1b-so", "fbp-as")]
    schedules = pairs[0] if overlap == "none" else draw.choice(pairs)
    ahead, objective = draw.random() < 0.5, "bottleneck" if draw.random() < 0.2 else "step"
    job = Job(
        4,
        micro_batches=(4,),
        recompute="none",
        schedules=schedules,
        zero=(0,),
        overlap_reduction=ahead,
        objective=objective,
    )
    return Space(model, cluster, job)


def with_tied_ends(space: Space, draw: Random) -> Space:
    """The space of several stages, the first and last of which share weights."""
    most = min(space.model.parameters_on(kind)[0] for kind in KINDS)
    ties = (Tie(("l0", f"l{LAYERS - 1}"), draw.randint(1, most)),) if most else ()
    model = replace(space.model, ties=ties)
    return Space(model, space.cluster, replace(space.job, depths=(2, 3), zero=(draw.randint(0, 1),)))


def expected(space: Space, layout: Layout, last: Modes, count: int) -> set[Mode]:
    """The modes for a stage before ``last``: numbers of replicas that are asked for, on devices that are left."""
    pooled = isinstance(space, MixedSpace)
    teams = space.teams if isinstance(space, MixedSpace) else [(c, 1) for c in range(len(space.classes))]
    pools = space.pools if isinstance(space, MixedSpace) else space.classes
    left = [len(pool.devices) for pool in pools]
    for mode in last:
        pool, team = teams[mode.device_class]
        left[pool] -= mode.replicas * team
    step, most = (
        (layout.taken, count) if pooled else (layout.unit, min(count, max(len(pool.devices) for pool in pools)))
    )
    asked = [r for r in range(1, most + 1) if not space.job.replicas or r in space.job.replicas]
    if not layout.unequal:
        asked = [r for r in asked if r == layout.unit]
    return {
        Mode(kind, r)
        for kind, (pool, team) in enumerate(teams)
        for r in asked
        if r * team <= left[pool] and r * team % step == 0
    }


def large_space(draw: Random) -> Space:
    """A space of one of the clusters, which asks for some numbers of replicas, or for any."""
    space = drawn_space(draw)
    asked = draw.choice([(), (1, 2), (2, 4), (1, 2, 4), (2, 3, 4), (3,)])
    return Space(space.model, space.cluster, replace(space.job, replicas=asked))


def mixed_spaces() -> Iterator[Space]:
    """Spaces of single devices beside teams of two, on two nodes whose links make them two pools."""
    model, cluster, job = objects(question(7532))
    for counts in ((2, 5), (8, 4)):
        nodes = tuple(Node(("a",) * many, node.link) for many, node in zip(counts, cluster.nodes, strict=True))
        yield from Spaces(model, replace(cluster, nodes=nodes), replace(job, batch=8, staleness=0)).mixed


def walked(space: Space, draw: Random) -> Iterator[Layout]:
    """The packed layouts of a space, after a few of the rows of modes that each has were compared."""
    count = space.job.batch // space.sizes[0]
    for layout in layouts(space, count):
        last: Modes = ()
        while layout.tile is None and len(last) < DEEPEST and (there := list(layout.before(last))):
            assert set(there) == expected(space, layout, last, count), (layout, last)
            last = (draw.choice(there), *last)
        yield layout


def test_every_mode_for_which_devices_are_left_precedes_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other: on pools of teams, and on clusters that count as large."""
    pools = list(mixed_spaces())
    assert sum(layout.pooled for space in pools for layout in walked(space, Random(1)))
    for name, value in (("SMALL", 2), ("UNITS", 3), ("CELLS", 4)):
        monkeypatch.setattr(module, name, value)
    assert sum(layout.taken > 1 for space in pools for layout in walked(space, Random(2)))
    drawn = map(Random, (f"large {seed}" for seed in range(60)))
    assert sum(layout.unequal and layout.unit > 1 for draw in drawn for layout in walked(large_space(draw), draw))


def every_row(layout: Layout, last: Modes = ()) -> Iterator[Modes]:
    """The modes of up to three stages that the layout has units for."""
    for mode in layout.before(last):
        yield (mode, *last)
        if len(last) + 1 < DEEPEST:
            yield from every_row(layout, (mode, *last))


Plan = tuple[Layout, Candidate, tuple[Place, ...], int]
"""A candidate of a layout, with its places there and the value of a partition."""


def plans_of(space: Space, draw: Random) -> Iterator[Plan]:
    """Some plans of every layout."""
    for layout in layouts(space, 4):
        rows = [row for row in every_row(layout) if len(row) > 1 or not space.model.ties]
        for modes in draw.sample(rows, min(len(rows), ROWS)):
            edges = (0, *sorted(draw.sample(range(1, LAYERS), len(modes) - 1)), LAYERS)
            for own, groups in space.every_placed(modes, layout.tile):
                for candidate in own.candidates(groups, 1):
                    ends = zip(edges, edges[1:], modes, candidate.in_flight, strict=False)
                    places = tuple(Place(a, b, m.device_class, m.replicas // layout.unit, k) for a, b, m, k in ends)
                    yield layout, candidate, places, evaluate(space.cluster, candidate, edges).value


def test_no_layout_is_bounded_above_its_plans() -> None:
    """Wherever the stages lie: rings and sends are no slower in the bound, and on average it is not far below.

    Nor is any partition bounded above its step.
    """
    shares = []
    for seed in range(50):
        draw = Random(seed)
        space, tied = drawn_space(draw), Random(f"tied {seed}")
        space = with_tied_ends(space, tied) if tied.random() < 0.3 else space
        problem = cache(partial(allocation_problem, space, 1))
        for layout, candidate, places, value in plans_of(space, draw):
            bound = problem(layout, candidate.family.alternates).evaluate(places)
            assert bound <= value, (layout, places, candidate.label)
            assert candidate.problem.evaluate((0, *(place.end for place in places))) <= value, (places, candidate.label)
            shares.append(bound / value)
    assert len(shares) > 500
    assert sum(shares) > 0.7 * len(shares)


def test_cheap_bounds_of_sharded_layouts_count_what_passes_wait_for() -> None:
    """At levels 2 and 3 no layout is bounded above its plans, and most are bounded above their work."""
    count = more = 0
    for seed in range(60):
        draw = Random(f"sharded {seed}")
        space = drawn_space(draw)
        job = replace(space.job, schedules=("1f1b-sno", "gpipe"), zero=(draw.choice((2, 3)),), objective="step")
        space = Space(space.model, space.cluster, job)
        for layout, candidate, _, value in plans_of(space, draw):
            bound, work = layout_lower_bound(space, 1, layout), space.lower_bounds(1)
            assert bound is not None and bound <= value, (seed, layout, candidate.label)
            units = {each.kind.name: sum(layout.units) for each in space.classes}
            count, more = count + 1, more + (bound > work.of_equal_stages(units, layout.unit))
    assert count > 300
    assert more > count / 2


def test_every_plan_is_searched_below_a_root_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where groups are many: under each family, below a node whose problem is not above it."""
    for place, name in ((spaces_module, "FEW"), (spaces_module, "PAIRS"), (module, "SMALL")):
        monkeypatch.setattr(place, name, 0)
    covered = apart = 0
    for seed in range(8):
        space = drawn_space(Random(f"roots {seed}"))
        problem = cache(partial(allocation_problem, space, 1))
        nodes = [node for node in root_nodes(space) if isinstance(node, AggregateNode)]
        for layout, candidate, places, value in plans_of(space, Random(seed)) if nodes else ():
            above = [
                node
                for node in nodes
                if node.layout == layout and (node.covers or node.alternating is candidate.family.alternates)
            ]
            assert min(problem(layout, node.alternating).evaluate(places) for node in above) <= value, (
                seed,
                candidate.label,
            )
            if not candidate.family.alternates:
                covered, apart = covered + above[0].covers, apart + (not above[0].covers)
    assert covered and apart
