"""The objective of given orders: every operation starts as early as its device, its inputs and its wires allow.

::

    lanes ──end of F or I──▶ wires ──arrival──▶ lanes        transfers wait while any lane can move: whatever is still
                                                             to come is ready no earlier than the first that waits
"""

from collections import deque
from heapq import heappop, heappush

from pipeplan_formulations.schedule.instance import Kind, Op, Orders, PipelineSchedule, Row
from pipeplan_formulations.schedule.precedence import depth


class _Wires:
    """What both ways to serve have in common: which wires a transfer takes, and when they are free."""

    def __init__(self, problem: PipelineSchedule) -> None:
        self._problem = problem
        self._wires: dict[Row, list[int]] = {}
        for wire, rows in problem.carried.items():
            for row in rows:
                self._wires.setdefault(row, []).append(wire)
        self._free = dict.fromkeys(problem.carried, 0)

    def _take(self, op: Op, ready: int) -> tuple[Op, int]:
        """Occupy the wires as soon as all of them are free."""
        wires = self._wires[op.kind, op.stage]
        begin = max(ready, *(self._free[wire] for wire in wires))
        for wire in wires:
            self._free[wire] = begin + self._problem.duration(op)
        return op, begin


class FirstCome(_Wires):
    """By readiness; of those ready at once what the lower device sends goes first, then what it lists first."""

    def __init__(self, problem: PipelineSchedule, orders: Orders) -> None:
        super().__init__(problem)
        self._place: dict[Op, tuple[int, int]] = {}
        for d, order in enumerate(orders if problem.sent else ()):
            for n, op in enumerate(order):
                if (transfer := problem.transfer(op)) is not None:
                    self._place[transfer] = d, n
        self._alone = {row for row, wires in self._wires.items() if all(len(problem.carried[w]) == 1 for w in wires)}
        self._at_once: list[tuple[int, Op]] = []
        self._queue: list[tuple[int, tuple[int, int], Op]] = []

    def offer(self, op: Op, ready: int) -> None:
        """A transfer may begin from then on."""
        if (op.kind, op.stage) in self._alone:
            self._at_once.append((ready, op))
        else:
            heappush(self._queue, (ready, self._place[op], op))

    def serve(self) -> tuple[Op, int] | None:
        """The next one and its begin; to be asked when nothing else can happen before."""
        if self._at_once:
            ready, op = self._at_once.pop(0)
        elif self._queue:
            ready, _, op = heappop(self._queue)
        else:
            return None
        return self._take(op, ready)


class Listed(_Wires):
    """As a list of all transfers says."""

    def __init__(self, problem: PipelineSchedule, order: tuple[Op, ...]) -> None:
        super().__init__(problem)
        self._left = {wire: deque[Op]() for wire in problem.carried}
        for op in order:
            for wire in self._wires[op.kind, op.stage]:
                self._left[wire].append(op)
        self._ready: dict[Op, int] = {}
        self._look: list[Op] = []

    def offer(self, op: Op, ready: int) -> None:
        """A transfer may begin from then on."""
        self._ready[op] = ready
        self._look.append(op)

    def serve(self) -> tuple[Op, int] | None:
        """One that is first in the list of each of its wires, and its begin."""
        while self._look:
            op = self._look.pop()
            own = [self._left[wire] for wire in self._wires[op.kind, op.stage]]
            if op in self._ready and all(left[0] == op for left in own):
                for left in own:
                    left.popleft()
                self._look.extend(left[0] for left in own if left)
                return self._take(op, self._ready.pop(op))
        return None


Starts = dict[Op, int]

UNKNOWN = -1


def timed(problem: PipelineSchedule, orders: Orders) -> Starts | None:
    """Start of every operation and transfer, or None if the orders, which are complete, wait in a circle."""
    last, m = problem.stages - 1, problem.micro_batches
    lists, ahead = _by_lane(problem, orders)
    wires = Listed(problem, orders[-1]) if len(orders) > problem.devices else FirstCome(problem, orders)
    ends: dict[Kind, list[list[int]]] = {kind: [[UNKNOWN] * m for _ in problem.device] for kind in ("F", "I", "W")}
    # When the input from the stage before, or behind, is there.
    there: dict[Kind, list[list[int]]] = {kind: [[UNKNOWN] * m for _ in problem.device] for kind in ("F", "I")}
    there["F"][0], there["I"][last] = [0] * m, [0] * m
    home, hears, sent = _homes(problem), _hearers(problem), problem.sent
    waits = problem.overlap == "none"
    begun: Starts = {}
    next_one, free = [0] * len(lists), [0] * len(lists)
    movable = list(range(len(lists)))

    def arrive(kind: Kind, s: int, i: int, left: int) -> None:
        """What F or I of a stage made has left its device for good."""
        if kind == "F" and s < last:
            there["F"][s + 1][i] = left + problem.lag[s]
        elif kind == "I" and s:
            there["I"][s - 1][i] = left + problem.lag_back[s - 1]

    while True:
        while movable:
            lane = movable.pop()
            order = lists[lane]
            while next_one[lane] < len(order) and free[lane] >= 0:
                op = order[next_one[lane]]
                kind, s, i = op
                begin = ends["I"][s][i] if kind == "W" else there[kind][s][i]
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
                begun[op] = begin = max(begin, free[lane])
                end = ends[kind][s][i] = begin + problem.time[kind][s]
                free[lane] = end
                next_one[lane] += 1
                transfer = sent.get((kind, s))
                if transfer is None:
                    arrive(kind, s, i, end)
                else:
                    wires.offer(Op(*transfer, i), begin + problem.ready[transfer])
                    if waits:
                        free[lane] = UNKNOWN
                movable.extend(hears[kind, s])
        served = wires.serve()
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
        movable.extend((home[source, s], *hears[source, s]))
    return begun if all(n == len(order) for n, order in zip(next_one, lists, strict=True)) else None


def _by_lane(problem: PipelineSchedule, orders: Orders) -> tuple[list[tuple[Op, ...]], dict[int, list[int]]]:
    """The list of each lane; and for those that run forwards only, of each how many operations of the other one, the
    next in number, stand ahead of it."""
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


def _hearers(problem: PipelineSchedule) -> dict[Row, tuple[int, ...]]:
    """The other lanes that may wait for the operations of a row."""
    home = _homes(problem)
    hears = {(kind, s): {home["F", s]} for kind, s in home}  # its forwards may wait for the memory
    for row, inputs in problem.inputs.items():
        for other, _ in inputs:
            hears[other].add(home[row])
    return {row: tuple(lanes - {home[row]}) for row, lanes in hears.items()}


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
    _check_complete(problem, orders)
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
    _check_complete(problem, orders)
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


def _check_complete(problem: PipelineSchedule, orders: Orders) -> None:
    if len(orders) != problem.devices and not (problem.sent and len(orders) == problem.devices + 1):
        raise ValueError(f"{len(orders)} orders for {problem.devices} devices")
    for d, order in enumerate(orders):
        wanted = set(problem.operations(d) if d < problem.devices else problem.transfers())
        if len(order) != len(wanted) or set(order) != wanted:
            odd = sorted(set(order) ^ wanted)
            who = f"device {d} must run" if d < problem.devices else "wires must carry"
            raise ValueError(f"{who} {len(wanted)} operations, each once; wrong or missing: {odd[:5]}")
