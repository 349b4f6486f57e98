"""`Explanation` of a plan as an object, as text and as JSON."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from pipeplan.analysis.explain.outcome import Outcome, percent
from pipeplan.analysis.explain.path import Portion, phase_lines
from pipeplan.analysis.explain.room import Room
from pipeplan.analysis.explain.sensitivities import Sensitivity
from pipeplan.analysis.explain.setting import Use
from pipeplan.core.searched import Searched
from pipeplan.core.tabular import Table, Tabular, Unit
from pipeplan.core.throughput import Throughput
from pipeplan.core.units import format_time
from pipeplan.costs.chain import UNLIMITED
from pipeplan.costs.sources import Costs

MOST = 10
"""Most lines of one list in the text; JSON has them all."""
UNKNOWN = "the bound is that of the search that made the plan: the answer of `pipeplan solve` lists what was searched"
"""Last line for a plan that is explained without its model, cluster and job."""
NOTABLE = 0.005
"""Least fraction of the step for which a sensitivity is named in the text."""


@dataclass(frozen=True, repr=False)
class Explanation(Tabular):
    """Bottlenecks of a step, and the effect of changes on its time.

    Attributes
    ----------
    title : str
        Model, cluster, stages, step time, bound.
    step, bound : int
        Nanoseconds.
    throughput : Throughput
        Of the step.
    path : tuple of Portion
        The critical path; times sum to ``step``.
    uses : tuple of Use
        Busy times of devices, then of links and network cards.
    rooms : tuple of Room
        Memory of each device.
    sensitivities : tuple of Sensitivity
        Resources that bind alone, most effective first.
    groups : tuple of Sensitivity
        Sets of equal resources that shorten the step if all of them get faster.
    joint : tuple of Sensitivity
        If nothing binds alone: a set of resources that binds together.
    memory : Outcome or None
        The answer without memory limits, if there are limits and model, cluster and job are given.
    outcomes : tuple of Outcome
        Every change that was solved afresh, ``memory`` included.
    sums : tuple of str
        A line for each stage whose sums run front layers first.
    costs, searched : Costs, Searched, or None
        Sources of the times, and the space over which the bound was proved; None for a plan explained by itself.

    Examples
    --------
    >>> result = pipeplan.solve("vgg-16", "4-v100-nvlink", batch=64, depths=2, replicas=1, schedules="gpipe")
    >>> found = pipeplan.explain("vgg-16", "4-v100-nvlink", result=result, each=0.01)
    >>> found.bound <= found.step
    True
    """

    title: str
    step: int
    bound: int
    throughput: Throughput
    path: tuple[Portion, ...]
    uses: tuple[Use, ...]
    rooms: tuple[Room, ...]
    sensitivities: tuple[Sensitivity, ...]
    groups: tuple[Sensitivity, ...]
    joint: tuple[Sensitivity, ...]
    memory: Outcome | None = None
    outcomes: tuple[Outcome, ...] = ()
    sums: tuple[str, ...] = ()
    costs: Costs | None = None
    searched: Searched | None = None

    def __str__(self) -> str:
        lines = [
            self.headline,
            f"throughput {self.throughput}",
            *([] if self.costs is None else self.costs.lines()),
        ]
        lines += ["what binds:", *_indented(self.binding())]
        lines += ["sums front layers first:", *_indented(self.sums)] if self.sums else []
        lines += ["critical path:", *_indented(phase_lines(self.path, self.step))]
        lines += ["busy over the step:", *_indented(map(_use_line, self._uses_shown()))]
        lines += ["memory at its peak:", *_indented(map(str, self._rooms_shown()))]
        if self.outcomes:
            own = f"; the plan itself has a gap of {percent(1 - self.bound / self.step)}" if self.open else ""
            lines += [f"what would it bring? (each solved afresh{own})", *(f"  {each}" for each in self.outcomes)]
        return "\n".join([*lines, *([UNKNOWN] * bool(self.bound) if self.searched is None else self.searched.lines())])

    @property
    def headline(self) -> str:
        """Model, cluster, stages, step time, bound."""
        return self.title

    def table(self) -> Table:
        """What binds, and by what the step falls if it takes a tenth less; then how long devices and links are busy."""
        columns: dict[str, Unit] = {"resource": "", "kind": "", "fall": "share", "busy": "ns", "of the step": "share"}
        binding = ((each.name, each.kind, each.fall, None, None) for each in (*self.groups, *self.sensitivities))
        busy = ((use.name, use.kind, None, use.busy, use.share) for use in self.uses)
        return Table(columns, (*binding, *busy))

    @property
    def open(self) -> bool:
        """True if the plan is not proved optimal."""
        return self.bound < self.step

    @property
    def memory_binds(self) -> bool | None:
        """True if the plan would be faster without memory limits; None if that is not known."""
        if all(room.limit == UNLIMITED for room in self.rooms):
            return False
        if self.memory is None or self.memory.gains is None or self.memory.at_most is None:
            return None
        return True if self.memory.gains > 0 else None if self.memory.at_most > 0 else False

    def as_json(self) -> dict[str, object]:
        """Plain data; times in seconds, shares as fractions of the step."""
        return {
            "step_time_s": self.step / 1e9,
            "bound_s": self.bound / 1e9,
            "throughput": self.throughput.as_json(),
            "binds": [_sensitivity_json(sensitivity) for sensitivity in self.sensitivities],
            "like_things": [_sensitivity_json(sensitivity) for sensitivity in self.groups],
            "binds_together": [_sensitivity_json(sensitivity) for sensitivity in self.joint],
            "memory_binds": self.memory_binds,
            "critical_path": [
                {
                    "phase": portion.phase,
                    "what": portion.what,
                    "where": portion.where,
                    "count": portion.count,
                    "time_s": portion.time / 1e9,
                    "share": portion.time / self.step if self.step else 0.0,
                }
                for portion in self.path
            ],
            "busy": [
                {"name": use.name, "kind": use.kind, "busy_s": use.busy / 1e9, "share": use.share, "hops": use.hops}
                for use in self.uses
            ],
            "memory": [_room_json(room) for room in self.rooms],
            "sums": list(self.sums),
            "changes": [_outcome_json(each) for each in self.outcomes],
            "costs": None if self.costs is None else self.costs.as_json(),
            "searched": None if self.searched is None else self.searched.as_json(),
        }

    def binding(self) -> Iterator[str]:
        """Yield a line for each thing that binds, with what it brings if it takes a tenth less time."""
        for sensitivity in [sensitivity for sensitivity in self.groups if sensitivity.fall >= NOTABLE]:
            yield f"{sensitivity.name}: a tenth less time there takes {percent(sensitivity.fall)} off the step"
        if self.sensitivities:
            for sensitivity in self._sensitivities_shown():
                yield f"{sensitivity.name}: a tenth less time there takes {percent(sensitivity.fall)} off the step"
            rest = len(self.sensitivities) - len(self._sensitivities_shown())
            if rest:
                yield f"{rest} more, each less than {percent(NOTABLE)}"
        elif self.joint:
            names = ", ".join(sensitivity.name for sensitivity in self.joint)
            yield f"nothing alone; together {names}: a tenth less time there takes {percent(self.joint[0].fall)} off"
        else:
            yield "nothing that computes or sends: the step is latencies"
        if self.memory is not None and self.memory.value is not None:
            yield f"memory limits: without them {self.memory.verdict}"

    def _uses_shown(self) -> Sequence[Use]:
        """Devices first, the busiest of them first; then links and cards."""
        return sorted(self.uses, key=lambda use: (use.kind != "device", -use.busy))

    def _sensitivities_shown(self) -> Sequence[Sensitivity]:
        return [sensitivity for sensitivity in self.sensitivities if sensitivity.fall >= NOTABLE] or self.sensitivities[
            :1
        ]

    def _rooms_shown(self) -> Sequence[Room]:
        """Tight devices first, then those with the least free memory."""
        return sorted(
            self.rooms, key=lambda room: (not room.tight, room.left if room.limit != UNLIMITED else UNLIMITED)
        )


def _indented(lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    yield from (f"  {line}" for line in found[:MOST])
    if len(found) > MOST:
        yield f"  … and {len(found) - MOST} more"


def _use_line(use: Use) -> str:
    shared = f", shared by {use.hops} boundaries" if use.hops > 1 else ""
    kind = "" if use.kind == "device" else f"{'link' if use.kind == 'wire' else 'network card'} "
    return f"{kind}{use.name}: {percent(use.share)} ({format_time(use.busy)}{shared})"


def _sensitivity_json(sensitivity: Sensitivity) -> dict[str, object]:
    return {"name": sensitivity.name, "kind": sensitivity.kind, "step_falls_by": sensitivity.fall}


def _room_json(room: Room) -> dict[str, object]:
    limited = room.limit != UNLIMITED
    data = asdict(room) | {"tight": room.tight, "left": room.left if limited else None}
    return data | {"limit": room.limit if limited else None}


def _outcome_json(outcome: Outcome) -> dict[str, object]:
    return {
        "change": outcome.label,
        "step_time_s": None if outcome.value is None else outcome.value / 1e9,
        "bound_s": None if outcome.bound is None else outcome.bound / 1e9,
        "gap": outcome.gap,
        "batch": outcome.batch,
        "saves_per_sample": outcome.gains,
        "saves_at_most": outcome.at_most,
        "why": outcome.why,
    }
