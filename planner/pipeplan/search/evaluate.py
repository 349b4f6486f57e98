"""Evaluation of plans by simulation, and estimates of the time that it takes.

The times to simulate a plan, and to write and check the result, grow with the number of actions: a plan of a million
micro-batches takes longer than a short search. Estimates are corrected by the machine's speed, measured on the way.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from pipeplan.core.cluster import Cluster, Overlap
from pipeplan.core.job import Objective
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.timeline import Timeline
from pipeplan.core.units import format_bytes
from pipeplan.costs.chain import UNLIMITED, Boundaries
from pipeplan.costs.pricing import assemble
from pipeplan.schedules.family import shares
from pipeplan.search.space.candidates import Candidate
from pipeplan.simulate import makespan, simulate

SECONDS_PER_ACTION = 3e-6
"""Estimated seconds per action before the first measurement."""
FINISH_FACTOR = 8.0
"""Time to finish a result (timeline, action lists, validation) as a multiple of its simulation time."""
LEAST_MEASURED = 2_000
"""Least actions of a simulation that counts as a measurement of the speed."""
MOST = 20_000_000
"""Most actions of a plan that is simulated: more need too much memory."""


@dataclass(frozen=True)
class EvaluatedPlan:
    """A partition of a candidate, with its value in nanoseconds."""

    cluster: Cluster
    candidate: Candidate
    boundaries: Boundaries
    value: int

    @property
    def label(self) -> str:
        """Description of the plan for users."""
        return self.candidate.label

    @cached_property
    def pipeline(self) -> Pipeline:
        """The pipeline of the plan."""
        return assemble(self.candidate.chain, self.cluster, self.boundaries, self.candidate.recompute(self.boundaries))

    @cached_property
    def schedule(self) -> Schedule:
        """The plan's action lists."""
        return self.candidate.schedule(self.pipeline)

    @cached_property
    def timeline(self) -> Timeline:
        """Timeline of one simulated step."""
        return simulate(self.schedule, self.pipeline)


def evaluate(cluster: Cluster, candidate: Candidate, boundaries: Boundaries) -> EvaluatedPlan:
    """Simulate the candidate's schedule on these boundaries, which must leave no stage empty.

    For the bottleneck objective the value is the largest stage load.
    """
    if candidate.objective is Objective.BOTTLENECK:
        return EvaluatedPlan(cluster, candidate, boundaries, largest_load(cluster, candidate, boundaries))
    pipeline = assemble(candidate.chain, cluster, boundaries, candidate.recompute(boundaries))
    return EvaluatedPlan(cluster, candidate, boundaries, makespan(candidate.schedule(pipeline), pipeline))


def peaks(evaluated: EvaluatedPlan) -> tuple[int, ...]:
    """Peak bytes of each device.

    GPipe and 1F1B run on one lane, where the order of a replica's list decides how many micro-batches it holds,
    whatever the times are. Their peaks need no timeline.
    """
    candidate = evaluated.candidate
    if not (candidate.family.alternates or candidate.family.phases):
        return evaluated.timeline.peaks
    pipeline, many = evaluated.pipeline, candidate.micro_batches
    most = candidate.family.in_flight(candidate.replicas, many)
    held = [(pipeline.stages[s], min(most[s], len(own))) for s, own in shares(candidate.replicas, many)]
    return tuple(
        runtime + stage.resident + count * stage.held + stage.workspace
        for runtime, (stage, count) in zip(pipeline.runtime, held, strict=True)
    )


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


def overflow(candidate: Candidate, boundaries: Boundaries) -> str | None:
    """Message that names the first stage that does not fit its memory limit; None if all fit."""
    chain = candidate.chain
    for s, (a, b) in enumerate(pairwise(boundaries)):  # first the static bytes, which no recomputation can reduce
        limit, fixed = int(chain.limit[s]), chain.stays(s, a, b) + int(chain.runtime[s])
        if limit != UNLIMITED and fixed > limit:
            what = "parameters, gradients and optimiser state alone"
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
    """Estimates of simulation times, from the measured speed of the machine."""

    def __init__(self) -> None:
        self._seconds = SECONDS_PER_ACTION

    def simulate(self, candidate: Candidate) -> float:
        """Estimated seconds to simulate a plan of the candidate."""
        return self._seconds * actions(candidate)

    def finish(self, candidate: Candidate) -> float:
        """Estimated seconds from the end of the search to the result, if a plan of this candidate is the result."""
        return FINISH_FACTOR * self.simulate(candidate)

    @contextmanager
    def simulating(self, candidate: Candidate) -> Iterator[None]:
        """Measure the time of a simulation."""
        began = time.monotonic()
        yield
        if actions(candidate) >= LEAST_MEASURED:
            seen = (time.monotonic() - began) / actions(candidate)
            self._seconds = (self._seconds + 3 * seen) / 4


def actions(candidate: Candidate) -> int:
    """Number of actions: a forward and a backward of each micro-batch on each stage."""
    return 2 * candidate.micro_batches * candidate.depth
