"""Path cuts: the critical path of a simulation as an inequality of the partition problem.

::

    0F0 ──f──▶ 1F0  1F1  1B1 ──g──▶ 0B1  0U            T ≥ F_0 + 2 F_1 + B_1 + B_0 + U_0 + f_0 + g_0 + 2 l_0

In a given order of actions, those of a path follow one another whatever layers the stages hold. So the length of the
path, as a sum over stages, bounds the step time of every partition (path cuts of the partition problem).

Replicas of a stage take equally long, so a path may go through any of them. A reduction begins when the last replica
is ready, so a path may change replicas there:

::

    1F1 (device 2)  1B1 (device 2)  1R (all replicas)  1U

Transfers between different pairs of replicas may differ. A path counts the shortest transfer of its boundary, which
keeps it a bound. Where ``surplus`` gives the additional time of each pair, the path counts this, too.

Paths are those of a step in which all parameters are in place, so they begin with a forward of stage 0. What that waits
for gathers is part of the partition problem's R_0.

Index: path cuts → `as_cut`, `find_path_cut`; counts of a path → `read_path`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.timeline import Span, TransferSpan
from pipeplan.costs.chain import Array
from pipeplan.simulate import longest_path
from pipeplan_formulations.partition import PathCut

Surplus = Callable[[int, int], Array]

_HALVES = (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)


@dataclass(frozen=True)
class Path:
    """Number of times that each duration counts on a path.

    Attributes
    ----------
    forward, backward, input_gradient, weight_gradient, reduce, update : tuple of int
        One per stage.
    send, send_back, latency, latency_back : tuple of int
        One per boundary.
    period_indices : tuple of (boundary, period_index)
        For each transfer in ``send`` and ``send_back``, the pair of replicas that it joins (see `Pipeline`).
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    input_gradient: tuple[int, ...]
    weight_gradient: tuple[int, ...]
    reduce: tuple[int, ...]
    update: tuple[int, ...]
    send: tuple[int, ...]
    send_back: tuple[int, ...]
    latency: tuple[int, ...]
    latency_back: tuple[int, ...]
    period_indices: tuple[tuple[int, int], ...] = ()

    def length(self, pipeline: Pipeline) -> int:
        """Nanoseconds: a lower bound on the step time of a pipeline with the same schedule, replicas and overlap."""
        total = 0
        for kind, counts in (
            (Kind.FORWARD, self.forward),
            (Kind.BACKWARD, self.backward),
            (Kind.INPUT_GRADIENT, self.input_gradient),
            (Kind.WEIGHT_GRADIENT, self.weight_gradient),
            (Kind.REDUCE, self.reduce),
            (Kind.UPDATE, self.update),
        ):
            total += sum(count * stage.least(kind) for count, stage in zip(counts, pipeline.stages, strict=True))
        for counts, late, transfers in (
            (self.send, self.latency, pipeline.transfers),
            (self.send_back, self.latency_back, pipeline.returns),
        ):
            for count, latencies, row in zip(counts, late, transfers, strict=True):
                total += count * min(transfer.occupancy for transfer in row) + latencies * least_latency(row)
        return total


def least_latency(transfers: tuple[Transfer, ...]) -> int:
    """Least latency in nanoseconds over the transfers of one boundary and direction."""
    return min(transfer.latency for transfer in transfers)


def find_path_cut(
    schedule: Schedule, pipeline: Pipeline, surplus: Surplus | None = None, *, to: int | None = None
) -> PathCut:
    """Simulate with ``share=False`` and return the critical path as a path cut; builds no timeline.

    ``to``: the path ends with this stage's step, instead of with the last one's.
    ``surplus(boundary, period_index)``: for each layer boundary, nanoseconds of a transfer between these
    devices beyond the least.

    Raises
    ------
    PlanError
        As in `as_cut` and `pipeplan.simulate.simulate`.
    """
    pipeline = pipeline.without_gathers()
    return as_cut(longest_path(schedule, pipeline, share=False, to=to), pipeline, schedule, surplus)


def as_cut(
    critical: Sequence[Span | TransferSpan], pipeline: Pipeline, schedule: Schedule, surplus: Surplus | None = None
) -> PathCut:
    """Return the critical path of a simulation with ``share=False`` as a path cut; see `find_path_cut`.

    Raises
    ------
    PlanError
        If the path holds half a backward, for which the partition problem has no term, or cannot be read (`read_path`).
    """
    path = read_path(critical, pipeline, schedule)
    if any(path.input_gradient) or any(path.weight_gradient):
        halves = (item.action for item in critical if isinstance(item, Span) and item.action.kind in _HALVES)
        raise PlanError(f"the critical path holds {next(halves)}, for which the partition problem has no term")
    latencies = zip((*path.latency, *path.latency_back), (*pipeline.transfers, *pipeline.returns), strict=True)
    constant = sum(count * least_latency(row) for count, row in latencies)
    more = _beyond(path.period_indices, surplus) if surplus is not None else ()
    return PathCut(path.forward, path.backward, path.update, path.send, path.send_back, constant, path.reduce, more)


def _beyond(period_indices: Sequence[tuple[int, int]], surplus: Surplus) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Surplus of the path's transfers by boundary: for each layer boundary the sum in nanoseconds."""
    rows: dict[int, Array] = {}
    for (boundary, period_index), count in Counter(period_indices).items():
        row = count * surplus(boundary, period_index)
        rows[boundary] = rows[boundary] + row if boundary in rows else row
    return tuple((boundary, tuple(row.tolist())) for boundary, row in sorted(rows.items()) if row.any())


def read_path(path: Sequence[Span | TransferSpan], pipeline: Pipeline, schedule: Schedule) -> Path:
    """Count the actions, transfers and latencies of a critical path, per stage and boundary.

    Raises
    ------
    PlanError
        If the path comes from a simulation in which boundaries share links, or holds half a backward on a device with
        two lanes, whose time is no sum of the stage's times.
    """
    actions = {kind: [0] * len(pipeline.stages) for kind in Kind}
    boundaries = range(len(pipeline.stages) - 1)
    period_indices: list[tuple[int, int]] = []
    sends, latencies = ([[0 for _ in boundaries] for _ in range(2)] for _ in range(2))  # forward, back
    for before, item, after in zip([None, *path[:-1]], path, [*path[1:], None], strict=True):
        if isinstance(item, Span):
            if not _only_started(item, after, pipeline.overlap):
                _count(actions, item, schedule.two_lanes)
            continue
        link, back = min(item.source, item.target), int(item.source > item.target)
        if not _left_with_its_action(item, before, pipeline.overlap):
            sends[back][link] += 1
            period_indices.append((link, item.micro_batch % pipeline.periods[link]))
        if isinstance(after, TransferSpan) and _pair(after, pipeline) != _pair(item, pipeline):
            raise PlanError("the critical path holds two transfers that share a link; simulate with share=False")
        if isinstance(after, Span) and _read_by(item, after):  # not a sender that waited
            latencies[back][link] += 1
    return Path(
        forward=tuple(actions[Kind.FORWARD]),
        backward=tuple(actions[Kind.BACKWARD]),
        input_gradient=tuple(actions[Kind.INPUT_GRADIENT]),
        weight_gradient=tuple(actions[Kind.WEIGHT_GRADIENT]),
        reduce=tuple(actions[Kind.REDUCE]),
        update=tuple(actions[Kind.UPDATE]),
        send=tuple(sends[0]),
        send_back=tuple(sends[1]),
        latency=tuple(latencies[0]),
        latency_back=tuple(latencies[1]),
        period_indices=tuple(period_indices),
    )


def _pair(transfer: TransferSpan, pipeline: Pipeline) -> tuple[int, int, int]:
    period = pipeline.periods[min(transfer.source, transfer.target)]
    return transfer.source, transfer.target, transfer.micro_batch % period


def _count(actions: dict[Kind, list[int]], span: Span, two_lanes: bool) -> None:
    kind, stage = span.action.kind, span.action.stage
    if two_lanes and kind in _HALVES:
        raise PlanError(f"the critical path holds {span.action} on two lanes, whose time is no sum of the stage's")
    actions[kind][stage] += 1
    if two_lanes and kind.per_micro_batch:  # each of the two takes F + B there
        other = Kind.BACKWARD if kind is Kind.FORWARD else Kind.FORWARD
        actions[other][stage] += 1


def _sent_by(transfer: TransferSpan, span: Span) -> bool:
    action = span.action
    same = (action.stage, action.micro_batch, action.slice) == (transfer.source, transfer.micro_batch, transfer.slice)
    return same and action.kind in _kinds(transfer)


def _read_by(transfer: TransferSpan, span: Span) -> bool:
    action = span.action
    same = (action.stage, action.micro_batch, action.slice) == (transfer.target, transfer.micro_batch, transfer.slice)
    return same and action.kind in _kinds(transfer)


def _kinds(transfer: TransferSpan) -> tuple[Kind, ...]:
    """Kinds of the actions that make and read the tensor."""
    return (Kind.FORWARD,) if transfer.source < transfer.target else (Kind.BACKWARD, Kind.INPUT_GRADIENT)


def _only_started(span: Span, after: Span | TransferSpan | None, overlap: Overlap) -> bool:
    """Return True if only the start of an action counts: where tensors stream, the first byte leaves then."""
    streams = overlap is Overlap.STREAM and isinstance(after, TransferSpan) and _sent_by(after, span)
    return streams and isinstance(after, TransferSpan) and after.end != span.end


def _left_with_its_action(transfer: TransferSpan, before: Span | TransferSpan | None, overlap: Overlap) -> bool:
    """Return True if a streamed tensor has left when its action ends, so that its transfer adds no time."""
    streams = overlap is Overlap.STREAM and isinstance(before, Span) and _sent_by(transfer, before)
    return streams and isinstance(before, Span) and transfer.end == before.end
