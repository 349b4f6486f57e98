"""Measured times of a plan's steps: actions, what lies between them, and tensors in transit.

::

    rank 0   ▐F0▌g▐F1▌g             ▐B0▌             g  a gap: neither action nor waiting; its end is known, since
                   ╰──flight──╮    ╱                    what the next action reads was there before
    rank 1                    ▐F1▌g▐B1▌              flight  from the end of the action that made a tensor to the
                                                        start of the one that waited for it
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Action, Kind
from pipeplan.core.timeline import Span, Timeline

Times = Mapping[tuple[int, Action], tuple[int, int]]
"""Start and end of each rank's actions in one step."""


class Way(NamedTuple):
    """From a stage on a rank to a stage on another one."""

    source: int
    target: int
    source_rank: int
    target_rank: int


@dataclass(frozen=True)
class Observed:
    """Nanoseconds, and bytes.

    Attributes
    ----------
    steps : int
    step_time : int
        The median.
    actions : mapping of (int, Kind) to int
        What an action of a stage takes: the mean over micro-batches and replicas of medians over steps, so that all of
        them together take what they took. A reduction begins when the last rank joins it.
    gaps : tuple of int
        For each rank what lies ahead of an action, beside waiting; the mean over the step.
    flights : mapping of Way to int
        Medians over the tensors for which the receiver waited; a way on which it never did is absent.
    around : int
        Before the first action of a step and behind the last one, the first one's gap apart.
    peaks : tuple of int
        Bytes of each rank.
    """

    steps: int
    step_time: int
    actions: Mapping[tuple[int, Kind], int]
    gaps: tuple[int, ...]
    flights: Mapping[Way, int]
    around: int
    peaks: tuple[int, ...]

    def stretched(self, factor: float) -> "Observed":
        """With all times but the step's multiplied."""
        return replace(
            self,
            actions={key: round(factor * took) for key, took in self.actions.items()},
            gaps=tuple(round(factor * gap) for gap in self.gaps),
            flights={way: round(factor * took) for way, took in self.flights.items()},
            around=round(factor * self.around),
        )


def observed(
    timelines: Sequence[Timeline],
    step_times: Sequence[int],
    peaks: Sequence[int] = (),
    tied: Sequence[Sequence[int]] = (),
) -> Observed:
    """What steps of one plan show.

    Parameters
    ----------
    timelines : sequence of Timeline
        Of at least one step on CPU workers: what ran when (see `pipeplan_executor.RunReport`).
    step_times : sequence of int
        Of the same steps.
    tied : sequence of sequence of int
        Groups of stages whose reductions are one act.

    Raises
    ------
    InputError
        If there is no step.
    """
    if not timelines:
        raise InputError("a calibration takes one timed step at least; ask for more --steps")
    rows = [{(s.device, s.action): (s.start, s.end) for s in timeline.spans} for timeline in timelines]
    orders = _orders(timelines[0].spans)
    flights = _flights(rows, orders)
    gaps = tuple(_gap(rows, order, rank, flights) for rank, order in sorted(orders.items()))
    first = min(rows[0], key=lambda key: rows[0][key])[0]
    idle = median(
        time - max(end for _, end in row.values()) + min(start for start, _ in row.values())
        for row, time in zip(rows, step_times, strict=True)
    )
    return Observed(
        steps=len(rows),
        step_time=round(median(step_times)),
        actions=_actions(rows, tied),
        gaps=gaps,
        flights=flights,
        around=max(round(idle) - gaps[first], 0),
        peaks=tuple(peaks),
    )


def _orders(spans: Iterable[Span]) -> dict[int, list[Action]]:
    found: dict[int, list[Action]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start):
        found[span.device].append(span.action)
    return found


def _actions(rows: Sequence[Times], tied: Sequence[Sequence[int]]) -> dict[tuple[int, Kind], int]:
    group = {stage: number for number, stages in enumerate(tied) for stage in stages}
    samples: dict[tuple[int, Action], list[int]] = defaultdict(list)
    for row in rows:
        joined: dict[object, int] = {}  # when the last rank came to a reduction
        for (_, action), (start, _) in row.items():
            if action.kind is Kind.REDUCE:
                meeting = group.get(action.stage, action)
                joined[meeting] = max(start, joined.get(meeting, start))
        for (rank, action), (start, end) in row.items():
            together = action.kind is Kind.REDUCE
            samples[rank, action].append(end - (joined[group.get(action.stage, action)] if together else start))
    means: dict[tuple[int, Kind], list[float]] = defaultdict(list)
    for (_, action), times in samples.items():
        means[action.stage, action.kind].append(median(times))
    return {key: max(round(fmean(times)), 0) for key, times in means.items()}


def _read(row: Times) -> dict[tuple[int, Action], tuple[int, Action]]:
    """For each action that reads what another rank has sent: the action that made it, and where."""
    homes = {action: rank for rank, action in row if action.kind.per_micro_batch}
    found = {}
    for action, rank in homes.items():
        kinds: tuple[Kind, ...] = ()
        if action.kind is Kind.FORWARD:
            kinds = (Kind.FORWARD,)
        elif action.kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT):
            kinds = (Kind.BACKWARD, Kind.INPUT_GRADIENT)
        stage = action.stage + (-1 if action.kind is Kind.FORWARD else 1)
        makers = [action._replace(kind=kind, stage=stage) for kind in kinds]
        maker = next((maker for maker in makers if maker in homes), None)
        if maker is not None and homes[maker] != rank:
            found[rank, action] = homes[maker], maker
    return found


def _flights(rows: Sequence[Times], orders: Mapping[int, Sequence[Action]]) -> dict[Way, int]:
    """A receiver waited if its tensor was made after its last action had ended."""
    samples: dict[Way, list[int]] = defaultdict(list)
    read = _read(rows[0])
    for rank, order in orders.items():
        for before, action in pairwise((None, *order)):
            if action is None or (rank, action) not in read:
                continue
            maker = read[rank, action]
            for row in rows:
                free = 0 if before is None else row[rank, before][1]
                if row[maker][1] >= free:
                    samples[_way(maker, (rank, action))].append(row[rank, action][0] - row[maker][1])
    return {way: max(round(median(times)), 0) for way, times in samples.items()}


def _way(maker: tuple[int, Action], reader: tuple[int, Action]) -> Way:
    return Way(maker[1].stage, reader[1].stage, maker[0], reader[0])


def _gap(rows: Sequence[Times], order: Sequence[Action], rank: int, flights: Mapping[Way, int]) -> int:
    """From where what the second of two neighbours reads was there when the first one ended; reductions may wait."""
    read = _read(rows[0])
    means = []
    for before, action in pairwise(order):
        if action.kind is Kind.REDUCE:
            continue
        maker = read.get((rank, action))
        samples = []
        for row in rows:
            free = row[rank, before][1]
            if maker is None or row[maker][1] + flights.get(_way(maker, (rank, action)), 0) <= free:
                samples.append(row[rank, action][0] - free)
        if samples:
            means.append(median(samples))
    return round(fmean(means)) if means else 0
