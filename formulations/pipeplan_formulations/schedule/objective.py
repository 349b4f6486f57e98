"""Evaluation of given orders: every operation starts as early as its device, its inputs and its links allow.

::

    lanes ──end of F or I──▶ links ──arrival──▶ lanes        transfers are served once no lane can advance: later ones
                                                             are ready no earlier than the first one that waits
"""

from collections import deque
from heapq import heappop, heappush

from pipeplan_formulations.schedule.instance import Kind, Op, Orders, PipelineSchedule, Row
from pipeplan_formulations.schedule.precedence import depth


class _LinkResources:
    """Base of both service rules: the link resources of each transfer, and the times when resources are free."""

    def __init__(self, problem: PipelineSchedule) -> None:
        self._problem = problem
        self._resources: dict[Row, list[int]] = {}
        for resource, rows in problem.carried.items():
            for row in rows:
                self._resources.setdefault(row, []).append(resource)
        self._free = dict.fromkeys(problem.carried, 0)

    def _take(self, op: Op, ready: int) -> tuple[Op, int]:
        """Occupy the resources as soon as all of them are free; return the transfer and its start."""
        resources = self._resources[op.kind, op.stage]
        begin = max(ready, *(self._free[resource] for resource in resources))
        for resource in resources:
            self._free[resource] = begin + self._problem.duration(op)
        return op, begin


class FirstCome(_LinkResources):
    """First come, first served; ties go to the lower sending device, then to its earlier list entry."""

    def __init__(self, problem: PipelineSchedule, orders: Orders) -> None:
        super().__init__(problem)
        self._place: dict[Op, tuple[int, int]] = {}
        for d, order in enumerate(orders if problem.sent else ()):
            for n, op in enumerate(order):
                if (transfer := problem.transfer(op)) is not None:
                    self._place[transfer] = d, n
        self._alone = {row for row, own in self._resources.items() if all(len(problem.carried[r]) == 1 for r in own)}
        self._at_once: list[tuple[int, Op]] = []
        self._queue: list[tuple[int, tuple[int, int], Op]] = []

    def submit(self, op: Op, ready: int) -> None:
        """Add a transfer that may begin from time ``ready`` on."""
        if (op.kind, op.stage) in self._alone:
            self._at_once.append((ready, op))
        else:
            heappush(self._queue, (ready, self._place[op], op))

    def serve(self) -> tuple[Op, int] | None:
        """Next transfer and its start, or None; call it only when no lane can advance."""
        if self._at_once:
            ready, op = self._at_once.pop(0)
        elif self._queue:
            ready, _, op = heappop(self._queue)
        else:
            return None
        return self._take(op, ready)


class Listed(_LinkResources):
    """Service in the order of a list of all transfers."""

    def __init__(self, problem: PipelineSchedule, order: tuple[Op, ...]) -> None:
        super().__init__(problem)
        self._left = {resource: deque[Op]() for resource in problem.carried}
        for op in order:
            for resource in self._resources[op.kind, op.stage]:
                self._left[resource].append(op)
        self._ready: dict[Op, int] = {}
        self._look: list[Op] = []

    def submit(self, op: Op, ready: int) -> None:
        """Add a transfer that may begin from time ``ready`` on."""
        self._ready[op] = ready
        self._look.append(op)

    def serve(self) -> tuple[Op, int] | None:
        """Transfer that is ready and first in the list of each of its links, and its start; None if there is none."""
        while self._look:
            op = self._look.pop()
            own = [self._left[resource] for resource in self._resources[op.kind, op.stage]]
            if op in self._ready and all(left[0] == op for left in own):
                for left in own:
                    left.popleft()
                self._look.extend(left[0] for left in own if left)
                return self._take(op, self._ready.pop(op))
        return None


Starts = dict[Op, int]

UNKNOWN = -1


def timed(problem: PipelineSchedule, orders: Orders) -> Starts | None:
    """Start of every operation and transfer of complete orders, or None if they deadlock.

    Lanes advance through their lists while the next operation's inputs are known. When none can advance, the links
    serve one transfer, whose arrival lets lanes advance again.
    """
    last, m = problem.stages - 1, problem.micro_batches
    lists, ahead = _by_lane(problem, orders)
    links = Listed(problem, orders[-1]) if len(orders) > problem.devices else FirstCome(problem, orders)
    ends: dict[Kind, list[list[int]]] = {kind: [[UNKNOWN] * m for _ in problem.device] for kind in ("F", "I", "W")}
    # Time when the input from the previous stage (F) or the next stage (I) has arrived.
    arrival: dict[Kind, list[list[int]]] = {kind: [[UNKNOWN] * m for _ in problem.device] for kind in ("F", "I")}
    arrival["F"][0], arrival["I"][last] = [0] * m, [0] * m
    home, waiting, sent = _homes(problem), _waiting_lanes(problem), problem.sent
    waits = problem.overlap == "none"
    begun: Starts = {}
    next_one, free = [0] * len(lists), [0] * len(lists)
    movable = list(range(len(lists)))

    def arrive(kind: Kind, s: int, i: int, left: int) -> None:
        """Record that the output of F or I of stage s was sent completely at time ``left``."""
        if kind == "F" and s < last:
            arrival["F"][s + 1][i] = left + problem.lag[s]
        elif kind == "I" and s:
            arrival["I"][s - 1][i] = left + problem.lag_back[s - 1]

    # next_one: place of each lane in its list; free: time when the lane is free, UNKNOWN while it waits for a transfer.
    while True:
        while movable:
            lane = movable.pop()
            order = lists[lane]
            while next_one[lane] < len(order) and free[lane] >= 0:
                op = order[next_one[lane]]
                kind, s, i = op
                # Earliest start by inputs; with two lanes also after the operations that precede it on the other lane.
                begin = ends["I"][s][i] if kind == "W" else arrival[kind][s][i]
                if kind == "I" and begin >= 0:
                    begin = max(begin, ends["F"][s][i]) if ends["F"][s][i] >= 0 else UNKNOWN
                elif lane in ahead and begin >= 0:
                    count = ahead[lane][next_one[lane]]
                    if count > next_one[lane + 1]:
                        break
                    if count:
                        other = lists[lane + 1][count - 1]
                        begin = max(begin, ends[other.kind][other.stage][other.micro_batch])
                if begin < 0:
                    break
                # The operation is placed; its tensor arrives after the lag, or is handed to its link.
                begun[op] = begin = max(begin, free[lane])
                end = ends[kind][s][i] = begin + problem.time[kind][s]
                free[lane] = end
                next_one[lane] += 1
                transfer = sent.get((kind, s))
                if transfer is None:
                    arrive(kind, s, i, end)
                else:
                    links.submit(Op(*transfer, i), begin + problem.ready[transfer])
                    if waits:
                        free[lane] = UNKNOWN
                movable.extend(waiting[kind, s])
        # No lane can advance: serve one transfer, which ends the sender's operation too if there is no overlap.
        served = links.serve()
        if served is None:
            break
        transfer_op, begin = served
        begun[transfer_op] = begin
        source: Kind = "F" if transfer_op.kind == "A" else "I"
        s, i = transfer_op.stage, transfer_op.micro_batch
        end = max(begin + problem.duration(transfer_op), ends[source][s][i])
        arrive(source, s, i, end)
        if waits:
            ends[source][s][i] = free[home[source, s]] = end
        movable.extend((home[source, s], *waiting[source, s]))
    return begun if all(n == len(order) for n, order in zip(next_one, lists, strict=True)) else None


def _by_lane(problem: PipelineSchedule, orders: Orders) -> tuple[list[tuple[Op, ...]], dict[int, list[int]]]:
    """List of each lane; and for lanes of forwards only, how many operations of the next lane precede each forward."""
    lists: list[tuple[Op, ...]] = []
    ahead: dict[int, list[int]] = {}
    for d in range(problem.devices):
        if not problem.has_lanes(d):
            lists.append(orders[d])
            continue
        forwards = [n for n, op in enumerate(orders[d]) if op.kind == "F"]
        ahead[len(lists)] = [n - before for before, n in enumerate(forwards)]
        lists.append(tuple(op for op in orders[d] if op.kind == "F"))
        lists.append(tuple(op for op in orders[d] if op.kind != "F"))
    return lists, ahead


def _homes(problem: PipelineSchedule) -> dict[Row, int]:
    return {row: lane for lane, rows in enumerate(problem.lanes) for row in rows}


def _waiting_lanes(problem: PipelineSchedule) -> dict[Row, tuple[int, ...]]:
    """Other lanes that may wait for the operations of each row."""
    home = _homes(problem)
    waiting = {(kind, s): {home["F", s]} for kind, s in home}  # its forwards may wait for the memory
    for row, inputs in problem.inputs.items():
        for other, _ in inputs:
            waiting[other].add(home[row])
    return {row: tuple(lanes - {home[row]}) for row, lanes in waiting.items()}


def peaks(problem: PipelineSchedule, orders: Orders) -> tuple[int, ...]:
    """Peak memory of each device in bytes, `base` included.

    A device runs one operation at a time, and with two lanes a forward waits for the operations that precede it in the
    list. So the order alone determines the bytes held at the start of each forward.
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
    """Start of every operation and transfer, or None if the orders deadlock.

    Raises
    ------
    ValueError
        If a device's list is not exactly its operations, or the list of transfers not exactly all transfers.
    """
    _check_complete(problem, orders)
    return timed(problem, orders)


def makespan(problem: PipelineSchedule, begun: Starts) -> int:
    """Step time of given starts: the last end anywhere, endings included."""
    waits, last = problem.overlap == "none", [0] * problem.stages
    for op, begin in begun.items():
        if waits or op.kind in ("F", "I", "W"):  # without overlap a device is busy until its tensors are sent
            last[op.stage] = max(last[op.stage], begin + problem.duration(op))
    return max(end + ending for end, ending in zip(last, problem.ending, strict=True))


def evaluate(problem: PipelineSchedule, orders: Orders) -> int | None:
    """Step time with every operation as early as possible; None if the orders deadlock or exceed a memory limit.

    Raises
    ------
    ValueError
        If a device's list is not exactly its operations.
    """
    _check_complete(problem, orders)
    return evaluate_complete(problem, orders)


def evaluate_complete(problem: PipelineSchedule, orders: Orders) -> int | None:
    """Objective as `evaluate`, for lists that are known to be complete."""
    if any(peak > limit for peak, limit in zip(peaks(problem, orders), problem.limit, strict=True)):
        return None
    begun = timed(problem, orders)
    return None if begun is None else makespan(problem, begun)


def feasible(problem: PipelineSchedule, orders: Orders) -> bool:
    """True if the orders are complete, free of deadlock, and within memory."""
    try:
        return evaluate(problem, orders) is not None
    except ValueError:
        return False


def orders_of(problem: PipelineSchedule, begun: Starts) -> Orders:
    """Orders of given starts, transfers last.

    Operations that take no time may share their start; they are listed in the order of their precedence.
    """

    def place(op: Op) -> tuple[int, int, int, int]:
        return begun[op], begun[op] + problem.duration(op), op.micro_batch, depth(problem, op)

    sequence = sorted(problem.everything(), key=place)
    return listed(problem, {op: begun[op] for op in sequence})


def listed(problem: PipelineSchedule, begun: Starts) -> Orders:
    """Lists of starts that are given in chronological order.

    With two lanes an I or W is listed by its end, since only then a forward can use its memory. So no forward waits
    that did not wait before, and the memory of the list is that of the device.
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


def _check_complete(problem: PipelineSchedule, orders: Orders) -> None:
    if len(orders) != problem.devices and not (problem.sent and len(orders) == problem.devices + 1):
        raise ValueError(f"{len(orders)} orders for {problem.devices} devices")
    for d, order in enumerate(orders):
        wanted = set(problem.operations(d) if d < problem.devices else problem.transfers())
        if len(order) != len(wanted) or set(order) != wanted:
            odd = sorted(set(order) ^ wanted)
            who = f"device {d} must run" if d < problem.devices else "links must carry"
            raise ValueError(f"{who} {len(wanted)} operations, each once; wrong or missing: {odd[:5]}")
