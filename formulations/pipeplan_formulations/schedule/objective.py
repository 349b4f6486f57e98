"""What given orders are worth: every operation as early as its device and its inputs allow."""

from pipeplan_formulations.schedule.chains import depth
from pipeplan_formulations.schedule.instance import Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.timed import Starts, timed

__all__ = ["Starts", "evaluate", "feasible", "listed", "makespan", "orders_of", "peaks", "starts", "worth"]


def peaks(problem: PipelineSchedule, orders: Orders) -> tuple[int, ...]:
    """Most bytes that each device ever has in use, `base` included.

    A device runs one operation at a time, and with two lanes a forward waits for what stands ahead of it in the list;
    so the order alone says what is held at the start of each forward.
    """
    most = list(problem.base)
    delta = problem.delta
    for d, order in enumerate(orders[: problem.devices]):
        held = problem.base[d]
        for kind, stage, _ in order:
            held += delta[kind][stage]
            if held > most[d]:
                most[d] = held
    return tuple(most)


def starts(problem: PipelineSchedule, orders: Orders) -> Starts | None:
    """Start of every operation and transfer, or None if the orders wait for each other in a circle.

    Raises
    ------
    ValueError
        If a device's list is not exactly what it must run, or that of transfers not what must travel.
    """
    _check(problem, orders)
    return timed(problem, orders)


def makespan(problem: PipelineSchedule, begun: Starts) -> int:
    """(5) of given starts: the last end anywhere, endings included."""
    waits, last = problem.overlap == "none", [0] * problem.stages
    for op, begin in begun.items():
        if waits or op.kind in ("F", "I", "W"):  # a device that waits is busy until its tensors have left
            last[op.stage] = max(last[op.stage], begin + problem.duration(op))
    return max(end + ending for end, ending in zip(last, problem.ending, strict=True))


def evaluate(problem: PipelineSchedule, orders: Orders) -> int | None:
    """(5) with every operation as early as possible; None if the orders deadlock or exceed a memory limit.

    Raises
    ------
    ValueError
        If a device's list is not exactly what it must run.
    """
    _check(problem, orders)
    return worth(problem, orders)


def worth(problem: PipelineSchedule, orders: Orders) -> int | None:
    """`evaluate` of lists that are known to be complete."""
    if any(peak > limit for peak, limit in zip(peaks(problem, orders), problem.limit, strict=True)):
        return None
    begun = timed(problem, orders)
    return None if begun is None else makespan(problem, begun)


def feasible(problem: PipelineSchedule, orders: Orders) -> bool:
    """Whether the orders are complete, end, and keep to memory."""
    try:
        return evaluate(problem, orders) is not None
    except ValueError:
        return False


def orders_of(problem: PipelineSchedule, begun: Starts) -> Orders:
    """The orders in which given starts run, as early as their inputs allow at equal starts, transfers last.

    Operations that take no time may share their start; then whoever must come first is listed first.
    """

    def place(op: Op) -> tuple[int, int, int, int]:
        return begun[op], begun[op] + problem.duration(op), op.micro_batch, depth(problem, op)

    sequence = sorted(problem.everything(), key=place)
    return listed(problem, {op: begun[op] for op in sequence})


def listed(problem: PipelineSchedule, begun: Starts) -> Orders:
    """The lists of starts that are given in the order in which they happen.

    With two lanes an I or W stands where it ends, as only then a forward finds its memory: so no forward waits that did
    not wait before, and the list holds what the device holds.
    """
    lists: list[list[Op]] = [[] for _ in range(problem.devices)]
    sent: list[Op] = []
    for op in begun:
        (lists[problem.device[op.stage]] if op.kind in ("F", "I", "W") else sent).append(op)

    def place(op: Op) -> tuple[int, int]:
        time = problem.duration(op)
        end = begun[op] + time
        return (end, 1) if not time else (begun[op], 2) if op.kind == "F" else (end, 0)

    orders = [sorted(own, key=place) if problem.has_lanes(d) else own for d, own in enumerate(lists)]
    return tuple(map(tuple, [*orders, sent] if problem.sent else orders))


def _check(problem: PipelineSchedule, orders: Orders) -> None:
    if len(orders) != problem.devices and not (problem.sent and len(orders) == problem.devices + 1):
        raise ValueError(f"{len(orders)} orders for {problem.devices} devices")
    for d, order in enumerate(orders):
        wanted = set(problem.operations(d) if d < problem.devices else problem.transfers())
        if len(order) != len(wanted) or set(order) != wanted:
            odd = sorted(set(order) ^ wanted)
            who = f"device {d} must run" if d < problem.devices else "wires must carry"
            raise ValueError(f"{who} {len(wanted)} operations, each once; wrong or missing: {odd[:5]}")
