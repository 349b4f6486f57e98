"""`Space`: the micro-batch sizes, schedule families and device groups of a search."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice, product
from math import comb
from typing import TYPE_CHECKING, Any

from pipeplan.core.changed import changed
from pipeplan.core.cluster import Cluster, DeviceKind, Overlap, StageDevices
from pipeplan.core.errors import InputError
from pipeplan.core.folding import Laid
from pipeplan.core.job import SHARDED, Job, Objective, Order
from pipeplan.core.model import Model
from pipeplan.core.splits import Splitting
from pipeplan.core.wording import team_suffix, zero_suffix
from pipeplan.costs.chain import Boundaries, Chain
from pipeplan.costs.cost_tables import Tables
from pipeplan.costs.layers import available_micro_batches
from pipeplan.costs.occupancy import occupancies
from pipeplan.costs.pricing import Prices
from pipeplan.schedules import FAMILIES, PLACED, SLICED, Family, asked_sliced_families, families_in_rounds, family
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.candidates import Candidate, Unfolding, in_flight
from pipeplan.search.space.constraints import Constraints
from pipeplan.search.space.device_groups import (
    DeviceClass,
    Mode,
    Modes,
    all_modes,
    device_classes,
    even_widths,
)
from pipeplan.search.space.in_flight import FREE, between
from pipeplan.search.space.least import LeastTables
from pipeplan.search.space.lower_bounds import LowerBounds
from pipeplan.search.space.pins import Pins
from pipeplan.search.space.placing import Placing
from pipeplan.search.space.rounds import check_alternating
from pipeplan.search.space.shared_links import shared_link_loads, slower_pairs
from pipeplan_formulations.partition import LinkResource

if TYPE_CHECKING:
    from pipeplan_formulations.allocation import ChainAllocation

FEW = REGIMES.listed_groups.most
"""Most device groups per micro-batch size that are enumerated; more are bounded together, in aggregate nodes."""
PAIRS = REGIMES.listed_pairs.most
"""Most pairs of a shape and a partition, over all micro-batch sizes, that are listed: a small space."""
MANY_UNITS = REGIMES.layout_units.most
"""Most devices of several stages each with which every number of replicas is listed."""
PLACEMENTS = REGIMES.listed_arrangements.most
"""Most placements of like devices, over all device groups, up to which every one of them is searched."""
Key = tuple[Splitting | None, int, int, Laid | None]
"""Split, level of ZeRO, number of token slices, and how several stages lie on each device."""
ANY = "any"
"""The schedule name for every order, in addition to the named families (or those that suit the cluster)."""
LEANEST = "1f1b-sno"
"""The family with the fewest micro-batches in flight among the choices of `FREE`."""
MANY = REGIMES.early_groups.most
"""With more device groups than this, heuristics run after the search instead of before it,"""
LONG = REGIMES.early_samples.most
"""with more devices x samples than this,"""
DEEP = REGIMES.early_layers.most
"""and with more devices x layers than this."""


class Space:
    """All choices of a search.

    With a ``split``, devices are teams: the model and the cluster are those of `pipeplan.costs.sharding.question`. With
    ``shares`` stages of single devices alone are left out: a space of a lower level of ZeRO has their plans.

    Attributes
    ----------
    sizes : tuple of int
        Micro-batch sizes.
    families : tuple of Family
        The named families. Where ``free`` is set, also 1F1B with the counts of `InFlightBox.of`.
    any_order : bool
        Whether every order of one lane per device is searched too, on stages with equal numbers of replicas.
    splits : bool
        Whether some of the named families have split backwards.
    problems : dict
        Allocation problems, kept by those who make them.
    least_tables : dict
        The least times of sums and gathers of each layout, for the micro-batch size that was asked for last.

    Raises
    ------
    InputError
        If parts of the job contradict each other.
    """

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        job: Job,
        split: Splitting | None = None,
        tables: Tables | None = None,
        shares: bool = False,
    ) -> None:
        job = job.of(model)
        if job.level >= SHARDED:
            job = _sharded(model, job)
        if (model.slicing is not None or model.folding is not None) and not job.equal_replicas:
            job = changed(job, equal_replicas=True)
        self.model, self.cluster, self.job, self.split, self.shares = model, cluster, job, split, shares
        self.prices = Prices(model, cluster, job, split, tables)
        self.constraints = Constraints(model.unfolded or model, cluster, job)
        self.unfolding: Unfolding | None = None
        if model.folding is not None:
            self.unfolding = Unfolding(model.folding, self.prices.unfolded, self.constraints)
            self.constraints = self.constraints.folded(model.folding)
        kinds = [kind for kind, _ in cluster.counts]
        sizes = available_micro_batches(model, kinds, job.batch, extrapolate=job.extrapolate)
        self.sizes = tuple(job.batch // count for count in job.micro_batches) or sizes
        named = tuple(name for name in job.schedules if name != ANY)
        names = tuple(name for name in named if name not in (*SLICED, *PLACED)) or default_schedules(cluster, job)
        _check_lanes([family(name) for name in names if name != FREE], cluster)
        if job.level >= SHARDED:
            names = tuple(name for name in names if name == FREE or not FAMILIES[name].two_lanes)
            if not names:
                raise InputError(f"level {job.level} of ZeRO (zero) runs one action at a time; ask for other schedules")
        if job.staleness:
            check_alternating(name for name in names if name != FREE)
        self.any_order = ANY in job.schedules and job.level < SHARDED
        if self.any_order and job.objective is Objective.BOTTLENECK:
            raise InputError(f"schedules {ANY!r} are orders of a step; any order gives the same bottleneck, name none")
        if self.any_order and job.objective is Objective.PERIOD:
            raise InputError(f"schedules {ANY!r} are searched for the least step; ask for the objective 'step'")
        steps = job.objective.simulated
        self.free = FREE in names and steps
        # An endless pipeline takes as long however many micro-batches are in flight: the fewest are best.
        names = tuple(dict.fromkeys(names if steps else (LEANEST if name == FREE else name for name in names)))
        self.families = tuple(family(name) for name in names if name != FREE)
        if model.slicing is not None:
            self.free, self.families = False, asked_sliced_families(model.slices, named)
        if model.folding is not None:
            own = families_in_rounds(model.rounds, model.folding.laid.turns)
            self.free, self.families = False, tuple(each.on_devices(model.rounds) for each in own if each.name in named)
        self.splits = any(each.splits for each in self.families)
        self.problems: dict[Any, ChainAllocation] = {}
        self.least_tables: dict[Any, LeastTables] = {}
        self._lower_bounds: dict[int, LowerBounds] = {}
        for count in job.micro_batches:
            if job.batch // count not in sizes:
                self._check_micro_batches(count, kinds)

    @property
    def suffix(self) -> str:
        """The level of ZeRO and the teams, behind the name of a part: ``', ZeRO-1, teams of 8 (way 2)'``."""
        if self.split is None:
            return zero_suffix(self.job.level)
        teams = team_suffix(self.split.teams, self.split.parallelism, mesh=self.split.mesh)
        return f"{zero_suffix(self.job.level)}{teams} (way {self.split.number + 1})"

    @property
    def key(self) -> Key:
        """What a plan is priced by, beside devices and sizes."""
        folding = self.model.folding
        return self.split, self.job.level, self.model.slices, None if folding is None else folding.laid

    @property
    def impossible(self) -> str | None:
        """Message why no plan can meet the constraints, or None; see `Constraints.impossible`."""
        return self.constraints.impossible(self.job.batch // min(self.sizes))

    def _check_micro_batches(self, count: int, kinds: list[DeviceKind]) -> None:
        """Refuse a number of micro-batches without costs for their size; the message names both."""
        size = self.job.batch // count
        try:
            for kind in kinds:
                self.prices.table(kind, size)
        except InputError as error:
            raise InputError(f"{count} micro-batches (micro_batches) hold {size} samples each: {error}") from error

    @property
    def deepest(self) -> int:
        """The most stages that an unreplicated pipeline can have."""
        most = min(len(self.cluster.devices), len(self.model.layers))
        return max((depth for depth in self.job.depths if depth <= most), default=0) if self.job.depths else most

    @property
    def unlike_rounds(self) -> bool:
        """Whether devices have several stages, and rounds of these are cut unlike."""
        return self.model.folding is not None and self.model.folding.laid.unlike

    @property
    def phased(self) -> bool:
        """Return True if all families except 1F1B run all forwards first."""
        return all(each.phases for each in self.families if not each.alternates)

    @property
    def schedules(self) -> tuple[str, ...]:
        """Names of the families."""
        chosen = [FREE] * self.free + [ANY] * self.any_order
        return (*(each.name for each in self.families), *chosen)

    @property
    def single_device_groups(self) -> StageDevices:
        """Device groups for partitioners: the deepest unreplicated pipeline on devices as listed; may be empty."""
        if self.job.replicas and 1 not in self.job.replicas:
            return ()
        return tuple((device,) for device in self.cluster.devices[: self.deepest])

    def device_groups(self, size: int) -> Iterator[tuple[StageDevices, int]]:
        """Yield all device groups for a micro-batch size, each with a cheap lower bound on the step (or bottleneck)."""
        for modes, bound in self.all_modes(size):
            yield from ((groups, bound) for groups in self.placing.of(modes))

    def all_modes(self, size: int) -> Iterator[tuple[Modes, int]]:
        """Yield every row of modes for a micro-batch size, each with that bound; not all can be placed."""
        bounds, kinds = self.lower_bounds(size), [each.kind.name for each in self.classes]
        for modes in self.rows(size):
            yield modes, bounds.of_stages((kinds[mode.device_class], mode.replicas) for mode in modes)

    def rows(self, size: int) -> Iterator[Modes]:
        """Yield every row of modes for a micro-batch size; not all can be placed."""
        every = all_modes(self.cluster, self.listed, len(self.model.layers), self.job.batch // size)
        return (modes for modes in every if not self.shares or any(mode.replicas > 1 for mode in modes))

    @cached_property
    def listed(self) -> Job:
        """The job whose numbers of replicas are listed: not all where many devices have several stages each."""
        if not self.evenly or 0 < len(self.job.replicas) <= MANY_UNITS:
            return self.job
        most = min(len(self.cluster.devices) // 2, self.job.batch // min(self.sizes))
        even = even_widths(max(each.per_node for each in self.classes), most)
        asked = tuple(r for r in even if not self.job.replicas or r in self.job.replicas)
        return changed(self.job, replicas=asked or self.job.replicas)

    @property
    def evenly(self) -> bool:
        """Whether devices have several stages each and are so many that not every number of replicas is listed."""
        return self.unfolding is not None and len(self.cluster.devices) > MANY_UNITS

    def all_groups(self, job: Job, micro_batches: int) -> Iterator[StageDevices]:
        """Yield all device groups that a job, this one or a part of it, allows for so many micro-batches.

        A stage has at most as many replicas as there are micro-batches, and at least one layer.
        """
        for modes in all_modes(self.cluster, job, len(self.model.layers), micro_batches):
            yield from self.placing.of(modes)

    @cached_property
    def placing(self) -> Placing:
        """The placements of stages that are searched."""
        pinned = self.constraints.pinned if self.job.order is Order.SEARCH else []
        pins = Pins.of(len(self.model.layers), pinned)
        placing = Placing(self.cluster, self.job, self.classes, pins if pinned else None)
        alike = not (pinned or placing.spread) or self.job.order is Order.GIVEN
        if alike or not (self.small or self.few):
            return placing
        few = placing.few(pins, self.job.batch // min(self.sizes), PLACEMENTS)
        return replace(placing, pins=pins, every=True) if few else placing

    def placed(self, modes: Modes, boundaries: Boundaries, tile: int | None = None) -> Iterator["Placed"]:
        """Yield the device groups of a row of modes that suit a partition, each with the space of its plans."""
        groups = self.placing.arranged(modes, tile)
        if groups is not None:
            yield self, self.placing.for_partition(groups, boundaries)

    def every_placed(self, modes: Modes, tile: int | None = None) -> Iterator["Placed"]:
        """Yield the device groups of a row of modes, one for each way to keep to the pins."""
        groups = self.placing.arranged(modes, tile)
        for own in () if groups is None else self.placing.with_pins(groups):
            yield self, own

    def with_mode(self, mode: Mode) -> Iterator["Space"]:  # noqa: ARG002
        """Yield the spaces in which a stage has a mode, if these divide the space."""
        yield self

    def chosen(self, size: int) -> tuple["Space", ...]:  # noqa: ARG002
        """The parts of the space in which plans are sought at a micro-batch size."""
        return (self,)

    @cached_property
    def classes(self) -> tuple[DeviceClass, ...]:
        """Classes of devices that are alike."""
        return device_classes(self.cluster)

    def lower_bounds(self, size: int) -> LowerBounds:
        """Cheap lower bounds for a micro-batch size."""
        if size not in self._lower_bounds:
            self._lower_bounds[size] = LowerBounds(self.prices, size, self.splits)
        return self._lower_bounds[size]

    @cached_property
    def few(self) -> bool:
        """True if there are at most `FEW` device groups, so that each is a node of its own."""
        return not self._more_than(FEW)

    @cached_property
    def small(self) -> bool:
        """True if there are at most `PAIRS` pairs of a shape and a partition, so that all of them are bounded."""
        cuts, found = int(self.constraints.cuts.sum()), 0
        count = self.job.batch // min(self.sizes)
        for modes in all_modes(self.cluster, self.job, len(self.model.layers), count):
            found += comb(cuts, len(modes) - 1) * len(self.sizes)
            if found > PAIRS:
                return False
        return True

    @cached_property
    def large(self) -> bool:
        """True if plans of heuristics take long to make or to simulate, or device groups are many."""
        devices = len(self.cluster.devices)
        long = devices * self.job.batch > LONG or devices * len(self.model.layers) > DEEP
        return long or (not self.small and self._more_than(MANY))

    def _more_than(self, most: int) -> bool:
        modes = all_modes(self.cluster, self.listed, len(self.model.layers), self.job.batch // self.sizes[0])
        return next(islice(modes, most, None), None) is not None

    def candidates(self, groups: StageDevices, size: int, free: bool = True) -> list[Candidate]:
        """The candidates of these device groups and micro-batch size, one per family.

        With ``free`` they include 1F1B with every vector of in-flight counts, if these are few.
        """
        return self.candidates_of(self.prices.chain(groups, size), free)

    def candidates_of(self, chain: Chain, free: bool = True) -> list[Candidate]:
        """The candidates of a chain that is priced already; see `candidates`."""
        groups, count = chain.groups, self.job.batch // chain.micro_batch
        where = self.constraints.where(groups)
        families = list(self.families)
        if free and self.free:
            taken = {each.in_flight(chain.replicas, count) for each in families if each.alternates}
            others = between(chain.replicas, count) or [FAMILIES[LEANEST]]  # many counts are searched in boxes
            families += [each for each in others if each.in_flight(chain.replicas, count) not in taken]
        if len(groups) == 1:
            families = self._leanest_of_each_lane(families, chain.replicas, count)
        shared: tuple[LinkResource, ...] = ()
        slower = None
        if self.job.objective.simulated and not self.job.staleness and not chain.turns:
            slower = slower_pairs(self.cluster, chain, count)
            shared = shared_link_loads(
                self.cluster, groups, count, lambda s, link: chain.passages * occupancies(link, chain.boundary[s])
            )
        halves = chain.in_halves if self.splits else chain
        how = self.job.objective, self.constraints.cuts, where, self.free, shared, slower
        return [
            Candidate(halves if each.splits else chain, count, each, *how, unfolding=self.unfolding)
            for each in families
        ]

    def _leanest_of_each_lane(self, families: list[Family], replicas: tuple[int, ...], count: int) -> list[Family]:
        """The families worth trying on a single stage: for each number of lanes the one that holds least.

        Actions of one lane take equally long in any order, so the fewest micro-batches in flight are best. On two lanes
        each action takes as long as both, and more bytes are needed. Split backwards have times of their own.
        """

        def holds(each: Family) -> tuple[int, bool]:
            return sum(in_flight(each, replicas, count, self.job.objective)), not each.alternates

        ways = product((False, True), repeat=2)
        lanes = ([each for each in families if (each.two_lanes, each.splits) == own] for own in ways)
        return [min(alike, key=holds) for alike in lanes if alike]


Placed = tuple[Space, StageDevices]
"""Device groups, and the space of their plans."""


def default_schedules(cluster: Cluster, job: Job) -> tuple[str, ...]:
    """The families that suit the cluster; for the bottleneck, where all orders are equal, the one that holds least."""
    suited = [each for each in FAMILIES.own.values() if cluster.overlap in each.suits]
    suited = [each for each in suited if each.alternates or not job.staleness]
    if job.objective is Objective.BOTTLENECK:
        replicas = (1,) * len(cluster.devices)
        return (min(suited, key=lambda each: sum(each.in_flight(replicas, 64))).name,)
    return (*(each.name for each in suited), *((FREE,) if cluster.overlap is Overlap.COPY else ()))


def _check_lanes(families: Iterable[Family], cluster: Cluster) -> None:
    """Refuse two lanes on devices that wait while they send: a contradiction, for which bounds do not hold."""
    for each in families:
        if each.two_lanes and cluster.overlap is Overlap.NONE:
            raise InputError(
                f"schedule {each.name!r} computes on two lanes at once, but the devices of {cluster.name!r} wait while "
                "they send (overlap: false); leave the schedule out, or set overlap to true or stream"
            )


def _sharded(model: Model, job: Job) -> Job:
    """Return the job for plans of the levels of ZeRO that share out gradients.

    All stages have equally many replicas, since those of a stage begin their passes together. Weights that layers share
    are gathered together, so they are on one stage.

    Raises
    ------
    InputError
        If the job excludes such plans.
    """
    job = changed(job, equal_replicas=True)
    if not model.ties:
        return job
    if job.depths and 1 not in job.depths:
        names = ", ".join(model.ties[0].layers)
        raise InputError(
            f"level {job.level} of ZeRO (zero) keeps layers that share weights ({names}) on one stage, and depths "
            "leave out plans of one stage; ask for level 1, or for depth 1"
        )
    return changed(job, depths=(1,))
