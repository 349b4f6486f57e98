"""The least period of so many micro-batches: from a bound upwards until there is a pattern, then bisection between."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.schedule.cyclic.compact import compact
from pipeplan_formulations.schedule.cyclic.holding import period_bound
from pipeplan_formulations.schedule.cyclic.modulo import Aim, Found, modulo
from pipeplan_formulations.schedule.cyclic.pattern import Pattern
from pipeplan_formulations.schedule.instance import PipelineSchedule

SHARE = 1 / 4
"""Part of the time left that one period may use."""
FIRST_RISE = 1 / 256
"""The second period tried is so much above the bound; the rise doubles until there is a pattern."""


@dataclass(frozen=True)
class LeastPeriod:
    """The answer for one unit.

    Attributes
    ----------
    unit : int
    bound : int
        No pattern of this unit has a smaller period.
    any_unit : int
        No ``unit`` micro-batches of an endless schedule take less on average, whatever its own unit.
    pattern : Pattern or None
        The best one found; None if the problem is impossible or time was too short.
    """

    unit: int
    bound: int
    any_unit: int
    pattern: Pattern | None

    @property
    def proved(self) -> bool:
        """Whether no smaller period exists for this unit."""
        return self.pattern is not None and self.pattern.period <= self.bound


def least_period(
    problem: PipelineSchedule,
    unit: int,
    limits: Limits,
    hint: Pattern | None = None,
    told: Callable[[LeastPeriod], None] | None = None,
    below: int | None = None,
) -> LeastPeriod:
    """A pattern of ``unit`` micro-batches with the least period, to within ``limits.gap``.

    Parameters
    ----------
    hint : Pattern, optional
        One of the same unit to begin from.
    told : callable, optional
        Hears of every improvement of bound or pattern.
    below : int, optional
        Only periods below this one matter.
    """
    clock = Clock(limits)
    low = any_unit = period_bound(problem, unit)
    # Patterns give every operation a tick at least, so that where some take no time nothing is proved by their absence.
    best, certain = hint, all(min(problem.time[k][s] for k in problem.kinds(s)) for s in range(problem.stages))
    high = min([p for p in (below, hint.period if hint else None) if p is not None], default=None)

    def state() -> LeastPeriod:
        return LeastPeriod(unit, bound, any_unit, best)

    bound = low
    if not problem.possible:
        return state()
    rise, period = FIRST_RISE, low
    while high is None or low < high * (1 - limits.gap):
        if high is not None:
            period = min(period, high - 1)
        if clock.left <= 0.05 or period < low:
            break
        quick = compact(problem, period) if unit == 1 else None
        part = replace(limits, time=max(0.1, clock.left * SHARE))
        found = modulo(problem, unit, period, part, hint=best) if quick is None else Found(quick, False)
        if found.pattern is not None:
            best, high = found.pattern, period
            period = (low + high) // 2
        else:
            certain = certain and found.proved
            low = period + 1
            bound = low if certain else bound
            period = (low + high) // 2 if high is not None else max(low, int(any_unit * (1 + rise)))
            rise *= 2
        if told is not None:
            told(state())
    return state()


def settled(problem: PipelineSchedule, pattern: Pattern, limits: Limits, aim: Aim) -> Pattern:
    """At the pattern's period, one with the least of ``aim``; the pattern itself if time is too short to find one."""
    found = modulo(problem, pattern.unit, pattern.period, limits, aim, hint=pattern)
    return found.pattern if found.pattern is not None else pattern
