"""Evaluation of plans, and estimates of the time that it takes.

The value of a plan is its simulated step time, or its period in a long run. For GPipe and 1F1B it is found without
action lists, in a fraction of the time (`pipeplan.simulate.recurrence`). The plan that is returned is simulated
in full.

The times to simulate a plan, and to write and check the result, grow with the number of actions: a plan of a million
micro-batches takes longer than a short search. Estimates are corrected by the machine's speed, measured on the way.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from math import gcd

from pipeplan.core.cluster import Cluster, Overlap
from pipeplan.core.job import Objective
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.priority import Priority
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.timeline import Timeline
from pipeplan.core.units import format_bytes
from pipeplan.core.validate.memory import peak_of_list, peaks_of_lists
from pipeplan.costs.assembly import assemble
from pipeplan.costs.chain import UNLIMITED, Boundaries
from pipeplan.schedules import FAMILIES
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.candidates import Candidate
from pipeplan.simulate import makespan, period, recurrence, rolling_period, simulate
from pipeplan.simulate.islands import longest_makespan, longest_of_lanes
from pipeplan.simulate.rolling import BATCHES

SECONDS_PER_ACTION = 3e-6
"""Estimated seconds to simulate an action of a plan that is too small to measure the machine's speed for it."""
SHARE_OF_RECURRENCE = 0.25
"""Time to find a step time without action lists, as a share of that of a simulation, where transfers share links."""
FINISH = 12.0
"""Time to write, compare and check the action lists of a result, as a multiple of its simulation time: of replicas
whose lists are alike those of one."""
ISLAND = 16
"""About as many devices are simulated of each stage, where several are on the same ones: two islands of a node's."""
LEAST_MEASURED = 20_000
"""Least actions of a plan for which the machine's speed is measured."""
SAMPLED = 250
"""Micro-batches of the pipeline that is simulated to measure it."""
MOST = REGIMES.simulated_actions.most
"""Most actions of a plan that is simulated: more need too much memory."""


@dataclass(frozen=True)
class EvaluatedPlan:
    """A partition of a candidate, with its value in nanoseconds.

    ``priority``: for each stage its sums, front layers first, where they run so.
    """

    cluster: Cluster
    candidate: Candidate
    boundaries: Boundaries
    value: int
    priority: tuple[Priority, ...] = ()

    @property
    def label(self) -> str:
        """Description of the plan for users."""
        return self.candidate.label

    @cached_property
    def pipeline(self) -> Pipeline:
        """The pipeline of the plan."""
        candidate = self.candidate
        again = candidate.recompute(self.boundaries)
        own = assemble(candidate.chain, self.cluster, self.boundaries, again, placement=candidate.placement)
        if not self.priority:
            return own
        from pipeplan.costs.front_first import beside  # few plans need it

        return beside(own, candidate.chain, self.boundaries, [each.exposed for each in self.priority])

    @cached_property
    def schedule(self) -> Schedule:
        """The plan's action lists."""
        return self.candidate.schedule(self.pipeline)

    @cached_property
    def timeline(self) -> Timeline:
        """Timeline of one simulated step."""
        return simulate(self.schedule, self.pipeline)

    def check(self) -> None:
        """Compare the value with that of the action lists."""
        objective = self.candidate.objective
        if not objective.simulated:
            return
        find = _period(self.candidate) if objective is Objective.PERIOD else longest_makespan
        simulated = find(self.schedule, self.pipeline)
        if simulated != self.value:
            raise AssertionError(
                f"{self.label}: the simulated {objective} takes {simulated} ns, the search counted {self.value} ns; "
                "this is an error in pipeplan.simulate.recurrence"
            )


def evaluate(cluster: Cluster, candidate: Candidate, boundaries: Boundaries) -> EvaluatedPlan:
    """Return the plan of the candidate with these boundaries, which must leave no stage empty, and its value.

    For the bottleneck objective the value is the largest stage load.

    A candidate of super layers stands for the plan of its stages.
    """
    candidate, boundaries = candidate.unfolded(boundaries)
    return EvaluatedPlan(cluster, candidate, boundaries, _value(cluster, candidate, boundaries))


def _value(cluster: Cluster, candidate: Candidate, boundaries: Boundaries) -> int:
    if candidate.objective is Objective.BOTTLENECK:
        return largest_load(cluster, candidate, boundaries)
    again = candidate.recompute(boundaries)
    pipeline = assemble(candidate.chain, cluster, boundaries, again, placement=candidate.placement)
    if candidate.placement and sums_with_itself(pipeline) is not None:
        return UNLIMITED
    long_run = candidate.objective is Objective.PERIOD
    if follows_recurrence(candidate):
        find = recurrence.period if long_run else recurrence.step_time
        return find(pipeline, candidate.micro_batches, candidate.in_flight)
    if candidate.placement and not long_run:
        return longest_of_lanes(partial(candidate.lists, pipeline), pipeline, candidate.micro_batches)
    return (_period(candidate) if long_run else makespan)(candidate.schedule(pipeline), pipeline)


def _period(candidate: Candidate) -> Callable[[Schedule, Pipeline], int]:
    """The period of a long run, with updates between its steps or gradients that are one step late."""
    return rolling_period if candidate.chain.staleness else period


def least_value(cluster: Cluster, candidate: Candidate, boundaries: Boundaries) -> int:
    """Return a lower bound in nanoseconds on the plan's value, mostly equal or very close to it, to rank plans.

    For GPipe and 1F1B it is the step in which no transfer waits for another pair of replicas. Other families have the
    bound of their partition problem.
    """
    if candidate.objective is Objective.BOTTLENECK or not follows_recurrence(candidate):
        return candidate.problem.evaluate(boundaries)
    pipeline = assemble(candidate.chain, cluster, boundaries, candidate.recompute(boundaries))
    find = recurrence.least_period if candidate.objective is Objective.PERIOD else recurrence.least_step_time
    return find(pipeline, candidate.micro_batches, candidate.in_flight)


def follows_recurrence(candidate: Candidate) -> bool:
    """Return True if `pipeplan.simulate.recurrence` covers the schedule: GPipe, 1F1B, a stage per device, no slices."""
    ordered = candidate.family.alternates or candidate.family.phases
    chain = candidate.chain
    return ordered and not candidate.placement and chain.slices == 1 and not chain.staleness


def peaks(evaluated: EvaluatedPlan) -> tuple[int, ...]:
    """Peak bytes of each device, without a timeline for GPipe and 1F1B."""
    candidate = evaluated.candidate
    if not follows_recurrence(candidate):
        return evaluated.timeline.peaks
    most = candidate.family.in_flight(candidate.replicas, candidate.micro_batches)
    return recurrence.peaks(evaluated.pipeline, candidate.micro_batches, most)


def largest_load(cluster: Cluster, candidate: Candidate, boundaries: Boundaries) -> int:
    """The bottleneck of a partition without empty stages, in nanoseconds per sample.

    The partition problem has lower bounds on the reductions of tied weights; here their actual times count.
    """
    value, chain = candidate.problem.evaluate(boundaries), candidate.chain
    if not chain.shared:
        return value
    pipeline, many = assemble(chain, cluster, boundaries, candidate.recompute(boundaries)), candidate.micro_batches
    sends = [0, *(int(chain.send[s, b - 1]) for s, b in enumerate(boundaries[1:-1])), 0]
    for s, stage in enumerate(pipeline.stages):
        waits = sends[s] + sends[s + 1] if chain.overlap is Overlap.NONE else 0
        step = -(-many // candidate.replicas[s]) * (stage.total(Kind.FORWARD, Kind.BACKWARD) + waits) + stage.reduce
        value = max(value, -(-step // candidate.samples))
    return value


def sums_with_itself(pipeline: Pipeline) -> tuple[int, ...] | None:
    """Return stages whose sums are one collective although some are on the same ranks, which cannot run it; or None.

    Weights that stages on the same ranks share are kept once; but other stages may share some with each of these.
    """
    homes = pipeline.placement
    return next((own for own in pipeline.tied if len({homes[stage] for stage in own}) < len(own)), None)


def overfull(evaluated: EvaluatedPlan) -> Iterator[tuple[int, int, int]]:
    """Yield each rank that does not hold all its stages at once, the bytes that it needs by its list, and its limit."""
    limits, needs = evaluated.pipeline.limits, peaks_of_lists(evaluated.schedule, evaluated.pipeline)
    yield from ((rank, *both) for rank, both in enumerate(zip(needs, limits, strict=True)) if both[0] > both[1])


def overfull_in_lanes(evaluated: EvaluatedPlan) -> Iterator[tuple[int, int, int]]:
    """The same of equal replicas that do not exchange tensors: of those with most micro-batches, and with fewest."""
    pipeline, candidate = evaluated.pipeline, evaluated.candidate
    replicas, many = candidate.replicas[0], candidate.micro_batches
    for lane in sorted({0, many % replicas}):  # those before it have a micro-batch more
        schedule = candidate.lists(pipeline, 1, len(range(lane, many, replicas)))
        for order, rank in zip(schedule.orders, sorted({own[lane] for own in pipeline.placement}), strict=True):
            needed, limit = peak_of_list(order, rank, pipeline, schedule.two_lanes), pipeline.limits[rank]
            if needed > limit:
                yield rank, needed, limit


def overflow(candidate: Candidate, boundaries: Boundaries) -> str | None:
    """Message that names the first stage that does not fit its memory limit; None if all fit."""
    chain = candidate.chain
    for s, (a, b) in enumerate(pairwise(boundaries)):  # first the static bytes, which no recomputation can reduce
        limit, fixed = int(chain.limit[s]), chain.stays(s, a, b) + int(chain.runtime[s])
        if limit != UNLIMITED and fixed > limit:
            what = f"parameters, {'frozen weights, ' * bool(chain.frozen.any())}gradients and optimiser state alone"
            return f"stage {s} needs {format_bytes(fixed)} of {format_bytes(limit)} for {what}"
    if candidate.holds(boundaries):
        return None
    needs = [need + int(chain.runtime[s]) for s, need in enumerate(candidate.problem.memory(boundaries))]
    s = next(s for s, need in enumerate(needs) if need > int(chain.limit[s]))
    return (
        f"stage {s} needs {format_bytes(needs[s])} of {format_bytes(int(chain.limit[s]))} "
        f"({candidate.in_flight[s]} in flight)"
    )


class Pace:
    """Estimates of times to evaluate and to finish plans, from the measured speed of the machine."""

    @cached_property
    def _seconds(self) -> float:
        """Measured seconds to simulate an action."""
        schedule = FAMILIES["1f1b-sno"].write((1,) * 4, SAMPLED)
        links = ((Transfer(),),) * 3
        pipeline = Pipeline(
            (Stage(2, 3),) * 4, ((0,), (1,), (2,), (3,)), links, links, Overlap.COPY, (0,) * 4, (UNLIMITED,) * 4
        )
        began = time.monotonic()
        makespan(schedule, pipeline)
        return (time.monotonic() - began) / (8 * SAMPLED)

    def _takes(self, count: float) -> float:
        """Estimated seconds to simulate so many actions."""
        return count * (self._seconds if count >= LEAST_MEASURED else SECONDS_PER_ACTION)

    def simulate(self, candidate: Candidate) -> float:
        """Estimated seconds to evaluate a plan of the candidate."""
        share = SHARE_OF_RECURRENCE if follows_recurrence(candidate) else 1.0
        return share * self._takes(simulated_actions(candidate))

    def largest(self, micro_batches: int, stages: int) -> float:
        """Estimated seconds to evaluate a plan of GPipe or 1F1B with so many micro-batches and stages."""
        return SHARE_OF_RECURRENCE * SECONDS_PER_ACTION * 2 * micro_batches * stages

    def finish(self, candidate: Candidate) -> float:
        """Estimated seconds from the end of the search to the result, if a plan of this candidate is the result."""
        alike = gcd(*candidate.replicas, candidate.micro_batches)
        return FINISH * self._takes(actions(candidate) / alike)

    @contextmanager
    def simulating(self, candidate: Candidate) -> Iterator[None]:
        """Measure the time of an evaluation, if that is a simulation for certain."""
        began = time.monotonic()
        yield
        count = actions(candidate)
        if count >= LEAST_MEASURED and not follows_recurrence(candidate) and simulated_actions(candidate) == count:
            seen = (time.monotonic() - began) / count
            self._seconds = (self._seconds + 3 * seen) / 4


def small_enough(candidate: Candidate) -> bool:
    """Return True if a plan of the candidate is no larger than what is simulated at all."""
    return actions(candidate) <= MOST


def simulated_actions(candidate: Candidate) -> float:
    """About how many actions are simulated: where islands are alike, those of a few."""
    if candidate.laid is None:
        return actions(candidate)
    devices = candidate.chain.groups[0][0].kind.team * candidate.replicas[0]
    return min(ISLAND / devices, 1.0) * actions(candidate)


def actions(candidate: Candidate) -> int:
    """Number of actions of a plan: a forward and a backward of each micro-batch on each stage."""
    batches = BATCHES if candidate.chain.staleness else 1
    rounds = candidate.chain.rounds if candidate.unfolding is not None else 1
    return 2 * candidate.micro_batches * candidate.chain.slices * candidate.depth * rounds * batches
