"""Outcomes of changes: solve the changed problem afresh, and compare the time per sample."""

from dataclasses import dataclass, replace

from pipeplan.analysis.explain.changes import Change
from pipeplan.core.errors import PipeplanError
from pipeplan.core.model import Model
from pipeplan.core.units import format_time
from pipeplan.search.result import Result
from pipeplan.solve import solve
from pipeplan_formulations.common.report import Limits, Stop
from pipeplan_formulations.common.signals import received


@dataclass(frozen=True, slots=True)
class Outcome:
    """A change, the best plan found after it, and the proved bound.

    Attributes
    ----------
    label : str
    value, bound : int or None
        Nanoseconds of the best plan found for the changed problem, and the bound proved for it.
    batch : int
        Samples of a step of the changed problem.
    gains : float or None
        Fraction by which the time per sample falls with the plan found; below zero where it grows.
    at_most : float or None
        Proved upper bound on the gain of every plan of the changed problem.
    why : str
        The reason if there is no plan, or if nothing had to be solved.
    """

    label: str
    value: int | None
    bound: int | None
    batch: int
    gains: float | None
    at_most: float | None
    why: str = ""

    @property
    def gap(self) -> float | None:
        """(value − bound) / value of the changed problem."""
        if self.value is None or self.bound is None:
            return None
        return (self.value - self.bound) / self.value if self.value else 0.0

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.label}: no plan, {self.why}"
        if self.why:
            return f"{self.label}: {self.verdict} ({self.why})"
        assert self.bound is not None
        found = f"step {format_time(self.value)}, bound {format_time(self.bound)}, gap {percent(self.gap or 0.0)}"
        return f"{self.label}: {self.verdict} ({found})"

    @property
    def verdict(self) -> str:
        """Gain in words: ``'3.10 % less time per sample'``, ``'nothing, proved'``, ``'nothing found, at most …'``."""
        gains, most = self.gains or 0.0, self.at_most or 0.0
        if gains > 0:
            return f"{percent(gains)} less time per sample" + (f", at most {percent(most)}" if most > gains else "")
        if most > 0:
            return f"nothing found, at most {percent(most)} less"
        if most == 0:
            return "nothing, proved"
        return f"{percent(-gains)} more time per sample" + (f", at least {percent(-most)}" if most > gains else "")

    def within(self, relaxed: "Outcome") -> "Outcome":
        """Tighten the bound with that of a relaxed problem, whose plans include all plans of this one."""
        if self.value is None or self.bound is None or relaxed.bound is None or relaxed.at_most is None:
            return self
        if relaxed.bound <= self.bound or self.at_most is None:
            return self
        return replace(self, bound=min(relaxed.bound, self.value), at_most=max(relaxed.at_most, self.gains or 0.0))


def no_effect(change: Change, base: Result, why: str) -> Outcome:
    """Outcome of a change without effect, with the reason ``why``."""
    return Outcome(change.label, base.value, base.bound, change.job.batch, 0.0, 0.0, why)


def outcome(model: Model, change: Change, base: Result, *, limits: Limits, backend: str) -> Outcome:
    """Solve a changed problem and compare it with the original result.

    Raises
    ------
    KeyboardInterrupt
        If Ctrl-C ended the search.
    """
    samples = change.job.batch
    try:
        result = solve(
            model,
            change.cluster,
            job=change.job,
            time_limit=limits.time,
            gap=limits.gap,
            backend=backend,
            workers=limits.workers,
            seed=limits.seed,
            price_regular=False,
        )
    except PipeplanError as error:
        if received():
            raise KeyboardInterrupt from error
        return Outcome(change.label, None, None, samples, None, None, str(error).splitlines()[0])
    if result.stop is Stop.INTERRUPT:
        raise KeyboardInterrupt
    value = min(result.value, base.value) if change.eases else result.value
    bound = min(result.bound, value)
    return Outcome(
        change.label, value, bound, samples, gains=_saved(value, samples, base), at_most=_saved(bound, samples, base)
    )


def _saved(time: int, samples: int, base: Result) -> float:
    """Relative decrease of the time per sample from the original result; exactly zero if both are equal."""
    return 1 - time * base.job.batch / (base.value * samples) if base.value else 0.0


def percent(share: float) -> str:
    return f"{share:.2%}".replace("%", " %")
