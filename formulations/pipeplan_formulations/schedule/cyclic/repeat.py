"""A schedule of few micro-batches, stretched to many: a stretch of its middle is repeated.

::

    device 0   F0 F1 F2 I0 W0│F3 I1 W1│F4 I2 W2 I3 …        the same u of each kind between both cuts,
    device 1   ·· F0 F1 ·· I0│F2 W0 I1│F3 W1 I2 …           on every device

Such a stretch leaves each device as it found it: with the same micro-batches in flight, u further on. So it can be
repeated within memory as often as wished, and what is around it may be as special as a head and a tail like to be.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.schedule.instance import Kind, Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate, starts

UNITS = (1, 2, 3, 4, 6, 8, 12)
"""Micro-batches of a stretch."""
FINALISTS = 3
"""So many stretches are repeated all the way; the others are judged by two short repetitions."""

Cuts = tuple[tuple[int, int], ...]
"""For each device, where its stretch begins and ends."""


def stretched(small: PipelineSchedule, orders: Orders, micro_batches: int, clock: Clock) -> Orders | None:
    """The best that repeating one stretch makes of ``orders``; None if no stretch fits or the clock runs out first."""
    big, more = replace(small, micro_batches=micro_batches), micro_batches - small.micro_batches
    if more == 0:
        return orders
    promising: list[tuple[float, int, Cuts]] = []
    for unit in UNITS:
        if more % unit:
            continue
        for cuts in _cuts(small, orders, unit):
            if clock.left <= 0:
                break
            value = _foreseen(small, orders, cuts, unit, more // unit)
            if value is not None:
                promising.append((value, unit, cuts))
    best: tuple[int, Orders] | None = None
    for _, unit, cuts in sorted(promising)[:FINALISTS]:
        trial = _repeated(orders, cuts, more // unit)
        worth = evaluate(big, trial)
        if worth is not None and (best is None or worth < best[0]):
            best = worth, trial
    return None if best is None else best[1]


def _cuts(problem: PipelineSchedule, orders: Orders, unit: int) -> Iterator[Cuts]:
    """All stretches of ``unit`` micro-batches that begin on all devices at one time, in the middle half of the step."""
    begun = starts(problem, orders)
    if begun is None:
        return
    times = [[begun[op] for op in order] for order in orders]
    busiest = max(range(problem.devices), key=lambda d: problem.work[d])
    most = max(t[-1] for t in times if t)
    counts = [_counts(order) for order in orders]
    seen: set[Cuts] = set()
    for cut in times[busiest]:
        if not most // 4 <= cut <= 3 * most // 4:
            continue
        cuts = []
        for d, at in enumerate(times):
            begin = bisect_left(at, cut)
            end = begin + len(at) * unit // problem.micro_batches
            if end > len(at) or any(count[end] - count[begin] != unit for count in counts[d].values()):
                break
            cuts.append((begin, end))
        else:
            if tuple(cuts) not in seen:
                seen.add(tuple(cuts))
                yield tuple(cuts)


def _counts(order: tuple[Op, ...]) -> dict[tuple[Kind, int], list[int]]:
    """For each kind and stage, how many of it are among the first n of a list."""
    counts: dict[tuple[Kind, int], list[int]] = {(op.kind, op.stage): [0] for op in order}
    for op in order:
        for key, count in counts.items():
            count.append(count[-1] + (key == (op.kind, op.stage)))
    return counts


def _repeated(orders: Orders, cuts: Cuts, times: int) -> Orders:
    """Each device's stretch so many times more, micro-batches numbered anew."""
    lists = []
    for order, (begin, end) in zip(orders, cuts, strict=True):
        begun: dict[tuple[Kind, int], int] = {}
        new = []
        for kind, stage, _ in (*order[:end], *(order[begin:end] * times), *order[end:]):
            i = begun.get((kind, stage), 0)
            begun[kind, stage] = i + 1
            new.append(Op(kind, stage, i))
        lists.append(tuple(new))
    return tuple(lists)


def _foreseen(small: PipelineSchedule, orders: Orders, cuts: Cuts, unit: int, times: int) -> float | None:
    """What the whole will take, from two short repetitions."""
    few, some = min(2, times), min(4, times)
    values = []
    for n in (few, some):
        value = evaluate(replace(small, micro_batches=small.micro_batches + n * unit), _repeated(orders, cuts, n))
        if value is None:
            return None
        values.append(value)
    slope = (values[1] - values[0]) / (some - few) if some > few else 0.0
    return values[1] + slope * (times - some)
