"""The space over which a bound holds, and what lies outside it: every sentence about either stands here.

::

    Space ──▶ searched() ──▶ Searched ──▶ in_words()        "1 to 4 stages of layers in the listed order; …"
                                └──────▶ not_searched       "several stages per device": where it is true, only
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt
from textwrap import wrap

from pipeplan.cluster import Cluster, Overlap
from pipeplan.graph import applies
from pipeplan.graph.loads import widths
from pipeplan.graph.node import is_chain
from pipeplan.job import OPTIMIZER_STATE, Job, Objective, Order, Recompute
from pipeplan.model import Model
from pipeplan.search import one_by_one
from pipeplan.search.space import ANY, Space

WIDTH = 120
"""Columns of the lines for people."""

CONTIGUOUS = "contiguous layers in the listed order, every layer once"
DOWNSETS = "any layers that read from no later stage, whatever the listed order; every layer once"
DIVIDED = (
    "whole layers, replicated or not, weights streamed for every micro-batch; and layers divided between neighbours of "
    "an unreplicated line, weights on chip where they fit"
)
"""What a stage may hold."""

ALONE = "one device per stage"
PACKED = "devices of one kind per stage, packed in the cluster's order"
TILED = "devices of one kind and one kind of node per stage; packed in the cluster's order, or equal tiles of nodes"
LISTED = "devices of one kind per stage, taken in the listed order"
"""Which devices share a stage."""

FALLING = "1f1b holds any numbers of micro-batches from SNO's to SO's that fall along the pipeline"
OWN = "each schedule holds what its family says"
ALL_COUNTS = "any number of micro-batches in flight where any order is searched"
"""How many micro-batches a stage holds."""

WRITTEN = "as each family writes its lists"
ANY_ORDER = (
    "as each family writes its lists, and every order of one lane per device, each stage's backwards split or joined, "
    "where all stages have the same number of replicas"
)
ENDLESS = "which only says how much a stage holds: the order does not change its load"
"""Which orders of forwards and backwards."""

RECOMPUTED = {
    Recompute.NONE: "no recomputation",
    Recompute.CHOOSE: "recomputation of the layers that it takes to fit",
    Recompute.FULL: "every layer recomputed",
}

TENSOR = "tensor, sequence and context parallelism"
BEYOND_NEIGHBOURS = "tensor, sequence and context parallelism beyond two neighbours that divide a layer"
DIVIDED_REPLICAS = (
    "divided layers on replicated stages, recomputed, or between kinds of device whose profiles differ in bytes"
)
DISTANT_PARTS = "a part of a layer on distant devices"
INTERLEAVED = "several stages per device (interleaving)"
NOT_CONTIGUOUS = "other orders of the model's layers than the listed one"
BRANCHES = "skips sent directly to the stage that reads them, branches side by side"
NO_REPLICAS = "stages with replicas"
UNLIKE_KINDS = "replicas of unlike kinds in one stage"
UNLIKE_NODES = "replicas in nodes with unlike links in one stage"
PLACEMENTS = "other placements of like devices on the nodes"
ONE_WIDTH = "stages that differ in their number of replicas"
OVERLAPPED = "overlapped gradient reduction"
SHARDED = "sharded gradients or parameters (ZeRO-2, ZeRO-3, FSDP)"
STATE = "sharded optimiser state (ZeRO-1; --zero1 searches it)"
OTHER_COUNTS = "in-flight counts of 1F1B below SNO's, above SO's, or not falling along the pipeline"
OTHER_ORDERS = "other orders, split backwards (--schedules any searches them on stages of one width)"
UNEQUAL_ORDERS = "orders outside the listed families on stages of unequal widths"
TWO_LANES = "orders of two lanes per device outside the listed families"
OTHER_HOLDING = "schedules that hold fewer micro-batches than the listed one"
STALE = "stale weights (PipeDream, 2BW)"
SLICES = "token slices of a micro-batch"
UNEQUAL_SIZES = "micro-batches of unequal sizes"
OTHER_SIZES = "micro-batches of other or unequal sizes"
UNPROFILED_SIZES = "micro-batches of sizes that no profile covers (--extrapolate searches them), or unequal ones"
CHECKPOINTS = "recomputation that keeps less than every layer's output"
OFFLOADING = "offloading to host memory"
"""What is not searched; `_Scope` says when each is true. Sentences with numbers are made in `_Scope.coarse`."""


@dataclass(frozen=True, slots=True)
class Searched:
    """The space over which the bound holds, and what lies outside it.

    Attributes
    ----------
    micro_batch_sizes : tuple of int
    schedules : tuple of str
    opened : int
        Nodes of the search that were advanced.
    recompute, order : str
        As the job asks.
    depths, widths : str
        Numbers of stages, and of devices per stage: ``'1 to 4'``.
    partitions, replicas, in_flight, schedules_reach : str
        What a stage may hold, which devices share one, how many micro-batches it holds, in which order it works.
    unlike : bool
        Whether there are devices of several classes, whose order is a choice.
    wishes : tuple of str
        Options that narrow the space further.
    not_searched : tuple of str
    """

    micro_batch_sizes: tuple[int, ...]
    schedules: tuple[str, ...]
    opened: int
    recompute: str
    order: str
    depths: str = ""
    widths: str = ""
    partitions: str = CONTIGUOUS
    in_flight: str = OWN
    schedules_reach: str = WRITTEN
    replicas: str = ALONE
    unlike: bool = False
    wishes: tuple[str, ...] = ()
    not_searched: tuple[str, ...] = ()

    def in_words(self) -> str:
        """One sentence without its full stop."""
        stages = "1 stage" if self.depths == "1" else f"{self.depths} stages"
        shared = self.replicas if self.replicas == ALONE else f"{self.widths} {self.replicas}"
        parts = [f"{stages} of {self.partitions}", shared]
        if self.unlike:
            parts.append(f"unlike devices in {'any' if self.order == Order.SEARCH else 'the given'} order")
        parts.append(f"micro-batches of {listed(self.micro_batch_sizes)}")
        named = [name for name in self.schedules if name != ANY]
        parts.append(f"schedule{'s' * (len(named) > 1)} {', '.join(named)}, {self.schedules_reach}")
        parts += [self.in_flight] * (self.in_flight == FALLING)
        parts.append(RECOMPUTED[Recompute(self.recompute)])
        if self.wishes:
            parts.append(f"with {', '.join(self.wishes)}")
        return "; ".join(parts)

    def lines(self) -> list[str]:
        """What the bound holds for, and what it does not speak of, wrapped for people."""
        return [
            *wrapped(f"searched (the bound holds for these plans): {self.in_words()}"),
            *wrapped(f"not searched (may be faster): {'; '.join(self.not_searched)}"),
        ]

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "depths": self.depths,
            "micro_batch_sizes": list(self.micro_batch_sizes),
            "schedules": list(self.schedules),
            "schedules_reach": self.schedules_reach,
            "partitions": self.partitions,
            "widths": self.widths,
            "replicas": self.replicas,
            "in_flight": self.in_flight,
            "recompute": self.recompute,
            "device_order": self.order,
            "wishes": list(self.wishes),
            "opened": self.opened,
            "not_searched": list(self.not_searched),
        }


def searched(space: Space, opened: int = 0) -> Searched:
    """What a search of the space looks at."""
    scope = _Scope(space)
    job = space.job
    return Searched(
        micro_batch_sizes=space.sizes,
        schedules=space.schedules,
        opened=opened,
        recompute=job.recompute.value,
        order=job.order.value,
        depths=listed(scope.depths),
        widths=listed(scope.widths),
        partitions=DOWNSETS if scope.graph else CONTIGUOUS,
        in_flight=ALL_COUNTS if space.any_order else FALLING if space.free and scope.several else OWN,
        schedules_reach=ANY_ORDER if space.any_order else WRITTEN if scope.step else ENDLESS,
        replicas=scope.replicas,
        unlike=len(space.classes) > 1,
        wishes=narrowing(job),
        not_searched=tuple(scope.not_searched()),
    )


def searched_for(model: Model, cluster: Cluster, job: Job) -> Searched:
    """What `pipeplan.solve` looks at when it is asked this."""
    whole = searched(Space(model, cluster, replace(job, intra_layer=False)))
    return with_divided_layers(whole) if job.intra_layer else whole


def with_divided_layers(whole: Searched, opened: int = 0) -> Searched:
    """The space that layers divided between neighbours add to that of whole ones."""
    rest = tuple(sentence for sentence in whole.not_searched if sentence != TENSOR)
    beyond = (BEYOND_NEIGHBOURS, DIVIDED_REPLICAS, DISTANT_PARTS, *rest)
    return replace(whole, opened=whole.opened + opened, partitions=DIVIDED, not_searched=beyond)


def narrowing(job: Job) -> tuple[str, ...]:
    """The options of a job that leave plans out, and that no other part of the sentence speaks of."""
    given = {
        "--equal-replicas": job.equal_replicas,
        "--together": bool(job.together),
        "--no-cut-after": bool(job.no_cut_after),
        "--pin": bool(job.pin),
    }
    return tuple(name for name, on in given.items() if on)


def wrapped(text: str) -> list[str]:
    """A sentence as lines for people."""
    return wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def listed(numbers: Sequence[int], most: int = 8) -> str:
    """``'1 to 8'``, ``'1, 2, 4 or 8'``, ``'1, 2, 3, 4, 6, 8, … or 512'``."""
    row = sorted(set(numbers))
    if len(row) > 2 and row[-1] - row[0] == len(row) - 1:
        return f"{row[0]} to {row[-1]}"
    shown = list(map(str, row))
    if len(row) > most:
        shown = [*shown[: most - 2], "…", shown[-1]]
    return " or ".join(part for part in (", ".join(shown[:-1]), shown[-1]) if part) if shown else "none"


class _Scope:
    """What is true of a space's question."""

    def __init__(self, space: Space) -> None:
        self.space, self.job, self.model = space, space.job, space.model
        self.devices = len(space.cluster.devices)
        self.step = space.job.objective is Objective.STEP
        self.graph = applies(space)
        self.chain = is_chain(space.model)

    @cached_property
    def most(self) -> int:
        """The most replicas that a stage could have, whatever the job allows."""
        if not self.step and not self.graph:
            return 1
        return min(max(len(each.devices) for each in self.space.classes), self.job.batch // min(self.space.sizes))

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Numbers of replicas that are looked at."""
        if self.graph:
            return tuple(sorted({way.replicas for size in self.space.sizes for way in widths(self.space, size)}))
        numbers = range(1, self.most + 1)
        return tuple(r for r in numbers if (not self.job.replicas or r in self.job.replicas) and r not in self.thinned)

    @cached_property
    def replicated(self) -> bool:
        """Whether stages may have replicas."""
        return any(width > 1 for width in self.widths)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Numbers of stages."""
        most = min(self.devices // min(self.widths, default=1), len(self.model.layers))
        return tuple(depth for depth in range(1, most + 1) if not self.job.depths or depth in self.job.depths)

    @cached_property
    def several(self) -> bool:
        """Whether there may be more than one stage."""
        return any(depth > 1 for depth in self.depths)

    @cached_property
    def limited(self) -> bool:
        """Whether anything limits the memory of a device."""
        return self.job.memory is not None or any(d.kind.memory is not None for d in self.space.cluster.devices)

    @cached_property
    def spread(self) -> bool:
        """Whether like devices of several nodes can be placed in ways that differ."""
        if self.graph or self.job.order is Order.GIVEN or not (self.several or self.replicated):
            return False
        nodes = self.space.cluster.nodes
        shared = (
            {n for n in each.nodes if len(nodes[n].kinds) > 1} for each in self.space.classes if len(each.nodes) > 1
        )
        return any(shared)

    @property
    def replicas(self) -> str:
        """Which devices share a stage."""
        if not self.replicated:
            return ALONE
        if self.job.order is Order.GIVEN:
            return LISTED
        return TILED if self.spread else PACKED

    @cached_property
    def uneven(self) -> bool:
        """Whether the job allows stages that differ in their number of replicas."""
        return self.replicated and not self.job.equal_replicas and len(set(self.job.replicas)) != 1

    @cached_property
    def units(self) -> tuple[tuple[int, ...], int | None]:
        """Numbers of replicas of equal stages, and the unit of unequal ones; every number where shapes are few."""
        if one_by_one(self.space):
            return (), 1
        from pipeplan.search.layouts import layouts  # only larger clusters need it

        every = [each for size in self.space.sizes for each in layouts(self.space, self.job.batch // size)]
        unequal = {each.unit for each in every if len(each.widths) > 1}
        return tuple(sorted({each.unit for each in every if len(each.widths) == 1})), min(unequal, default=None)

    @cached_property
    def thinned(self) -> frozenset[int]:
        """Numbers of replicas that the job allows and that no layout has, as there would be too many."""
        equal, unit = self.units
        if unit == 1:
            return frozenset()
        allowed = self.job.replicas or range(1, self.most + 1)
        multiples = set() if unit is None else set(range(unit, self.most + 1, unit))
        return frozenset(r for r in allowed if r <= self.most and r not in multiples and r not in equal)

    def not_searched(self) -> Iterator[str]:
        """Every sentence that is true of this question."""
        yield from self._partitions()
        yield from self._replicas()
        if self.step:
            yield from self._orders()
        elif self.limited and self.several:
            yield OTHER_HOLDING
        yield self._sizes()
        if self.limited:
            if self.job.recompute is not Recompute.NONE:
                yield CHECKPOINTS
            yield OFFLOADING

    def _partitions(self) -> Iterator[str]:
        if self.devices > 1:
            yield TENSOR
        if self.several:
            yield INTERLEAVED
        if not self.chain and self.several:
            if not self.graph:
                yield NOT_CONTIGUOUS
            yield BRANCHES

    def _replicas(self) -> Iterator[str]:
        wanted = not self.job.replicas or max(self.job.replicas) > 1
        if not self.replicated and not self.step and not self.graph and self.devices > 1 and wanted:
            yield NO_REPLICAS
        if self.spread:
            yield PLACEMENTS
        if self.replicated:
            yield from self.coarse()
            kinds = {each.kind.name for each in self.space.classes}
            if len(kinds) > 1:
                yield UNLIKE_KINDS
            if len(self.space.classes) > len(kinds):
                yield UNLIKE_NODES
        if self.replicated or (self.several and self.model.ties and self.step):
            yield OVERLAPPED
        if self.replicated:
            yield SHARDED
            if not self.job.zero1 and OPTIMIZER_STATE[self.job.optimizer]:
                yield STATE

    def coarse(self) -> Iterator[str]:
        """What is left out of layouts on large clusters."""
        equal, unit = self.units
        if unit == 1:
            return
        if self.thinned:
            yield f"equal stages of other numbers of replicas than {listed(equal)} (too many to look at)"
        if self.uneven:
            yield f"unequal numbers of replicas but multiples of {unit}" if unit is not None else ONE_WIDTH

    def _orders(self) -> Iterator[str]:
        space = self.space
        if space.any_order:
            if self.uneven and self.several:
                yield UNEQUAL_ORDERS
            if space.cluster.overlap is Overlap.STREAM:
                yield TWO_LANES
        elif self.several or not any(each.alternates for each in space.families):
            if space.free:
                yield OTHER_COUNTS
            yield OTHER_ORDERS
        if self.several:
            yield STALE
            yield SLICES

    def _sizes(self) -> str:
        """Micro-batch sizes outside the list; unequal ones never are."""
        batch, job = self.job.batch, self.job
        small = [size for size in range(1, isqrt(batch) + 1) if batch % size == 0]
        if {*small, *(batch // size for size in small)} <= set(self.space.sizes):
            return UNEQUAL_SIZES
        covered = job.micro_batches or job.extrapolate or not self.model.profiles
        return OTHER_SIZES if covered else UNPROFILED_SIZES
