"""Plans valued by the simulator, and how long that takes.

Simulating a plan, and writing and checking the answer, take time by the number of actions: a plan of a million
micro-batches takes longer than a short search. The machine's speed, measured on the way, corrects the estimate.
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
from pipeplan.search.space.candidates import Candidate
from pipeplan.simulate import makespan, simulate

SIMULATED = 3e-6
"""Seconds for an action, before one was simulated."""
FINISHED = 8.0
"""How many times as long the answer takes: its time line, its lists, and their validation."""
KNOWN = 2_000
"""Fewer actions say little about the speed."""
MOST = 20_000_000
"""Actions for which there is memory."""


@dataclass(frozen=True)
class EvaluatedPlan:
    """A partition of a candidate with its value (nanoseconds)."""

    cluster: Cluster
    candidate: Candidate
    boundaries: Boundaries
    value: int

    @property
    def label(self) -> str:
        """For people."""
        return self.candidate.label

    @cached_property
    def pipeline(self) -> Pipeline:
        """What its schedule runs on."""
        return assemble(self.candidate.chain, self.cluster, self.boundaries, self.candidate.recompute(self.boundaries))

    @cached_property
    def schedule(self) -> Schedule:
        """Its lists of actions."""
        return self.candidate.schedule(self.pipeline)

    @cached_property
    def timeline(self) -> Timeline:
        """One step in full."""
        return simulate(self.schedule, self.pipeline)


def evaluate(cluster: Cluster, candidate: Candidate, boundaries: Boundaries) -> EvaluatedPlan:
    """Simulate the candidate's schedule on these boundaries, which leave no stage empty.

    For the bottleneck objective the value is the largest stage load.
    """
    if candidate.objective is Objective.BOTTLENECK:
        return EvaluatedPlan(cluster, candidate, boundaries, largest_load(cluster, candidate, boundaries))
    pipeline = assemble(candidate.chain, cluster, boundaries, candidate.recompute(boundaries))
    return EvaluatedPlan(cluster, candidate, boundaries, makespan(candidate.schedule(pipeline), pipeline))


def largest_load(cluster: Cluster, candidate: Candidate, boundaries: Boundaries) -> int:
    """The bottleneck of a partition without empty stages, in nanoseconds per sample.

    The partition problem knows what sums of tied weights take at least; here they take what they do.
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
    """Which stage does not fit, in words; None if all do."""
    chain = candidate.chain
    for s, (a, b) in enumerate(pairwise(boundaries)):  # at once what no recomputation can help
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
    """The speed of a search's machine."""

    def __init__(self) -> None:
        self._seconds = SIMULATED

    def simulate(self, candidate: Candidate) -> float:
        """Seconds that its simulation takes."""
        return self._seconds * actions(candidate)

    def finish(self, candidate: Candidate) -> float:
        """Seconds from the end of the search to the answer, if that is a plan of this candidate."""
        return FINISHED * self.simulate(candidate)

    @contextmanager
    def simulating(self, candidate: Candidate) -> Iterator[None]:
        """Measure what a simulation takes."""
        began = time.monotonic()
        yield
        if actions(candidate) >= KNOWN:
            seen = (time.monotonic() - began) / actions(candidate)
            self._seconds = (self._seconds + 3 * seen) / 4


def actions(candidate: Candidate) -> int:
    """A forward and a backward of each micro-batch on each stage."""
    return 2 * candidate.micro_batches * candidate.depth
