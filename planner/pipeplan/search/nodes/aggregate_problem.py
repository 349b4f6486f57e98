"""The allocation problem of a layout: what depends on where stages lie is the least that it may be."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pipeplan.core.cluster import Overlap
from pipeplan.core.job import SHARDED, Objective
from pipeplan.costs.chain import Array
from pipeplan.costs.collectives import Collective, all_reduce
from pipeplan.costs.network import shared, slowest
from pipeplan.costs.occupancy import occupancies
from pipeplan.costs.pricing import usable_memory
from pipeplan.search.nodes.layouts import Layout
from pipeplan.search.nodes.tied_copies import with_certain_copies
from pipeplan.search.space.device_groups import DeviceClass, Mode, Modes, most_stages
from pipeplan.search.space.least import LeastTables, least_passes, possible_links, possible_rings
from pipeplan.search.space.lower_bounds import LowerBounds
from pipeplan.search.space.mixed import MixedSpace
from pipeplan.search.space.space import Space
from pipeplan_formulations.allocation import ChainAllocation, InFlightRule
from pipeplan_formulations.allocation.joined import joined, together
from pipeplan_formulations.common.sentinels import UNLIMITED


def allocation_problem(space: Space, size: int, layout: Layout, alternating: bool, last: Modes = ()) -> ChainAllocation:
    """Return the allocation problem of a layout at a micro-batch size, in nanoseconds and bytes.

    With ``alternating`` it bounds 1F1B and GPipe (docs/bounds/allocation.md), and chooses in-flight counts unless SNO
    is the only 1F1B family. Otherwise it is a relaxation for the families other than 1F1B. ``last``: modes of the last
    stages, if these are fixed.
    """
    if isinstance(space, MixedSpace):
        problem = joined(_of_every_team(space, size, layout, alternating), space.groups)
        problem = _with_shared_layers(space, problem, last[-1]) if last else problem
    elif last:  # of the nodes of a tree
        key = size, layout, alternating
        if key not in space.problems:
            space.problems[key] = _problem(space, size, layout, alternating)
        problem = space.problems[key]
    else:
        problem = _problem(space, size, layout, alternating)
    if last:
        problem = replace(problem, last=tuple((mode.device_class, mode.replicas // layout.unit) for mode in last))
    return with_certain_copies(space, problem, layout)


def layout_lower_bound(space: Space, size: int, layout: Layout) -> int | None:
    """Cheap lower bound in nanoseconds on all plans of a layout; None if none of them fits in memory."""
    classes, bounds = space.classes, space.lower_bounds(size)
    if isinstance(space, MixedSpace):
        return bounds.of_teams(space.teams_of_pools)
    if layout.unequal:
        return bounds.evenly_shared(space.cluster)
    resident = min(space.prices.kept.resident_together(each.kind, layout.unit) for each in classes)
    usable = sorted((usable_memory(each.kind, space.job), n) for each, n in zip(classes, layout.units, strict=True))
    stages, there = len(space.model.layers), 0
    for memory, count in reversed(usable):  # the stages with the most memory; each has at least one layer
        there += memory * min(count, stages)
        stages -= min(count, stages)
    if resident > there:
        return None
    units: dict[str, int] = {}
    for each, count in zip(classes, layout.units, strict=True):
        units[each.kind.name] = units.get(each.kind.name, 0) + count
    if space.job.level >= SHARDED and not space.splits:
        bounds = _with_waits(space, size, layout)
    return bounds.of_equal_stages(units, layout.unit)


def _with_waits(space: Space, size: int, layout: Layout) -> LowerBounds:
    """The bounds of layers with what their passes wait for, on the fastest ring of a layout's replicas."""
    work: dict[str, Array] = {}
    for each in space.classes:
        own = np.add(*least_passes(space.prices, each, size, _rings(space, each, layout, layout.unit)))
        work[each.kind.name] = np.minimum(own, work.get(each.kind.name, own))
    return LowerBounds.of_work(work, space.job, size)


def _with_shared_layers(space: MixedSpace, problem: ChainAllocation, mode: Mode) -> ChainAllocation:
    """The problem with room on teams of the last stage's size alone for what shares weights with the last layer."""
    names, (_, team) = space.model.names, space.teams[mode.device_class]
    shared = [names.index(name) for own in space.question.together if names[-1] in own for name in own]
    resident = problem.resident.copy()
    for kind, (_, size) in enumerate(space.teams if shared else ()):
        if size != team:
            resident[kind, :, min(shared)] = problem.limit[kind] + 1  # one of these layers is enough
    return replace(problem, resident=resident)


def _of_every_team(space: MixedSpace, size: int, layout: Layout, alternating: bool) -> ChainAllocation:
    """The problem with a kind for each way to split teams of each size, the least over the levels of ZeRO."""
    key = size, layout, alternating
    if key not in space.problems:
        levels = [_problem(each, size, layout, alternating, space.home) for each in space.levels]
        space.problems[key] = together(levels) if len(levels) > 1 else levels[0]
    return space.problems[key]


def _problem(
    space: Space, size: int, layout: Layout, alternating: bool, home: Sequence[int] | None = None
) -> ChainAllocation:
    """The problem without forced modes and second ending. ``home``: the layout's kind of each class."""
    classes, layers = space.classes, len(space.model.layers)
    prices, job = space.prices, space.job
    # Tables by class; replicas and rings by width.
    tables = [prices.table(each.kind, size) for each in classes]
    replicas = [width * layout.unit for width in layout.widths]
    rings = [[_rings(space, each, layout, r) for r in replicas] for each in classes]
    known = None if job.level >= SHARDED else space.least_tables.get(layout)
    least = space.least_tables[layout] = LeastTables.of(prices, [each.kind for each in classes], size, rings, known)
    hops = _SendTables(space, layout, size)
    phases = not alternating and space.phased

    # Below level 2 passes are alike for all widths; from there on a layout has one width.
    passes = [least_passes(prices, each, size, own[0]) for each, own in zip(classes, rings, strict=True)]

    def rows(name: str) -> Array:
        return np.stack([getattr(table, name) for table in tables])

    def with_buffers(workspace: Array) -> Array:
        rows = zip(classes, workspace, tables, strict=True)
        return np.stack([prices.kept.with_buffers(c.kind, own, t.backward, replicas[0]) for c, own, t in rows])

    deepest = most_stages(job, layers, job.batch // size)
    sliced = space.model.slices > 1
    kinds = range(len(classes)) if home is None else home
    return ChainAllocation(
        forward=np.stack([forward for forward, _ in passes]),
        backward=np.stack([backward for _, backward in passes]),
        ahead_forward=rows("first_forward") if sliced else None,
        ahead_backward=rows("first_backward") if sliced else None,
        late_forward=_last_slice(space, rows, "forward"),
        late_backward=_last_slice(space, rows, "backward"),
        round_trip="ahead" if sliced else "own",
        slices=space.model.slices,
        **vars(replace(least, gather_hides=least.gather_hides.max(axis=1))),
        hides=np.stack([prices.sync.hides(each.kind, size) for each in classes]),
        saved=rows("saved"),
        output=rows("output"),
        workspace=with_buffers(rows("workspace")),
        rebuilt=with_buffers(rows("workspace") + rows("saved")),
        recomputable=prices.recomputable,
        received=hops.received,
        limit=np.array([usable_memory(each.kind, job) for each in classes], np.int64),
        units=np.minimum(layout.units, deepest * layout.widths[-1] * max(layout.takes)),
        node=np.array(layout.per_node, np.int64),
        pool=np.array([layout.pool[kind] for kind in kinds], np.int64),
        takes=np.array([layout.takes[kind] for kind in kinds], np.int64),
        able=np.array([layout.able[kind] for kind in kinds], np.bool_),
        send=hops.send,
        send_back=hops.send,
        latency=hops.latency,
        cuts=space.constraints.cuts,
        micro_batches=job.batch // size,
        samples=job.batch,
        widths=layout.widths,
        unit=layout.unit,
        overlap=space.cluster.overlap.value,
        objective=job.minimised,
        in_flight_rule=in_flight_rule(space) if alternating or sliced else "full" if phases else "fbp",
        alternating=alternating,
        two_trips=alternating and layout.by_family(layers),
        phases=phases,
    )


def _last_slice(space: Space, rows: Callable[[str], Array], name: str) -> Array | None:
    """Nanoseconds of the last of equal slices, which grow by equal steps.

    None of whole sequences, and where devices wait while they send.
    """
    count = space.model.slices
    waits = space.cluster.overlap is Overlap.NONE
    return None if count == 1 or waits else 2 * rows(name) // count - rows(f"first_{name}")


def in_flight_rule(space: Space) -> InFlightRule:
    if space.job.objective is Objective.BOTTLENECK or space.job.staleness:  # a longer warm-up helps no endless pipeline
        return "sno"
    chooses = space.free or any(each.name == "1f1b-so" for each in space.families)
    return "non_increasing" if chooses else "sno"


class _SendTables:
    """Send times and latencies between classes: entry 0 inside a node, 1 over the network; if unknown, the least.

    ``received``: the least bytes that arrive at a class over each cut.
    """

    def __init__(self, space: Space, layout: Layout, size: int) -> None:
        classes, count, cuts = space.classes, len(space.classes), len(space.model.layers) - 1
        self.send = np.zeros((count, count, 2, cuts), np.int64)
        self.received = np.full((count, cuts), UNLIMITED)
        self.latency = np.zeros((count, count, 2), np.int64)
        for a, source in enumerate(classes):
            for b, target in enumerate(classes):
                links = [possible_links(source, target, space.cluster.between(source.kind, target.kind))] * 2
                if a == b:
                    across = [space.cluster.between(source.kind, source.kind) or source.link]
                    unknown = layout.tile is None and layout.straddles(source)
                    unknown = unknown or layout.pooled or a in space.placing.free
                    some_share = layout.widths != (1,)  # where some replicas share a node, others may not
                    links = [[source.link, *across] if some_share or unknown else [source.link], across]
                    links[1] = links[0] if unknown else across
                crossing = space.prices.crossing(source.kind, target.kind, size)
                self.received[b] = np.minimum(self.received[b], crossing.received)
                for entry, possible in enumerate(links):
                    send = [occupancies(link, crossing.sent) for link in possible]
                    self.send[a, b, entry] = np.minimum.reduce(send)
                    self.latency[a, b, entry] = min(link.latency for link in possible)


def _rings(space: Space, each: DeviceClass, layout: Layout, replicas: int) -> list[Collective]:
    """The rings that the replicas of a stage may form; the fastest of them is a lower bound."""
    network = space.cluster.between(each.kind, each.kind)
    every, inside = possible_rings(each, network, replicas), all_reduce(replicas, each.link)
    anywhere = layout.pooled or space.placing.free
    if network is None or len(each.nodes) == 1 or anywhere:
        return every
    if layout.tile is not None:
        share = shared(network, each.per_node // layout.tile)
        several = (each.link,) if layout.tile > 1 else ()
        return [inside if replicas <= layout.tile else all_reduce(replicas, slowest(share, *several))]
    aligned = layout.widths == (1,) and not layout.straddles(each)
    return [inside] if aligned and replicas <= each.per_node else every
