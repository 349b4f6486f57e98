"""What given orders are worth: every operation as early as its device and its inputs allow."""

from pipeplan_formulations.schedule.problem import Op, Orders, PipelineSchedule

Starts = dict[Op, int]


def peaks(problem: PipelineSchedule, orders: Orders) -> tuple[int, ...]:
    """Most bytes that each device ever has in use, `base` included.

    A device runs one operation at a time, so the order alone says what is held at the start of each forward.
    """
    most = list(problem.base)
    delta = problem.delta
    for d, order in enumerate(orders):
        held = problem.base[d]
        for kind, stage, _ in order:
            held += delta[kind][stage]
            if held > most[d]:
                most[d] = held
    return tuple(most)


def starts(problem: PipelineSchedule, orders: Orders) -> Starts | None:
    """Start of every operation, or None if the orders wait for each other in a circle.

    Raises
    ------
    ValueError
        If a device's list is not exactly what it must run.
    """
    _check(problem, orders)
    last, m = problem.stages - 1, problem.micro_batches
    ends: dict[str, list[list[int]]] = {kind: [[-1] * m for _ in problem.device] for kind in "FIW"}
    begun: Starts = {}
    next_one, free = [0] * problem.devices, [0] * problem.devices
    ready = list(range(problem.devices))  # devices whose next operation may have its inputs
    while ready:
        d = ready.pop()
        order = orders[d]
        while next_one[d] < len(order):
            op = order[next_one[d]]
            kind, s, i = op
            # The last input of an operation, and the lag from there.
            if kind == "F":
                before, lag = (ends["F"][s - 1][i], problem.lag[s - 1]) if s else (0, 0)
            elif kind == "I":
                before, lag = (ends["I"][s + 1][i], problem.lag_back[s]) if s < last else (ends["F"][s][i], 0)
                if ends["F"][s][i] < 0:
                    break
            else:
                before, lag = ends["I"][s][i], 0
            if before < 0:
                break
            begin = max(free[d], before + lag)
            begun[op] = begin
            free[d] = ends[kind][s][i] = begin + problem.time[kind][s]
            next_one[d] += 1
            for neighbour in (s - 1, s + 1):
                if 0 <= neighbour <= last and problem.device[neighbour] != d:
                    ready.append(problem.device[neighbour])
    return begun if all(n == len(order) for n, order in zip(next_one, orders, strict=True)) else None


def makespan(problem: PipelineSchedule, begun: Starts) -> int:
    """(5) of given starts: the last end anywhere, endings included."""
    last = [0] * problem.stages
    for op, begin in begun.items():
        last[op.stage] = max(last[op.stage], begin + problem.duration(op))
    return max(end + ending for end, ending in zip(last, problem.ending, strict=True))


def evaluate(problem: PipelineSchedule, orders: Orders) -> int | None:
    """(5) with every operation as early as possible; None if the orders deadlock or exceed a memory limit.

    Raises
    ------
    ValueError
        If a device's list is not exactly what it must run.
    """
    begun = starts(problem, orders)
    if begun is None or any(peak > limit for peak, limit in zip(peaks(problem, orders), problem.limit, strict=True)):
        return None
    return makespan(problem, begun)


def feasible(problem: PipelineSchedule, orders: Orders) -> bool:
    """Whether the orders are complete, end, and keep to memory."""
    try:
        return evaluate(problem, orders) is not None
    except ValueError:
        return False


def orders_of(problem: PipelineSchedule, begun: Starts) -> Orders:
    """The orders in which given starts run, as early as their inputs allow at equal starts.

    Operations that take no time may share their start; then whoever must come first is listed first.
    """
    last = problem.stages - 1
    rank = {"F": 0, "I": last + 1, "W": 2 * last + 2}

    def place(op: Op) -> tuple[int, int, int, int]:
        depth = rank[op.kind] + (last - op.stage if op.kind == "I" else op.stage)
        return begun[op], begun[op] + problem.duration(op), op.micro_batch, depth

    return tuple(tuple(sorted(problem.operations(d), key=place)) for d in range(problem.devices))


def _check(problem: PipelineSchedule, orders: Orders) -> None:
    if len(orders) != problem.devices:
        raise ValueError(f"{len(orders)} orders for {problem.devices} devices")
    for d, order in enumerate(orders):
        wanted = set(problem.operations(d))
        if len(order) != len(wanted) or set(order) != wanted:
            odd = sorted(set(order) ^ wanted)
            raise ValueError(f"device {d} must run {len(wanted)} operations, each once; wrong or missing: {odd[:5]}")
