"""The objective of a partition: the largest right side of the bottleneck, or of the bounds of a step."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.objective import Objective, endless
from pipeplan_formulations.common.pass_times import ROLES, Role, Times
from pipeplan_formulations.partition.parts import LinkResource, PathCut
from pipeplan_formulations.partition.tables import Boundaries, PartitionTables
from pipeplan_formulations.partition.terms import Counts, Number, Overlap, ahead, behind, delays, in_all, load

Nanoseconds = TypeVar("Nanoseconds", int, NDArray[np.int64])


def value(problem: PartitionTables, boundaries: Boundaries, recomputing: Array) -> int:
    """The least T, with ``recomputing[s]`` more time in each backward of stage s."""
    return int(_value(problem, Sums.of_one(problem, np.array(boundaries), recomputing), max))


def values(problem: "Terms", sums: "Sums") -> Array:
    """The least T of each partition of ``sums``, as an array."""
    found: Array = _value(problem, sums, lambda *each: np.maximum.reduce(np.broadcast_arrays(*each)))
    return found


class Terms(Protocol):
    """The parts of a problem that the objective needs beside `Sums`; counts and latencies may be arrays, too."""

    @property
    def overlap(self) -> Overlap:
        """Overlap of computation with sends."""
        ...

    @property
    def objective(self) -> Objective:
        """Which T is minimised."""
        ...

    @property
    def divisor(self) -> int:
        """Samples of a step."""
        ...

    @property
    def through(self) -> Sequence[Counts]:
        """Micro-batch counts of each stage."""
        ...

    @property
    def ends_together(self) -> bool:
        """True if the larger of E_0 and E_{S−1} takes the place of E_0."""
        ...

    @property
    def latency(self) -> Any:
        """Latency of each link."""
        ...

    @property
    def resources(self) -> tuple[LinkResource, ...]:
        """Link resources with bounds of their own."""
        ...

    @property
    def paths(self) -> tuple[PathCut, ...]:
        """Path cuts."""
        ...


class RoleSums(NamedTuple):
    """F, B and V of each stage in a role (`common.pass_times`)."""

    forward: Sequence[Number]
    backward: Sequence[Number]
    weight: Sequence[Number]

    def of_stage(self, stage: int) -> Times:
        """F and B of a stage."""
        return Times(self.forward[stage], self.backward[stage])


class Sums(NamedTuple):
    """Sums over the layers of each stage, and entries of the cut of each link, of one partition or of m.

    Each number is an int, or an array of shape (m,). ``cut`` has the cut of each link. ``behind`` is what the last
    slice takes behind each stage, of slices. ``ahead``, ``trip`` and ``service`` are None if ``forward``, ``backward``
    and ``weight`` serve for that role too.
    """

    forward: Sequence[Number]
    backward: Sequence[Number]
    update: Sequence[Number]
    weight: Sequence[Number]
    reduce: Sequence[Number]
    send: Sequence[Number]
    back: Sequence[Number]
    link: Sequence[Number]
    cut: Sequence[Number]
    ahead: RoleSums | None = None
    trip: RoleSums | None = None
    service: RoleSums | None = None
    behind: Sequence[Number] | None = None

    @property
    def own(self) -> RoleSums:
        """The device's own F, B and V."""
        return RoleSums(self.forward, self.backward, self.weight)

    @staticmethod
    def of_one(problem: PartitionTables, edges: Array, recomputing: Array) -> "Sums":
        """Sums of the partition with the boundaries ``edges``."""
        return _sums(problem, edges, recomputing, lambda row: row.tolist())

    @staticmethod
    def of_many(problem: PartitionTables, edges: Array, recomputing: Array) -> "Sums":
        """Sums of m partitions: ``edges`` has shape (m, S + 1), ``recomputing`` (m, S)."""
        return _sums(problem, edges, recomputing, lambda row: list(np.ascontiguousarray(row.T)))

    def entry(self, link: int, row: Array | tuple[int, ...]) -> Number:
        """The entry of the row for the cut at which the link lies."""
        cut = self.cut[link]
        return int(row[cut]) if isinstance(cut, int) else np.asarray(row)[cut]

    def length(self, path: PathCut) -> Number:
        """Right side of a path cut."""
        return path.length(self.forward, self.backward, self.update, self.reduce, self.send, self.back, self.entry)


def _sums(
    problem: PartitionTables, edges: Array, recomputing: Array, listed: Callable[[Array], Sequence[Number]]
) -> Sums:
    """The sums, each array of stages or links turned into a sequence by ``listed``."""
    s, a, b = np.arange(problem.stages), edges[..., :-1], edges[..., 1:]
    links, cut = s[:-1], b[..., :-1] - 1
    forward, backward, update, weight = (
        problem.prefix[name][s, b] - problem.prefix[name][s, a] for name in ("forward", "backward", "update", "weight")
    )
    update = update + copies_update(problem, s, a, b)
    backward = backward + recomputing
    roles: dict[Role, RoleSums] = {}
    for role in ROLES if problem.has_roles else ():
        times = problem.times(role, Times(forward, backward), s, a, b)
        roles[role] = RoleSums(*map(listed, (*times, problem.weight_of(role, weight, s, a, b))))
    return Sums(
        forward=listed(forward),
        backward=listed(backward),
        update=listed(update),
        weight=listed(weight),
        reduce=listed(reductions(problem, s, a, b)),
        send=listed(problem.send[links, cut]),
        back=listed(problem.send_back[links, cut]),
        link=listed(problem.link[links, cut]),
        cut=listed(cut),
        ahead=roles.get("ahead"),
        trip=roles.get("trip"),
        service=roles.get("service"),
        behind=None if problem.late_behind is None else listed(problem.late_behind[b]),
    )


def _value(problem: Terms, sums: Sums, largest: Callable[..., Number]) -> Number:
    """The least T; ``largest`` is the maximum of numbers, or of arrays."""
    weight, reduce, send, back, link = sums.weight, sums.reduce, sums.send, sums.back, sums.link
    out, into = [*send, 0], [0, *back]
    loads = [load(problem.overlap, *times) for times in zip(sums.forward, sums.backward, out, into, strict=True)]
    if endless(problem.objective):
        delayed = problem.objective == "delayed"
        rows = zip(problem.through, loads, sums.update if delayed else reduce, strict=True)
        shares = [*(stage_per_sample(problem, c.stage, w, once) for c, w, once in rows), *(reduce if delayed else [])]
        busy = [link_per_sample(problem, c.out, x) for c, x in zip(problem.through, link, strict=False)]
        return largest(*shares, *(busy if problem.overlap != "none" else []), 0)

    # Way back and own ending: ``head`` is H_s with E_0 (and V_0), ``slack`` what the latter does without: E_0 + Σ q_t.
    own = sums.own
    way, trip, service = sums.ahead or own, sums.trip or own, sums.service or own
    endings = [u + r for u, r in zip(sums.update, reduce, strict=True)]
    if problem.ends_together:
        endings[0] = largest(endings[0], endings[-1])
    head = slack = passed = endings[0] + way.weight[0]
    least: list[Number] = []
    latencies = [*problem.latency]
    for t, (count, work) in enumerate(zip(problem.through, loads, strict=True)):
        spared = slack if problem.objective == "step" else head  # in a long run own ending is about the stage alone
        through = None if sums.behind is None else sums.behind[t]
        least += (
            head + busy + largest(0, endings[t] + many * weight[t] - spared)
            for busy, many in in_all(count.stage, work, own.of_stage(t), through)
        )
        latency = latencies[t] if t < len(link) else 0
        returned = back[t] if t < len(link) else 0
        later = behind(problem.overlap, way.backward[t], latency, into[t], returned)
        head = head + ahead(problem.overlap, way.forward[t], latency, out[t]) + later
        slack = slack + later
        if trip is not way:
            passed = passed + ahead(problem.overlap, trip.forward[t], latency, out[t])
            passed = passed + behind(problem.overlap, trip.backward[t], latency, into[t], returned)
    # Services, warm-up and link resources: ``passed`` is R.
    passed = head if trip is way else passed
    hops = [Hop(*times) for times in zip([0, *out], [*into, 0], [0, *latencies, 0], strict=True)]
    longest: list[Number] = []
    for t, count in enumerate(problem.through):
        through = served = trip.of_stage(t)
        longer = None
        if trip is not own:
            longer = own.of_stage(t).work - through.work
        if service is not trip:
            served = service.of_stage(t)
        longest += delays(problem.overlap, count, served, through, longer, out[t], into[t], service.weight[t])
        longest += delays_of_resources(problem, t, through, hops[t], hops[t + 1], sums.entry)
    # Path cuts.
    return largest(*least, passed + largest(*longest), *map(sums.length, problem.paths))


def link_per_sample(problem: Terms, count: int, time: Nanoseconds) -> Nanoseconds:
    """Load of a link that carries ``count`` micro-batches per step: its busy time per sample, rounded down."""
    return count * time // problem.divisor


def stage_per_sample(problem: Terms, count: int, time: Nanoseconds, once: Nanoseconds) -> Nanoseconds:
    """Load of a stage with ``count`` micro-batches and the time ``once`` per step: its busy time per sample."""
    return -(-(count * time + once) // problem.divisor)


def reductions(problem: PartitionTables, s: Array, a: Array, b: Array) -> Array:
    """R_s of the stages s on layers a … b − 1; arrays that broadcast."""
    result = problem.collectives((s,), a, b)
    for tie in problem.ties:
        result = result + np.array(tie.reduce)[s] * tie.has_copy(a, b) + np.array(tie.home)[s] * tie.is_home(a, b)
    return result


def copies_update(problem: PartitionTables, s: Array, a: Array, b: Array) -> Array:
    """Contribution of copies of tied weights to U_s, for stages s on layers a … b − 1; arrays that broadcast."""
    result: Array = np.zeros(np.broadcast_shapes(s.shape, a.shape, b.shape), np.int64)
    for tie in problem.ties:
        result = result + np.array(tie.update)[s] * tie.has_copy(a, b)
    return result


class Hop(NamedTuple):
    """f, g and l of a link."""

    send: Number
    send_back: Number
    latency: Number


def delays_of_resources(
    problem: Terms,
    stage: int,
    trip: Times,
    into: Hop,
    out: Hop,
    busy: Callable[[int, Array], Number],
) -> Iterator[Number]:
    """The delays e of the link-resource bound, one for each link resource of the stage.

    Parameters
    ----------
    trip : Times
        F and B of the stage's part of R.
    into, out : Hop
        The links before and behind the stage; zeros beyond the ends.
    busy : callable
        ``busy(link, row)``: the entry of the row for the cut at which the link lies.
    """
    for resource in problem.resources:
        if resource.stage != stage:
            continue
        total = busy(resource.link, resource.busy)
        if resource.beyond is not None:
            total = total + busy(resource.link + 1, resource.beyond)
        yield total - _alone(problem.overlap, resource, trip.backward if resource.back else trip.forward, into, out)


def _alone(overlap: Overlap, resource: LinkResource, action: Number, into: Hop, out: Hop) -> Number:
    """The part of R from the start of the resource's first transfer to the end of its last, for one micro-batch."""
    if overlap == "stream":
        return action
    if resource.beyond is None:
        return into.send_back if resource.back else out.send
    if resource.back:
        return out.send_back + out.latency + action + into.send_back
    return into.send + into.latency + action + out.send
