"""The plan that is best where times vary, and what it was compared with."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

from pipeplan.pipeline import Pipeline
from pipeplan.robust.contenders import distinct, relatives
from pipeplan.robust.factors import BLOCK
from pipeplan.robust.order import alone_on_wires
from pipeplan.robust.question import Robust
from pipeplan.robust.sample import step_times
from pipeplan.robust.statistics import Estimate, mean, quantile
from pipeplan.robust.times import Ints
from pipeplan.schedule import Schedule
from pipeplan.search.judge import Judged
from pipeplan.search.space import Space
from pipeplan.simulate.program import number

MOST = 24
"""Plans that are compared: of more, the fastest undisturbed."""
FEWEST = 3
"""As many are, however long that takes."""
EVENTS = 20_000_000
"""Actions that may be run one by one, over all plans and samples: about half a minute."""


@dataclass(frozen=True)
class Row:
    """One plan that was compared, in nanoseconds.

    Attributes
    ----------
    judged : Judged
        ``judged.value`` is the undisturbed step.
    mean, quantile : Estimate
        Of its disturbed steps.
    behind : Estimate
        By how much its mean lies above that of the chosen plan; both met the same disturbances.
    """

    judged: Judged
    mean: Estimate
    quantile: Estimate
    behind: Estimate

    @property
    def value(self) -> int:
        """The undisturbed step."""
        return self.judged.value


@dataclass(frozen=True)
class Choice:
    """What was compared, the best first.

    Attributes
    ----------
    question : Robust
    samples : int
    seed : int
    rows : tuple of Row
        The first one is chosen.
    limit : float
        Nanoseconds: plans that take more undisturbed were not compared; it is what the fastest undisturbed one takes
        disturbed (its mean or quantile).
    more : int
        Plans that keep the limit and were left out all the same, as there were too many.
    mean_bound : int or None
        Nanoseconds that no plan of the searched space takes less than on average, if that is proved.

    Raises
    ------
    ValueError
        If there is no plan.
    """

    question: Robust
    samples: int
    seed: int
    rows: tuple[Row, ...]
    limit: float
    more: int
    mean_bound: int | None

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("a robust choice compares one plan at least")

    @property
    def chosen(self) -> Judged:
        """The best plan."""
        return self.rows[0].judged

    @property
    def undisturbed(self) -> Row:
        """The plan that would be chosen if nothing varied."""
        return min(self.rows, key=lambda row: row.value)


def choose(
    space: Space, best: Judged, tried: Iterable[Judged], bound: int, question: Robust, seed: int
) -> Choice | None:
    """Compare plans under the same disturbances; None if the first one was interrupted.

    Parameters
    ----------
    best : Judged
        The fastest plan if nothing varies.
    tried : iterable of Judged
        All others that are known.
    bound : int
        Nanoseconds: no plan of the space takes less undisturbed.
    """
    rows: list[tuple[Judged, Ints]] = []
    limit, more = float(best.value), 0
    samples, most = _room(best, question)
    try:
        rows.append((best, _steps(best, question, samples, seed)))
        limit = max(limit, _objective(rows[0][1], question))
        known = distinct([best, *tried])
        every = distinct([*known, *relatives(space, known, limit)])
        others = [plan for plan in every if plan is not best and plan.value <= limit]
        more = max(len(others) - (most - 1), 0)
        for plan in others[: most - 1]:
            rows.append((plan, _steps(plan, question, samples, seed)))
    except KeyboardInterrupt:  # what has been compared counts
        if not rows:
            return None
    rows.sort(key=lambda row: (_objective(row[1], question), row[0].value))
    return Choice(
        question=question,
        samples=samples,
        seed=seed,
        rows=tuple(_row(plan, steps, rows[0][1], question) for plan, steps in rows),
        limit=limit,
        more=more,
        mean_bound=bound if own_wires(space) else None,
    )


def own_wires(space: Space) -> bool:
    """Whether no plan of the space has transfers that share a wire.

    Within a node every pair of devices has its own. Two devices have no others that could share their cards.
    """
    return len(space.cluster.nodes) == 1 or len(space.cluster.devices) <= 2


def _steps(plan: Judged, question: Robust, samples: int, seed: int) -> Ints:
    names = [device.index for device in plan.candidate.chain.devices]
    schedule, pipeline = _lists(plan)
    return step_times(schedule, pipeline, question, samples=samples, seed=seed, devices=names)


def _lists(plan: Judged) -> tuple[Schedule, Pipeline]:
    return plan.candidate.schedule(plan.pipeline), plan.pipeline


def _objective(steps: Ints, question: Robust) -> float:
    return (mean(steps) if question.quantile is None else quantile(steps, question.quantile)).value


def _row(plan: Judged, steps: Ints, chosen: Ints, question: Robust) -> Row:
    apart = steps - chosen
    behind = Estimate(float(apart.mean()), float(apart.std(ddof=1)) / sqrt(len(apart)))
    return Row(plan, mean(steps), quantile(steps, question.shown), behind)


def _room(plan: Judged, question: Robust) -> tuple[int, int]:
    """Samples, and the most plans: fewer of both where every step of a plan like this one is run by itself."""
    program = number(*_lists(plan), True)
    if alone_on_wires(program):
        return question.wanted, MOST
    steps = EVENTS // max(len(program.actions), 1)
    samples = question.wanted
    if question.samples is None:
        affordable = steps // MOST // BLOCK * BLOCK
        samples = min(samples, max(affordable, question.least_samples))
    return samples, min(MOST, max(FEWEST, steps // samples))
