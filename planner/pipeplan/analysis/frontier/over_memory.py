"""Step time against memory: solve repeatedly with strictly less memory, until nothing fits.

::

    time │    ●                      each plan found (●) sets the next limit: one byte less than it needs
         │    └────●
         │         └───────●─────
         └────┴────┴───────┴───▶ memory of the fullest device

This is the ε-constraint method (Haimes, Lasdon, Wismer, 1971). With an optimal answer at each limit it visits every
non-dominated point. A lower bound proved for a limit holds for every smaller limit too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pipeplan.analysis.frontier.answers import Answer, Answers, Verdict
from pipeplan.analysis.frontier.curve import Floor, Point, memory_of, point
from pipeplan.analysis.frontier.subsets import kind_counts
from pipeplan_formulations.common.bisection import least


@dataclass(frozen=True)
class Visit:
    """Answer for a limit of ``limit`` bytes per device (None: all memory of the device)."""

    limit: int | None
    answer: Answer


def sweep(answers: Answers) -> Iterator[Visit]:
    """Yield every relevant limit with its answer, from no limit down to the first at which nothing fits."""
    limit = answers.job.memory
    while True:
        visit = _visit(answers, limit)
        yield visit
        if visit.answer.plan is None or memory_of(visit.answer.plan) == 0:
            return
        limit = memory_of(visit.answer.plan) - 1


def sample(answers: Answers, count: int) -> Iterator[Visit]:
    """Yield ``count`` limits with their answers: no limit, the least that fits, then the middles of unsolved ranges.

    The next range is the one with the largest product of its bytes and the difference of the two plans' times.
    """
    first = _visit(answers, answers.job.memory)
    yield first
    if first.answer.plan is None or count < 2:
        return
    # no limit first, then the least memory that fits and the largest that does not
    most = memory_of(first.answer.plan)

    def fits(limit: int) -> tuple[bool | None, int]:
        answer = answers.any(str(limit), answers.cluster, replace(answers.job, memory=limit))
        if answer.plan is None:
            return (False if answer.verdict is Verdict.INFEASIBLE else None), limit
        return True, memory_of(answer.plan)

    found = least(fits, -1, most)
    visits = [first]
    for limit in (found.number, *([found.excluded] if found.excluded >= 0 else [])):
        visits.append(_visit(answers, limit))
        yield visits[-1]
    # then the middle of the unsolved range with the largest product of bytes and time
    for _ in range(count - 2):
        untouched = unsolved_ranges(visits)
        if not untouched:
            break
        low, high, _ = max(untouched, key=lambda gap: (gap[1] - gap[0] + 1) * gap[2])
        visits.append(_visit(answers, (low + high) // 2))
        yield visits[-1]
        visits.sort(key=lambda visit: -visit.limit if visit.limit is not None else -most - 1)


def unsolved_ranges(visits: Sequence[Visit]) -> list[tuple[int, int, int]]:
    """Unsolved ranges of limits: lowest byte, highest byte, and nanoseconds between the plans on both sides."""
    found = []
    for above, below in pairwise(visits):
        if above.answer.plan is None or below.limit is None:
            continue
        low, high = below.limit + 1, memory_of(above.answer.plan) - 1
        time = below.answer.value - above.answer.value if below.answer.plan is not None else above.answer.value
        if low <= high:
            found.append((low, high, max(time, 0)))
    return found


def read(answers: Answers, visits: Sequence[Visit]) -> tuple[tuple[Point, ...], tuple[Floor, ...]]:
    """All points and lower bounds of the visits, which come with the largest limit first."""
    counts = kind_counts(answers.cluster)
    points, floors, bound = [], [], 0
    for visit, after in zip(visits, [*visits[1:], None], strict=True):
        plan = visit.answer.plan
        below = 0 if after is None or after.limit is None else after.limit + 1
        if visit.answer.verdict is Verdict.INFEASIBLE:
            floors.append(Floor(below, None))
            continue
        bound = max(bound, visit.answer.bound)  # a bound for more memory holds for less memory too
        if floors and floors[-1].bound == bound:
            floors.pop()
        floors.append(Floor(below, bound))
        if plan is not None:
            points.append(point(memory_of(plan), visit.answer, bound, plan, counts))
    return tuple(points), tuple(reversed(floors))


def _visit(answers: Answers, limit: int | None) -> Visit:
    key = "no limit" if limit is None else str(limit)
    return Visit(limit, answers.best(key, answers.cluster, replace(answers.job, memory=limit)))
