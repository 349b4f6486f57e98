"""Extension of a schedule of few micro-batches to many: a segment of its middle is repeated.

::

    device 0   F0 F1 F2 I0 W0│F3 I1 W1│F4 I2 W2 I3 …        u operations of each kind between both marks,
    device 1   ·· F0 F1 ·· I0│F2 W0 I1│F3 W1 I2 …           on every device

Such a segment leaves the state of each device unchanged: the same number in flight, u micro-batches later. So it can be
repeated within memory any number of times, and the head and tail around it may have any form.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.schedule.instance import Kind, Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate, starts

UNITS = (1, 2, 3, 4, 6, 8, 12)
"""Numbers of micro-batches of a segment that are tried."""
FINALISTS = 3
"""Number of segments that are repeated in full; the others are evaluated by two short repetitions."""

Segments = tuple[tuple[int, int], ...]
"""For each device, begin and end of its segment in the list."""


def stretched(small: PipelineSchedule, orders: Orders, micro_batches: int, clock: Clock) -> Orders | None:
    """Best extension of ``orders`` by one repeated segment; None if none fits or the clock runs out first."""
    big, more = replace(small, micro_batches=micro_batches), micro_batches - small.micro_batches
    if more == 0:
        return orders
    # Estimate the makespan of every segment by short repetitions, then evaluate the best ones in full.
    promising: list[tuple[float, int, Segments]] = []
    for unit in UNITS:
        if more % unit:
            continue
        for segments in _segments(small, orders, unit):
            if clock.left <= 0:
                break
            value = _estimate(small, orders, segments, unit, more // unit)
            if value is not None:
                promising.append((value, unit, segments))
    best: tuple[int, Orders] | None = None
    for _, unit, segments in sorted(promising)[:FINALISTS]:
        trial = _repeated(orders, segments, more // unit)
        worth = evaluate(big, trial)
        if worth is not None and (best is None or worth < best[0]):
            best = worth, trial
    return None if best is None else best[1]


def _segments(problem: PipelineSchedule, orders: Orders, unit: int) -> Iterator[Segments]:
    """All segments of ``unit`` micro-batches that begin on all devices at one time, in the middle half of the step."""
    begun = starts(problem, orders)
    if begun is None:
        return
    times = [[begun[op] for op in order] for order in orders]
    busiest = max(range(problem.devices), key=lambda d: problem.work[d])
    most = max(t[-1] for t in times if t)
    # At every start on the busiest device: a segment on each device with ``unit`` operations of each kind and stage.
    counts = [_counts(order) for order in orders]
    seen: set[Segments] = set()
    for cut in times[busiest]:
        if not most // 4 <= cut <= 3 * most // 4:
            continue
        segments = []
        for d, at in enumerate(times):
            begin = bisect_left(at, cut)
            end = begin + len(at) * unit // problem.micro_batches
            if end > len(at) or any(count[end] - count[begin] != unit for count in counts[d].values()):
                break
            segments.append((begin, end))
        else:
            if tuple(segments) not in seen:
                seen.add(tuple(segments))
                yield tuple(segments)


def _counts(order: tuple[Op, ...]) -> dict[tuple[Kind, int], list[int]]:
    """For each kind and stage, the number of its operations among the first n of a list, for every n."""
    counts: dict[tuple[Kind, int], list[int]] = {(op.kind, op.stage): [0] for op in order}
    for op in order:
        for key, count in counts.items():
            count.append(count[-1] + (key == (op.kind, op.stage)))
    return counts


def _repeated(orders: Orders, segments: Segments, times: int) -> Orders:
    """Orders with each device's segment repeated ``times`` more times, and micro-batches renumbered."""
    lists = []
    for order, (begin, end) in zip(orders, segments, strict=True):
        begun: dict[tuple[Kind, int], int] = {}
        new = []
        for kind, stage, _ in (*order[:end], *(order[begin:end] * times), *order[end:]):
            i = begun.get((kind, stage), 0)
            begun[kind, stage] = i + 1
            new.append(Op(kind, stage, i))
        lists.append(tuple(new))
    return tuple(lists)


def _estimate(small: PipelineSchedule, orders: Orders, segments: Segments, unit: int, times: int) -> float | None:
    """Estimated makespan of the full repetition, extrapolated from two short ones; None if they are infeasible."""
    few, some = min(2, times), min(4, times)
    values = []
    for n in (few, some):
        value = evaluate(replace(small, micro_batches=small.micro_batches + n * unit), _repeated(orders, segments, n))
        if value is None:
            return None
        values.append(value)
    slope = (values[1] - values[0]) / (some - few) if some > few else 0.0
    return values[1] + slope * (times - some)
