"""All mixes of teams of unlike sizes as one allocation problem, whose bound holds for each of them.

::

    kinds     4 x v100 (way 1)   4 x v100 (way 2)   2 x v100 (way 1)   v100
    takes            4                  4                  2             1         devices of one pool, for each replica

What depends on where teams lie is the least that it can be: docs/bounds/teams.md says why the bound holds.
"""

from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.wording import counted
from pipeplan.costs.chain import Array
from pipeplan.costs.pricing import usable_memory
from pipeplan.search.nodes.aggregate_problem import SMALL, SMALL_CELLS, in_flight_rule
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.least import LeastTables, possible_links, possible_rings
from pipeplan.search.space.mixed import MixedKind, MixedSpace
from pipeplan_formulations.allocation import ChainAllocation

UNITS = REGIMES.mixed_units.most
"""Most units of devices of all classes: stages take a multiple of devices that is large enough for this."""


@dataclass(frozen=True)
class MixedLayout:
    """Replicas that stages may have on teams of each kind.

    Attributes
    ----------
    devices : int
        A stage takes a multiple of these.
    unit : int
        Replicas are multiples of it.
    widths : tuple of int
        Replicas in units.
    able : array of bool, shape (C, W)
        Widths that stages of each kind may have.
    """

    devices: int
    unit: int
    widths: tuple[int, ...]
    able: NDArray[np.bool_]

    def in_words(self) -> str:
        """The devices of its stages."""
        if len(self.widths) == 1:
            return f"unlike teams, {counted(self.unit * self.widths[0], 'replica')} each"
        return "unlike teams" + (f", multiples of {self.devices} devices" if self.devices > 1 else "")

    def small(self, space: MixedSpace) -> bool:
        """Return True if the rows of modes are few enough for a tree over all of them."""
        units = sum(len(each.devices) for each in space.classes)
        modes = {
            (k.pool, k.team, w) for k, row in zip(space.kinds, self.able, strict=True) for w in np.flatnonzero(row)
        }
        return units <= SMALL and len(space.space.model.layers) * units * len(modes) <= SMALL_CELLS * 4


def mixed_layouts(space: MixedSpace, micro_batches: int) -> list[MixedLayout]:
    """Return the layouts for steps of ``micro_batches``: one, or one for each number of replicas if all are equal."""
    job, devices = space.question.job, sum(len(each.devices) for each in space.classes)
    node = max(each.per_node for each in space.classes)
    choices = [u for u in range(1, node + 1) if node % u == 0] + [node << i for i in range(1, devices.bit_length())]
    for taken in choices:
        replicas = {
            r
            for r in range(1, min(devices, micro_batches) + 1)
            if (not job.replicas or r in job.replicas) and any(_fits(space, kind, r, taken) for kind in space.kinds)
        }
        if devices // taken <= UNITS:
            break
    rows = [{r} for r in sorted(replicas)] if job.equal_replicas else [replicas] if replicas else []
    return [_layout(space, own, taken) for own in rows]


def _layout(space: MixedSpace, replicas: set[int], taken: int) -> MixedLayout:
    unit = gcd(*replicas)
    able = np.array([[_fits(space, kind, r, taken) for r in sorted(replicas)] for kind in space.kinds], np.bool_)
    return MixedLayout(taken, unit, tuple(r // unit for r in sorted(replicas)), able)


def _fits(space: MixedSpace, kind: MixedKind, replicas: int, taken: int) -> bool:
    return kind.team * replicas <= len(space.classes[kind.pool].devices) and kind.team * replicas % taken == 0


def mixed_problem(space: MixedSpace, size: int, layout: MixedLayout, alternating: bool) -> ChainAllocation:
    """Return the allocation problem of all mixes at a micro-batch size, in nanoseconds and bytes.

    Its numbers are the least over the levels of ZeRO, and over the links that may be used. ``alternating``: as
    in `aggregate_problem.allocation_problem`. Its kinds are those of the space.
    """
    own, classes, layers = space.space, space.classes, len(space.space.model.layers)
    replicas = [width * layout.unit for width in layout.widths]
    rings = [
        [possible_rings(classes[each.pool], own.cluster.between(each.kind, each.kind), r, each.team) for r in replicas]
        for each in space.kinds
    ]
    kinds = [each.kind for each in space.kinds]
    least = LeastTables.over(LeastTables.of(each.prices, kinds, size, rings) for each in space.spaces)
    tables = [own.prices.table(each.kind, size) for each in space.kinds]
    send, latency, received = _sends(space, size)
    phases = not alternating and own.phased

    def rows(name: str) -> Array:
        return np.stack([getattr(table, name) for table in tables])

    deepest = min(layers, max(own.job.depths, default=layers))
    takes = np.array([kind.team for kind in space.kinds], np.int64) * layout.unit
    return ChainAllocation(
        forward=rows("forward"),
        backward=rows("backward"),
        **vars(replace(least, gather_hides=least.gather_hides.max(axis=1))),
        hides=np.stack([own.prices.hides(each.kind, size) for each in space.kinds]),
        saved=rows("saved"),
        output=rows("output"),
        workspace=rows("workspace"),
        recomputable=own.prices.recomputable,
        received=received,
        limit=np.array([usable_memory(each.kind, own.job) for each in space.kinds], np.int64),
        pool=np.array([each.pool for each in space.kinds], np.int64),
        takes=takes,
        units=np.array(
            [min(len(each.devices), deepest * layout.widths[-1] * int(takes.max())) for each in classes], np.int64
        ),
        node=np.array([len(each.devices) + 1 for each in classes], np.int64),
        send=send,
        send_back=send,
        latency=latency,
        cuts=own.constraints.cuts,
        able=layout.able,
        micro_batches=own.job.batch // size,
        samples=own.job.batch,
        widths=layout.widths,
        unit=layout.unit,
        overlap=own.cluster.overlap.value,
        objective=own.job.objective.value,
        in_flight_rule=in_flight_rule(own) if alternating else "full" if phases else "fbp",
        alternating=alternating,
        phases=phases,
    )


def _sends(space: MixedSpace, size: int) -> tuple[Array, Array, Array]:
    """Send times and latencies between kinds, the least over links, and the bytes received by the kind behind a cut."""
    prices, cluster, kinds = space.space.prices, space.space.cluster, space.kinds
    count, cuts = len(kinds), len(space.space.model.layers) - 1
    send, latency = np.zeros((count, count, 2, cuts), np.int64), np.zeros((count, count, 2), np.int64)
    received = np.full((count, cuts), np.iinfo(np.int64).max)
    for a, source in enumerate(kinds):
        for b, target in enumerate(kinds):
            network = cluster.between(source.kind, target.kind)
            links = possible_links(space.classes[source.pool], space.classes[target.pool], network)
            crossing = prices.crossing(source.kind, target.kind, size)
            send[a, b] = np.minimum.reduce([prices.occupancy(link, crossing.sent) for link in links])
            latency[a, b] = min(link.latency for link in links)
            received[b] = np.minimum(received[b], crossing.received)
    return send, latency, received
