"""Measured times of a plan's steps: actions, gaps between them, and transfers.

::

    rank 0   ▐F0▌g▐F1▌g             ▐B0▌             g  a gap: neither action nor waiting; its end is known, since
                   ╰─transfer─╮    ╱                    the input of the next action had arrived before
    rank 1                    ▐F1▌g▐B1▌              transfer  from the end of the action that made a tensor to the
                                                        start of the one that waited for it
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Action, Kind
from pipeplan.core.timeline import Span, Timeline

Times = Mapping[tuple[int, Action], tuple[int, int]]
"""Start and end of each rank's actions in one step."""


class Route(NamedTuple):
    """A stage on a rank, and the stage on another rank that reads its tensors."""

    source: int
    target: int
    source_rank: int
    target_rank: int


@dataclass(frozen=True)
class Observed:
    """Measured times of a plan in nanoseconds, and peaks in bytes.

    Attributes
    ----------
    steps : int
    step_time : int
        Median over steps.
    actions : mapping of (int, Kind) to int
        Time of an action of a stage: the mean over micro-batches and replicas of medians over steps, so that the sum
        over all of them is kept. A reduction begins when the last rank joins it.
    gaps : tuple of int
        Time before an action on each rank, without waiting; the mean over the step.
    transfers : mapping of Route to int
        Medians over the transfers for which the receiver waited; a route without such transfers is absent.
    around : int
        Time before the first action of a step and after the last one, except the first one's gap.
    peaks : tuple of int
        Peak of each rank in bytes.
    """

    steps: int
    step_time: int
    actions: Mapping[tuple[int, Kind], int]
    gaps: tuple[int, ...]
    transfers: Mapping[Route, int]
    around: int
    peaks: tuple[int, ...]

    def stretched(self, factor: float) -> "Observed":
        """Return a copy with all times except the step's multiplied."""
        return replace(
            self,
            actions={key: round(factor * took) for key, took in self.actions.items()},
            gaps=tuple(round(factor * gap) for gap in self.gaps),
            transfers={route: round(factor * took) for route, took in self.transfers.items()},
            around=round(factor * self.around),
        )


def observed(
    timelines: Sequence[Timeline],
    step_times: Sequence[int],
    peaks: Sequence[int] = (),
    tied: Sequence[Sequence[int]] = (),
    gathers: bool = False,
) -> Observed:
    """Extract the times of actions, gaps and transfers from measured steps of one plan.

    Parameters
    ----------
    timelines : sequence of Timeline
        Time lines of at least one step on CPU workers (see `pipeplan_executor.RunReport`).
    step_times : sequence of int
        Step times of the same steps, in nanoseconds.
    tied : sequence of sequence of int
        Groups of stages whose reductions are one collective.
    gathers : bool
        The first forwards of a step wait for parameters, so they do not count where a replica has others.

    Raises
    ------
    InputError
        If there is no step.
    """
    if not timelines:
        raise InputError("a calibration needs at least one timed step; give more --steps")
    rows = [{(s.device, s.action): (s.start, s.end) for s in timeline.spans} for timeline in timelines]
    orders = _orders(timelines[0].spans)
    # transfers first, since gaps exclude waiting for them; then the time that no action or gap explains
    transfers = _transfers(rows, orders)
    gaps = tuple(_gap(rows, order, rank, transfers) for rank, order in sorted(orders.items()))
    first = min(rows[0], key=lambda key: rows[0][key])[0]
    idle = median(
        time - max(end for _, end in row.values()) + min(start for start, _ in row.values())
        for row, time in zip(rows, step_times, strict=True)
    )
    return Observed(
        steps=len(rows),
        step_time=round(median(step_times)),
        actions=_actions(rows, tied, _waiting(orders) if gathers else frozenset()),
        gaps=gaps,
        transfers=transfers,
        around=max(round(idle) - gaps[first], 0),
        peaks=tuple(peaks),
    )


def _orders(spans: Iterable[Span]) -> dict[int, list[Action]]:
    found: dict[int, list[Action]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start):
        found[span.device].append(span.action)
    return found


def _waiting(orders: Mapping[int, Sequence[Action]]) -> frozenset[tuple[int, Action]]:
    """The first forward of each stage on each rank, where others follow it."""
    found = set()
    for rank, order in orders.items():
        forwards = [action for action in order if action.kind is Kind.FORWARD]
        for stage in {action.stage for action in forwards}:
            own = [action for action in forwards if action.stage == stage]
            found |= {(rank, action) for action in own[:1] if len(own) > 1}
    return frozenset(found)


def _actions(
    rows: Sequence[Times], tied: Sequence[Sequence[int]], left_out: Collection[tuple[int, Action]]
) -> dict[tuple[int, Kind], int]:
    group = {stage: number for number, stages in enumerate(tied) for stage in stages}
    # times of each action over steps
    samples: dict[tuple[int, Action], list[int]] = defaultdict(list)
    for row in rows:
        joined: dict[object, int] = {}  # start of the last rank at a reduction
        for (_, action), (start, _) in row.items():
            if action.kind is Kind.REDUCE:
                meeting = group.get(action.stage, action)
                joined[meeting] = max(start, joined.get(meeting, start))
        for (rank, action), (start, end) in row.items():
            together = action.kind is Kind.REDUCE
            samples[rank, action].append(end - (joined[group.get(action.stage, action)] if together else start))
    # medians over steps, then means over micro-batches and replicas
    means: dict[tuple[int, Kind], list[float]] = defaultdict(list)
    for (rank, action), times in samples.items():
        if (rank, action) in left_out:
            continue
        means[action.stage, action.kind].append(median(times))
    return {key: max(round(fmean(times)), 0) for key, times in means.items()}


def _read(row: Times) -> dict[tuple[int, Action], tuple[int, Action]]:
    """Map each action that reads a tensor of another rank to that rank and the action that made the tensor."""
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


def _transfers(rows: Sequence[Times], orders: Mapping[int, Sequence[Action]]) -> dict[Route, int]:
    """Return the time of each route's transfers, of those made after the receiver's previous action had ended."""
    samples: dict[Route, list[int]] = defaultdict(list)
    read = _read(rows[0])
    for rank, order in orders.items():
        for before, action in pairwise((None, *order)):
            if action is None or (rank, action) not in read:
                continue
            maker = read[rank, action]
            for row in rows:
                free = 0 if before is None else row[rank, before][1]
                if row[maker][1] >= free:
                    samples[_route(maker, (rank, action))].append(row[rank, action][0] - row[maker][1])
    return {route: max(round(median(times)), 0) for route, times in samples.items()}


def _route(maker: tuple[int, Action], reader: tuple[int, Action]) -> Route:
    return Route(maker[1].stage, reader[1].stage, maker[0], reader[0])


def _gap(rows: Sequence[Times], order: Sequence[Action], rank: int, transfers: Mapping[Route, int]) -> int:
    """Return a rank's mean gap, over actions whose input had arrived before the previous one ended; no reductions."""
    read = _read(rows[0])
    means = []
    for before, action in pairwise(order):
        if action.kind is Kind.REDUCE:
            continue
        maker = read.get((rank, action))
        samples = []
        for row in rows:
            free = row[rank, before][1]
            if maker is None or row[maker][1] + transfers.get(_route(maker, (rank, action)), 0) <= free:
                samples.append(row[rank, action][0] - free)
        if samples:
            means.append(median(samples))
    return round(fmean(means)) if means else 0
