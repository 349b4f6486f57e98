"""When every operation of given lists starts, as early as may be.

::

    lanes ──end of F or I──▶ wires ──arrival──▶ lanes        transfers wait while any lane can move: whatever is still
                                                             to come is ready no earlier than the first that waits
"""

from pipeplan_formulations.schedule.problem import Kind, Op, Orders, PipelineSchedule, Row
from pipeplan_formulations.schedule.wires import FirstCome, Listed

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
