"""`Judgement`: a hand-written plan, its time and memory, beside the proved one."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pipeplan.core.job import Objective
from pipeplan.core.plan import Plan
from pipeplan.core.tabular import Table, Tabular
from pipeplan.core.timeline import Timeline
from pipeplan.core.units import format_bytes, format_time
from pipeplan.core.wording import device_names
from pipeplan.search.result import Result
from pipeplan.simulate import timeline_of
from pipeplan_formulations.common.report import Stop

ADVICE = {
    Stop.TIME: "give the search more time (--time)",
    Stop.INTERRUPT: "let the search run to its end",
    Stop.GAP: "ask the search for a smaller gap (--gap)",
    Stop.EXHAUSTED: "the search is exhausted with a gap, in which this plan lies",
    Stop.ERROR: "a solver contradicted itself; try another one (--backend)",
    Stop.OPTIMALITY: "which contradicts the proof; please report this question",
}
"""What finds a plan that is faster than the search's and that the search may find, by why it stopped."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """Devices with too little memory for their stages: one, or several of a device; bytes of each device.

    ``letter`` begins the devices' names: d, or t for teams.
    """

    stages: tuple[int, ...]
    devices: tuple[int, ...]
    needed: int
    limit: int
    letter: str = "d"

    @property
    def stage(self) -> int:
        """The first of the stages."""
        return self.stages[0]

    def __str__(self) -> str:
        devices = device_names(self.devices, self.letter)
        own = f"stage {self.stage}" if len(self.stages) == 1 else f"stages {' and '.join(map(str, self.stages))}"
        verb = "needs" if len(self.stages) == 1 else "need"
        return (
            f"{own} on {devices} {verb} {format_bytes(self.needed)} of {format_bytes(self.limit)}, "
            f"{format_bytes(self.needed - self.limit)} too much"
        )


@dataclass(frozen=True, slots=True)
class Fitting:
    """The plan at another level of ZeRO, or with recomputation, which fits; ``value`` is nanoseconds.

    ``options`` are those of ``pipeplan judge``.
    """

    options: str
    value: int


@dataclass(frozen=True, repr=False)
class Judgement(Tabular):
    """A plan that was written by hand, beside the proved one for the same model, cluster and job.

    Attributes
    ----------
    plan : Plan
    value : int
        Nanoseconds of what the job's objective is.
    objective : Objective
    limits : tuple of (int or None)
        Bytes that a device of each stage has; None is no limit.
    overflows : tuple of Overflow
        The stages that do not fit.
    outside : str
        Why the plan is none of those that were searched, if it is none.
    remedies : tuple of Fitting
        Where it does not fit: other levels of ZeRO, or recomputation, with which it does.
    result : Result or None
        The proved plan, if one was found in the time given.
    why : str
        The reason why there is none.
    order_bound : int
        Nanoseconds that the judged stages take at least in any order; 0 where orders were not searched.

    Examples
    --------
    >>> judgement = pipeplan.judge(
    ...     "vgg-16", "4-v100-nvlink", 64, stages=(10, 11), micro_batches=4, depths=2, replicas=1
    ... )
    >>> judgement.excess > 0
    True
    """

    plan: Plan
    value: int
    objective: Objective
    limits: tuple[int | None, ...]
    overflows: tuple[Overflow, ...]
    outside: str
    remedies: tuple[Fitting, ...]
    result: Result | None
    why: str = ""
    order_bound: int = 0

    @cached_property
    def timeline(self) -> Timeline:
        """One simulated step of the plan, as if memory were enough; of gradients that are late, several batches."""
        return timeline_of(self.plan)

    @property
    def excess(self) -> float | None:
        """How much longer the plan takes than the proved one, relative to that; None if there is none."""
        return self.value / self.result.value - 1 if self.result is not None and self.result.value else None

    @property
    def headline(self) -> str:
        """The plan, its time, and whether it fits."""
        fits = "; does not fit" if self.overflows else ""
        return f"{self.plan.headline}; {self.objective.figure} {format_time(self.value)}{fits}"

    def table(self) -> Table:
        """A row per stage: those of the plan, with the memory that its devices have."""
        table = self.plan.table()
        rows = ((*row, limit) for row, limit in zip(table.rows, self.limits, strict=True))
        return Table({**table.columns, "limit": "bytes"}, tuple(rows))

    def __str__(self) -> str:
        lines = [f"judged: {self.headline}", *(f"  {each}" for each in self.overflows)]
        lines += [f"  with {each.options} it fits, and takes {format_time(each.value)}" for each in self.remedies]
        lines += [f"  {line}" for line in self.of_search()]
        return "\n".join([*lines, self.table().printed(), *self.verdict()])

    def of_search(self) -> Iterator[str]:
        """Yield what other orders of these stages would take at least, and why the plan is none of those searched."""
        if self.order_bound:
            gap = f" than {format_time(self.order_bound)}, {1 - self.order_bound / self.value:.1%} below it"
            yield f"no order of these stages takes less{gap if self.value > self.order_bound else ''}"
        if self.outside:
            yield f"none of the plans that are searched: {self.outside}"

    def verdict(self) -> Iterator[str]:
        """Yield the proved plan, and how the judged one compares with it; or why there is none."""
        if self.result is None:
            yield f"proved: {self.why}"
            return
        yield f"{self.best}: {self.result.headline}"
        yield from self._compared(self.result)

    def as_json(self) -> dict[str, object]:
        """The object that ``pipeplan judge --json`` prints. Times are seconds."""
        return {
            "time_s": self.value / 1e9,
            "fits": not self.overflows,
            "overflows": [
                {
                    "stage": each.stage,
                    "stages": list(each.stages),
                    "devices": list(each.devices),
                    "needed_bytes": each.needed,
                    "limit_bytes": each.limit,
                }
                for each in self.overflows
            ],
            "fits_with": [{"options": each.options, "time_s": each.value / 1e9} for each in self.remedies],
            "outside": self.outside,
            "over_proved": self.excess,
            "proved": None if self.result is None else self.result.as_json(),
            "why": self.why,
            "order_bound_s": self.order_bound / 1e9 if self.order_bound else None,
        }

    @property
    def best(self) -> str:
        """What the other plan is."""
        return "best plan found" if self.result is None or self.result.gap else "proved plan"

    def _compared(self, result: Result) -> Iterator[str]:
        if self.excess is None:
            return
        as_if = "if memory were enough, " if self.overflows else ""
        if self.excess < 0:
            yield f"{as_if}the judged plan takes {-self.excess:.1%} less; {self._advice(result)}"
            return
        least = f", {self.value / result.bound - 1:.1%} more than its bound" if result.gap and result.bound else ""
        yield f"{as_if}the judged plan takes {self.excess:.1%} more than the {self.best}{least}"

    def _advice(self, result: Result) -> str:
        """What would find a plan that is faster than the proved one, or why the search has none."""
        if self.overflows:
            lacks = max(each.needed - each.limit for each in self.overflows)
            options = "".join(f", or {each.options}" for each in self.remedies)
            return (
                f"that takes {format_bytes(lacks)} more on a device (--memory, where that is the limit){options}; "
                "pipeplan frontier shows what memory buys"
            )
        if self.outside:
            return "it is none of the plans searched"
        return ADVICE[result.stop]
