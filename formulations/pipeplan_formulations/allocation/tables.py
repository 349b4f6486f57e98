"""The data of a chain allocation problem: tables of layers by kind and width, hops between kinds, units.

The equations are in `pipeplan_formulations.allocation.instance`, which gives each letter its meaning.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from math import lcm, prod
from typing import ClassVar, Literal

import numpy as np

from pipeplan_formulations.allocation.place import Allocation, ModeKey, Place
from pipeplan_formulations.allocation.terms import Overlap
from pipeplan_formulations.common.exposed import Collectives, Exposed, Indices
from pipeplan_formulations.common.layer_tables import LEFT_OUT, Array, Flags
from pipeplan_formulations.common.mode import Mode
from pipeplan_formulations.common.objective import Objective, endless
from pipeplan_formulations.common.pass_times import PassTables
from pipeplan_formulations.common.recomputation import shared_recomputation
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.common.span_options import SpanOptions

MOST_WITH_CYCLES = 2**20
"""Most layers x usages x widths of a problem with cycles: in larger ones they take more time than they save."""

InFlightRule = Literal["sno", "so", "fbp", "full", "non_increasing"]


@dataclass
class KnownCosts:
    """Cached recomputed forward times of spans of one kind and width that cannot save everything.

    ``rows[j, k − 1]`` belongs to the span with the j-th of ``keys`` (sorted) and k micro-batches in flight.
    """

    keys: Array
    rows: Array
    by_content: dict[tuple[int, ...], Array] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AllocationTables(PassTables):
    """Layers on devices of C kinds, in stages of W widths; `SHAPES` has the shape of each array.

    Attributes
    ----------
    update, reduce, gather, resident, reduce_base, gather_base : array of int
        As in `LayerTables`, by kind and width: they differ by width if state is sharded over replicas.
    saved, output, workspace : array of int
        As in `LayerTables`, by kind; or one row for all kinds.
    received : array of int
        Bytes of each cut that the stage behind it holds per micro-batch, by its kind; or one row for all kinds.
    limit : array of int
        Bytes of a device of each kind.
    pool, takes : array of int
        For each kind the pool of which its stages take units, and the units for each of a stage's width. By default
        each kind has a pool of its own, and takes 1.
    units, node : array of int
        For each pool: number of units, and units per node. If ``node`` exceeds ``units``, hops never leave a node.
    able : array of bool
        Widths that stages of each kind may have; by default all.
    send, send_back, latency : array of int
        f, g and l by kind before the hop, kind behind it, 1 if the hop leaves a node and else 0, and cut. Between
        different kinds only entry 1 is used. The inequalities are bounds only if entry 0 does not exceed entry 1, or if
        1 is the only width.
    widths : tuple of int
        Units that a stage may have, ascending.
    micro_batches, unit : int
        M, and devices in a unit.
    slices : int
        Slices of a micro-batch, of which k counts and each link carries so many; without alternation or phases.
    samples : int, optional
        N; by default M.
    overlap : 'none', 'copy' or 'stream'
    objective : 'step', 'period', 'bottleneck' or 'delayed'
    in_flight_rule : 'sno', 'so', 'fbp', 'full' or 'non_increasing'
    alternating : bool
        True if no stage runs more than k forwards before its first backward; then the warm-up delay holds.
    two_trips : bool
        True if the problem bounds no other schedules than those that alternate; then the two trips hold.
    phases : bool
        True if every replica runs all its forwards before its first backward, as in GPipe.
    cuts : array of bool
        Cuts that are allowed; by default all.
    joint : array of int
        Time in which a last stage of each kind and width sums, behind all its own sums, gradients of weights that the
        first stage has too: all sums of the two begin when the last backward of both has ended.
    first, last : tuple of (kind, width)
        Forced modes of the first and of the last stages, in the order of the stages. An allocation has at least that
        number of stages.
    """

    # Axes: C kinds, P pools, W widths, n layers, c = n − 1 cuts, 2 for inside and outside a node.
    SHAPES: ClassVar = {
        **dict.fromkeys(("forward", "backward", "hides", "gather_hides"), ("Cn",)),
        **dict.fromkeys(("ahead_forward", "ahead_backward", "service_forward", "service_backward"), ("Cn",)),
        **dict.fromkeys(("late_forward", "late_backward"), ("Cn",)),
        **dict.fromkeys(("update", "reduce", "gather", "resident"), ("CWn",)),
        **dict.fromkeys(("saved", "output", "workspace", "rebuilt"), ("Cn", "n")),
        "recomputable": ("n",),
        **dict.fromkeys(("limit", "pool", "takes"), ("C",)),
        **dict.fromkeys(("units", "node"), ("P",)),
        **dict.fromkeys(("send", "send_back"), ("CC2c",)),
        "received": ("Cc", "c"),
        "cuts": ("c",),
        "able": ("CW",),
        **dict.fromkeys(("reduce_base", "gather_base", "joint"), ("CW",)),
        "latency": ("CC2",),
    }

    received: Array = LEFT_OUT
    pool: Array = LEFT_OUT
    takes: Array = LEFT_OUT
    units: Array
    node: Array
    send_back: Array = LEFT_OUT
    cuts: Flags = LEFT_OUT
    able: Flags = LEFT_OUT
    joint: Array = LEFT_OUT
    micro_batches: int
    widths: tuple[int, ...] = (1,)
    unit: int = 1
    slices: int = 1
    overlap: Overlap = "copy"
    objective: Objective = "step"
    in_flight_rule: InFlightRule = "sno"
    alternating: bool = True
    two_trips: bool = False
    phases: bool = False
    first: tuple[ModeKey, ...] = ()
    last: tuple[ModeKey, ...] = ()
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.forward.ndim != 2 or not self.forward.size:
            raise ValueError(f"forward has shape {self.forward.shape}, expected (kinds, layers)")
        if self.cuts is LEFT_OUT:
            object.__setattr__(self, "cuts", np.ones(self.forward.shape[1] - 1, np.bool_))
        kinds, layers = self.forward.shape
        defaults = {
            "pool": np.arange(kinds),
            "takes": np.ones(kinds, np.int64),
            "able": np.ones((kinds, len(self.widths)), np.bool_),
        }
        for name, default in defaults.items():
            if getattr(self, name) is LEFT_OUT:
                object.__setattr__(self, name, default)
        axes = {"C": kinds, "P": len(self.units), "W": len(self.widths), "n": layers, "c": layers - 1, "2": 2}
        self.check_shapes(axes)
        self.fill(axes)
        for name in ("saved", "output", "workspace", "rebuilt", "received"):
            table = getattr(self, name)
            if table is not None:
                object.__setattr__(self, name, np.broadcast_to(table, (kinds, table.shape[-1])))

    @property
    def kinds(self) -> int:
        """C."""
        return int(self.forward.shape[0])

    @property
    def drains(self) -> bool:
        """True if alternation or two phases apply: to devices of one stage, which micro-batches pass whole."""
        ordered = self.alternating or (self.phases and len(self.widths) == 1)
        return ordered and not self.endless and not self.apart

    @property
    def trips_twice(self) -> bool:
        """True if the two trips apply."""
        return self.two_trips and self.drains and self.alternating

    @cached_property
    def cycles(self) -> bool:
        """True if cycles between stages apply: beside two trips, in problems that are not large."""
        return self.trips_twice and self.for_cycles

    @property
    def for_cycles(self) -> bool:
        """True if the problem is small enough for cycles between stages."""
        states = prod(int(units) + 1 for units in self.units)
        return self.layers * states * len(self.widths) <= MOST_WITH_CYCLES

    @property
    def endless(self) -> bool:
        """True if T is the largest load."""
        return endless(self.objective)

    @property
    def divisor(self) -> int:
        """N; a batch counts as one."""
        return 1 if self.objective == "delayed" else self.samples or self.micro_batches

    @property
    def chooses(self) -> bool:
        """True if k is a choice."""
        return self.in_flight_rule == "non_increasing"

    @cached_property
    def ends_together(self) -> bool:
        """True if the last stage's sums wait for the last backward of the first stage."""
        return self.objective == "step" and bool(self.joint.any())

    @cached_property
    def every_mode(self) -> list[tuple[int, int]]:
        """Kind and index of the width of every mode that a stage may have."""
        return [(c, w) for c, row in enumerate(self.able.tolist()) for w, able in enumerate(row) if able]

    def share(self, width: int) -> int:
        """M_w: the most micro-batches that a replica of a stage of this width takes."""
        return -(-self.micro_batches // (width * self.unit))

    @cached_property
    def most_flow(self) -> int:
        """The most units that stages can have in width, all together."""
        takes = (int(self.takes[self.pool == pool].min(initial=UNLIMITED)) for pool in range(len(self.units)))
        return sum(int(units) // each for units, each in zip(self.units, takes, strict=True))

    @property
    def last_batch(self) -> int:
        """m of the alternation bound: units of micro-batches before the last one."""
        return (self.micro_batches - 1) // self.unit

    @cached_property
    def modes(self) -> tuple[tuple[Mode, ...], ...]:
        """A mode of each width, for each kind. Pools and flow are in units, in-flight counts follow the rule."""
        behind = np.arange(self.most_flow + 1)
        least, most = ("sno", "most") if self.chooses else (self.in_flight_rule, self.in_flight_rule)
        counts = [[self._counts(rule, behind, width) for rule in (least, most)] for width in self.widths]
        return tuple(
            tuple(
                Mode(
                    f"{width} units of kind {c}",
                    tuple(width * int(self.takes[c]) * (pool == self.pool[c]) for pool in range(len(self.units))),
                    flow=width,
                    limit=int(self.limit[c]),
                    in_flight=fewest,
                    most_in_flight=largest,
                )
                for width, (fewest, largest) in zip(self.widths, counts, strict=True)
            )
            for c in range(self.kinds)
        )

    def mode(self, place: Place) -> Mode:
        """The mode of a stage."""
        return self.modes[place.kind][self.widths.index(place.width)]

    def _counts(self, rule: str, behind: Array, width: int) -> Array:
        """k by the in-flight rule for a stage of this width, by the units behind it."""
        most = self.share(width) * self.slices
        if rule == "full":
            return np.full_like(behind, most)
        held = {
            "sno": behind + width,
            "so": 2 * behind + width,
            "most": 3 * behind + width,
            "fbp": 2 * (behind + width),
        }[rule]
        counts: Array = np.minimum(-(-held // width) + self.slices - 1, most)
        return counts

    @cached_property
    def link_shares(self) -> dict[int, int]:
        """L_w: the least number of micro-batches on the busiest link resource of a stage of each width.

        Micro-batch m goes from replica m mod r to replica m mod r', so every lcm(r, r')-th takes the same resource. The
        neighbour's width is unknown here, so the minimum over all its widths is taken.
        """
        periods = {width: max(lcm(width, other) for other in self.widths) * self.unit for width in self.widths}
        return {width: self.slices * -(-self.micro_batches // period) for width, period in periods.items()}

    @cached_property
    def least_back(self) -> Array:
        """ĝ by kind behind the hop, 1 if a hop from the same kind would leave a node, and cut: shape (C, 2, n − 1)."""
        least = np.stack([self.send_back[c, c] for c in range(self.kinds)])
        for c in range(self.kinds):
            for before in range(self.kinds):
                if before != c:
                    least[c] = np.minimum(least[c], self.send_back[before, c, 1])
        return least

    @cached_property
    def options(self) -> tuple[SpanOptions, ...]:
        """Recomputation options of a stage of each kind."""
        return tuple(
            shared_recomputation(*rows, self.recomputable)
            for rows in zip(self.forward, self.savings, self.workspace, self.again, strict=True)
        )

    @cached_property
    def known_costs(self) -> dict[tuple[int, int], KnownCosts]:
        """What is known of the recomputation of spans, by kind and index of the width; programmes fill it."""
        return {}

    @cached_property
    def collectives(self) -> Collectives:
        """R of any span, by kind and index of the width."""
        sums = Exposed(self.reduce, self.hides[:, None], self.reduce_base)
        gathers = Exposed(self.gather, self.gather_hides[:, None], self.gather_base)
        return Collectives(sums, gathers, everywhere=self.objective in ("period", "delayed"))

    @cached_property
    def received_at(self) -> Array:
        """Bytes that a stage of each kind which begins at each boundary receives, (C, n + 1); none at either end."""
        return np.pad(self.received, ((0, 0), (1, 1)))

    def spare(
        self,
        kind: Indices,
        w: Indices,
        starts: Indices,
        ends: Indices,
        in_flight: Indices,
        received: Array | None = None,
    ) -> Array:
        """Bytes that the memory limit leaves for workspace with nothing recomputed; see `reductions`.

        ``received`` replaces `received_at`.
        """
        resident, saved = self.prefix["resident"], self.prefix["saved"]
        held = saved[kind, ends] - saved[kind, starts]
        held = held + (self.received_at if received is None else received)[kind, starts]
        left: Array = self.limit[kind] - (resident[kind, w, ends] - resident[kind, w, starts]) - in_flight * held
        return left

    def usages(self, stages: Allocation) -> list[tuple[int, ...]]:
        """Units of each pool from each stage on."""
        taken = np.array([self.mode(place).takes for place in reversed(stages)]).cumsum(axis=0)
        return [tuple(usage) for usage in taken[::-1].tolist()]

    def flows(self, stages: Allocation) -> list[int]:
        """R of each stage: the sum of the widths from it on."""
        return list(accumulate(place.width for place in reversed(stages)))[::-1]

    def in_flight_counts(self, stages: Allocation) -> list[int]:
        """k of each stage."""
        pairs = zip(stages, self.flows(stages), strict=True)
        return [place.held or self.mode(place).flying(flow - place.width) for place, flow in pairs]

    def leaves_node(self, before: int, behind: int, usage: tuple[int, ...]) -> int:
        """1 if a hop from kind ``before`` to kind ``behind``, with this usage behind it, leaves a node, otherwise 0."""
        pool = self.pool[behind]
        return 1 if before != behind else int(usage[pool] % int(self.node[pool]) == 0)

    def hops(self, stages: Allocation) -> Iterator[tuple[int, int, int]]:
        """f, g and l of the hop behind each stage except the last."""
        for (place, behind), usage in zip(pairwise(stages), self.usages(stages)[1:], strict=True):
            hop = place.kind, behind.kind, self.leaves_node(place.kind, behind.kind, usage)
            cut = place.end - 1
            yield int(self.send[hop][cut]), int(self.send_back[hop][cut]), int(self.latency[hop])

    def reductions(self, kind: Indices, w: Indices, starts: Indices, ends: Indices) -> Array:
        """R of stages on layers start … end − 1; ``w`` is the index of the width. Shapes broadcast."""
        found: Array = self.collectives((kind, w), starts, ends) + np.where(ends == self.layers, self.joint[kind, w], 0)
        return found

    def endings(self, kind: Indices, w: Indices, starts: Indices, ends: Indices) -> Array:
        """E of stages, their gradient reduction and update; see `reductions`."""
        update = self.prefix["update"]
        found: Array = self.reductions(kind, w, starts, ends) + update[kind, w, ends] - update[kind, w, starts]
        return found

    def waits(self, kind: Indices, w: Indices, starts: Indices, ends: Indices) -> Array:
        """W of stages other than the first, in a step; see `reductions`."""
        return self.collectives.waits((kind, w), starts, ends)

    def once(self, kind: Indices, w: Indices, starts: Indices, ends: Indices) -> tuple[Array, Array]:
        """What an endless pipeline does once per step: on the devices, and beside their work; see `reductions`."""
        reduce = self.reductions(kind, w, starts, ends)
        if self.objective == "bottleneck":
            return reduce, np.zeros_like(reduce)
        update = self.prefix["update"]
        return update[kind, w, ends] - update[kind, w, starts], reduce

    def finish(self, place: Place) -> int:
        """E of a stage."""
        return int(self.endings(place.kind, self.widths.index(place.width), place.start, place.end))

    @cached_property
    def largest(self) -> int:
        """An upper bound on the objective of every allocation, and on every intermediate sum."""
        work = int((2 * self.forward + self.backward).max(axis=0).sum(dtype=object))
        ends = int((self.update + self.reduce + self.gather).max(axis=(0, 1)).sum(dtype=object))
        ends += sum(int(once.max()) for once in (self.reduce_base, self.gather_base, self.joint))
        sends = 2 * int((self.send + self.send_back).max(axis=(0, 1, 2)).sum(dtype=object)) if self.layers > 1 else 0
        latency = 2 * self.layers * int(self.latency.max())
        return (2 * self.micro_batches * self.slices + 2) * (work + sends) + latency + ends
