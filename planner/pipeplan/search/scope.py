"""Description of a searched space: selects the sentences of `pipeplan.core.searched` that are true of it."""

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from math import isqrt
from typing import TYPE_CHECKING

from pipeplan.core import searched as sentences
from pipeplan.core.cluster import Overlap, StageDevices
from pipeplan.core.job import OPTIMIZER_STATE, SHARDED, Job, Objective, Order, Recompute
from pipeplan.core.model import Model
from pipeplan.core.searched import Searched
from pipeplan.core.units import format_reserve
from pipeplan.core.wording import listed
from pipeplan.costs.sharding.usual import why_alone
from pipeplan.schedules import JOINED, SLICED, SPLIT
from pipeplan.search import enumerates_groups
from pipeplan.search.graph.reach import applies, is_chain, widths
from pipeplan.search.space.device_groups import distinct_tiles
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan.search.team_scope import with_teams

if TYPE_CHECKING:
    from pipeplan.search.nodes.layouts import Layout


EXPERT = re.compile(r"[Ee]xpert|[Mm]ixture|[Mm]ixtral|M[Oo][Ee]|Moe|(?<![A-Za-z])moe(?![a-z])")
"""What names of layers with experts contain."""


def searched(spaces: Spaces, opened: int = 0, cutoff: int | None = None) -> Searched:
    """Describe the spaces of a search.

    Parameters
    ----------
    opened : int
        Number of nodes advanced.
    cutoff : int or None
        Nanoseconds from which on a bound rules plans out.
    """
    space, job = spaces.lowest, spaces.job
    whole = [each.placing for each in chain(spaces.in_one_round, *spaces.folded.values()) if each.placing.spread]
    scope = Scope(space, anywhere=not spaces.mixed and all(each.every for each in whole))
    found = Searched(
        micro_batch_sizes=space.sizes,
        schedules=space.schedules,
        opened=opened,
        recompute=job.recompute.value,
        order=job.order.value,
        depths=listed([depth * space.model.rounds for depth in scope.depths]),
        widths=listed(scope.widths),
        partitions=sentences.DOWNSETS if scope.graph else sentences.CONTIGUOUS,
        in_flight=scope.in_flight,
        schedules_reach=sentences.ANY_ORDER
        if space.any_order
        else sentences.WRITTEN
        if scope.steps
        else sentences.ENDLESS,
        replicas=scope.replicas,
        unlike=len(space.classes) > 1,
        restrictions=narrowing_options(job),
        not_searched=tuple(scope.not_searched()),
    )
    if job.slices and max(job.slices) > 1:
        families = [name for name in SLICED if name in (spaces.job.schedules or JOINED)]
        halves = "" if set(families) & set(SPLIT) else f"--schedules {','.join((*JOINED, *SPLIT))}"
        found = found.with_slices(spaces.job.slices, families, halves)
    if spaces.folded:
        rounds, orders_of = spaces.rounds, dict[int, dict[str, None]]()
        for laid in spaces.folded:
            orders_of.setdefault(laid.rounds, {}).update(dict.fromkeys(rounds.order(laid)))
        splits, unlike = any(map(rounds.splits, spaces.folded)), any(laid.unlike for laid in spaces.folded)
        found = found.with_rounds(orders_of, space.unfolding is not None, splits, rounds.why_whole, unlike)
    orders = space.any_order or any(family.two_lanes for family in space.families)
    return with_teams(found.at_levels(spaces.levels, bool(spaces.model.ties), orders), spaces, cutoff)


def narrowing_options(job: Job) -> tuple[str, ...]:
    """The options of a job that leave plans out and that no other part of the description mentions."""
    given = {
        "--regular": job.regular,
        "--equal-replicas": job.equal_replicas and not job.regular,
        "--together": bool(job.together),
        "--no-cut-after": bool(job.no_cut_after),
        "--pin": bool(job.pin),
        f"--strategy {job.strategy}": bool(job.strategy),
        f"--reserve {format_reserve(job.reserve)}": bool(job.reserve),
    }
    return tuple(name for name, on in given.items() if on)


def has_experts(model: Model) -> bool:
    """Return True if names, kinds or operators of layers speak of experts."""
    operators = (each.name for graph in model.operators.values() for each in graph.operators)
    names = (text for layer in model.layers for text in (layer.name, layer.kind))
    return any(EXPERT.search(name) for name in (*names, *operators))


def lists(space: Space, groups: StageDevices) -> bool:
    """Return True if the sentences on numbers of stages and on their devices are true of these device groups."""
    scope, widths = Scope(space), {len(group) for group in groups}
    if len(groups) not in scope.depths or not widths <= set(scope.widths):
        return False
    return scope.graph or space.placing.has(groups)


class Scope:
    """Properties of a space that decide which sentences are true.

    ``anywhere``: whether it and all beside it have every placement of like devices.
    """

    def __init__(self, space: Space, anywhere: bool = False) -> None:
        self.space, self.job, self.model, self.anywhere = space, space.job, space.model, anywhere
        self.devices = len(space.cluster.devices)
        self.steps = space.job.objective.simulated
        self.graph = applies(space)
        self.chain = is_chain(space.model)

    @cached_property
    def max_replicas(self) -> int:
        """Most replicas that a stage could have without the job's restrictions."""
        return min(max(len(each.devices) for each in self.space.classes), self.job.batch // min(self.space.sizes))

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Numbers of replicas in the search."""
        if self.graph:
            return tuple(sorted({way.replicas for size in self.space.sizes for way in widths(self.space, size)}))
        asked = self.job.replicas or range(1, self.max_replicas + 1)
        return tuple(sorted({r for r in asked if r <= self.max_replicas}.difference(self.omitted_widths)))

    @cached_property
    def replicated(self) -> bool:
        """True if stages may have several replicas."""
        return any(width > 1 for width in self.widths)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Numbers of stages in the search."""
        most = min(self.devices // min(self.widths, default=1), len(self.model.layers))
        return tuple(depth for depth in range(1, most + 1) if not self.job.depths or depth in self.job.depths)

    @cached_property
    def several(self) -> bool:
        """True if there may be more than one stage."""
        return any(depth > 1 for depth in self.depths)

    @cached_property
    def limited(self) -> bool:
        """True if some device has a memory limit."""
        return self.job.memory is not None or any(d.kind.memory is not None for d in self.space.cluster.devices)

    @cached_property
    def spread(self) -> bool:
        """True if like devices lie in several nodes, so that placements differ."""
        if self.graph or self.job.order is Order.GIVEN or not (self.several or self.replicated):
            return False
        return self.space.placing.spread

    @property
    def unlike_nodes(self) -> bool:
        """True if stages could have replicas of one kind on nodes whose links differ."""
        kinds = [each.kind.name for each in self.space.classes]
        several = not self.job.replicas or max(self.job.replicas) > 1
        return several and len(set(kinds)) < len(kinds) and self.job.batch > min(self.space.sizes)

    @property
    def replicas(self) -> str:
        """The sentence on devices that share a stage."""
        if not self.replicated:
            return sentences.ALONE
        if self.job.order is Order.GIVEN:
            return sentences.LISTED
        placing = self.space.placing
        if self.spread and self.anywhere:
            return sentences.ANYWHERE
        packed = sentences.TILED if self.spread else sentences.PACKED
        return packed + sentences.EXCHANGED * (placing.pins is not None)

    @property
    def in_flight(self) -> str:
        """The sentence on micro-batches that a stage holds."""
        if self.space.any_order:
            return sentences.ALL_COUNTS
        return sentences.FALLING if self.space.free and self.several else sentences.OWN

    @cached_property
    def uneven(self) -> bool:
        """True if the job allows stages with different numbers of replicas."""
        return self.replicated and not self.job.equal_replicas and len(set(self.job.replicas)) != 1

    @cached_property
    def layouts(self) -> "tuple[Layout, ...] | None":
        """The layouts that stand for the device groups, where these are too many to enumerate; else None."""
        if enumerates_groups(self.space):
            return None
        from pipeplan.search.nodes.layouts import layouts  # only larger clusters need it

        return tuple(each for size in self.space.sizes for each in layouts(self.space, self.job.batch // size))

    @cached_property
    def equal(self) -> frozenset[int]:
        """Numbers of replicas of the layouts with equally many replicas on all stages."""
        return frozenset(each.unit for each in self.layouts or () if len(each.widths) == 1)

    @cached_property
    def unit(self) -> int | None:
        """Common divisor of the numbers of replicas in unequal layouts; None if there are no such layouts."""
        return min((each.unit for each in self.layouts or () if len(each.widths) > 1), default=None)

    @cached_property
    def omitted_widths(self) -> frozenset[int]:
        """Numbers of replicas that the job allows and no layout has, as there would be too many layouts."""
        allowed = {r for r in self.job.replicas or range(1, self.max_replicas + 1) if r <= self.max_replicas}
        if self.layouts is None:
            listed_ones = self.space.listed.replicas
            return frozenset(allowed.difference(listed_ones) if listed_ones else ())
        return frozenset(r for r in allowed if r not in self.equal and (not self.unit or r % self.unit))

    def not_searched(self) -> Iterator[str]:
        """Yield the sentences on plans that are not searched."""
        yield from self._partitions()
        yield from self._replicas()
        if self.steps:
            yield from self._orders()
        elif self.limited and self.several:
            yield sentences.OTHER_HOLDING
        yield self._sizes()
        if self.limited:
            if self.job.recompute is not Recompute.NONE:
                yield sentences.CHECKPOINTS
            yield sentences.OFFLOADING

    def _partitions(self) -> Iterator[str]:
        if self.devices > 1:
            why = why_alone(self.model, self.space.cluster, self.job)
            yield f"{sentences.TENSOR}, as {why}" if why else sentences.TENSOR
            if has_experts(self.model):
                yield sentences.EXPERTS
        if self.several:
            yield sentences.INTERLEAVED
        if not self.chain and self.several:
            if not self.graph:
                yield sentences.NOT_CONTIGUOUS
            yield sentences.BRANCHES

    def _replicas(self) -> Iterator[str]:
        wanted = not self.job.replicas or max(self.job.replicas) > 1
        if not self.replicated and not self.steps and self.devices > 1 and wanted:
            yield sentences.ONE_MICRO_BATCH
        if self.spread and not self.anywhere:
            yield sentences.PLACEMENTS
        if self.replicated:
            yield from self._layouts_left_out()
            kinds = {each.kind.name for each in self.space.classes}
            if len(kinds) > 1:
                yield sentences.UNLIKE_KINDS
        if self.unlike_nodes:
            yield sentences.UNLIKE_NODES
        if self.replicated or (self.several and self.model.ties and self.steps):
            yield from self._reductions()
        if self.replicated:
            yield from [sentences.UNEQUAL_SHARES] * self.job.staleness
            yield sentences.SHARDED
            if not self.job.level and (self.steps or OPTIMIZER_STATE[self.job.optimizer]):
                yield sentences.STATE

    def _reductions(self) -> Iterator[str]:
        space = self.space
        if self.job.staleness:  # beside the next batch
            return
        if not any(space.prices.sync.overlaps(each.kind, size) for each in space.classes for size in space.sizes):
            if self.job.level < SHARDED or not self.job.overlap_reduction:
                yield sentences.OVERLAPPED
            return
        if self.job.objective is Objective.PERIOD:
            yield sentences.FRONT_FIRST
        if sum(bool(node.kinds) for node in space.cluster.nodes) > 1:
            yield sentences.BUCKETS_ON_CARDS
        if self.job.recompute is Recompute.CHOOSE:
            yield sentences.HIDDEN_AGAIN

    def _layouts_left_out(self) -> Iterator[str]:
        """Yield the sentences on placements that are left out on large clusters."""
        if self.omitted_widths:
            yield sentences.OTHER_WIDTHS
        if self.layouts is None:
            return
        allowed = [r for r in self.job.replicas or range(1, self.max_replicas + 1) if r <= self.max_replicas]
        if self.uneven and self.unit is None:
            yield sentences.ONE_WIDTH
        elif self.uneven and any(r % (self.unit or 1) for r in allowed):
            yield f"stages of unequal numbers of replicas, other than multiples of {self.unit}"
        if any(distinct_tiles(self.space.classes, r) for r in allowed if r not in self.equal):
            yield f"equal tiles for other numbers of replicas than {listed(tuple(self.equal))}"

    def _orders(self) -> Iterator[str]:
        space = self.space
        if space.any_order:
            if self.uneven and self.several:
                yield sentences.UNEQUAL_ORDERS
            if space.cluster.overlap is Overlap.STREAM:
                yield sentences.TWO_LANES
        elif self.several or not any(each.alternates for each in space.families):
            if space.free:
                yield sentences.OTHER_COUNTS
            never = self.job.objective is Objective.PERIOD or self.job.level >= SHARDED
            yield sentences.OTHER_ORDERS if never else sentences.ASKED_FOR
        if self.several:
            yield sentences.OLDER if self.job.staleness else sentences.STALE
            yield sentences.SLICES

    def _sizes(self) -> str:
        """The sentence on micro-batch sizes that are not searched; unequal sizes never are."""
        batch, job = self.job.batch, self.job
        known = set(self.space.sizes)
        divisors = (size for size in range(1, isqrt(batch) + 1) if batch % size == 0)
        if all({size, batch // size} <= known for size in divisors):  # all divisors of the batch are searched
            return sentences.UNEQUAL_SIZES
        covered = job.micro_batches or job.extrapolate or not self.model.profiles
        return sentences.OTHER_SIZES if covered else sentences.UNPROFILED_SIZES
