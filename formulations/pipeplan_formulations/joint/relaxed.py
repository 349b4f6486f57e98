"""Relaxation of all choices of a box to one instance of the schedule problem and one of the partition problem.

Stage s of a box holds at least the layers between the largest b_s and the smallest b_{s+1}, its *core*:

::

    b_s      ├────────┤
    b_{s+1}                   ├──────┤          every stage s of the box takes at least as long as its core,
    core               ═══════                  has at most the largest in-flight count of any span,
                                                and its tensors take at least as long as the smallest ones

An instance with the least times and the most room is a relaxation of the instance of every choice: the same orders are
feasible in it, and end no later. The least in-flight count gives the least recomputation. Each number is minimised
separately over all spans of the box. A lower bound on that instance's optimum holds for all choices of the box.
"""

from dataclasses import dataclass, replace

import numpy as np

from pipeplan_formulations.common.layer_tables import Array, Flags
from pipeplan_formulations.joint.box import Box
from pipeplan_formulations.joint.instance import Choice, JointPipeline
from pipeplan_formulations.partition import ChainPartition
from pipeplan_formulations.partition.objective import copies_update, reductions
from pipeplan_formulations.schedule import PipelineSchedule


@dataclass
class _Least:
    """Least times (of transfers too) and largest in-flight count of one stage."""

    forward: int
    backward: int
    weight: int
    ending: int
    room: int
    send: int = 0
    back: int = 0


def relaxed(problem: JointPipeline, box: Box) -> PipelineSchedule | None:
    """Schedule problem that relaxes those of all choices of a box; None if no choice of the box fits."""
    # Prefix sums of I (or B) and W over the layers; then per stage the spans of the box that fit.
    backward, weight = (np.insert(np.cumsum(t, axis=1), 0, 0, axis=1) for t in problem.passes(box.split))
    rows = []
    for s in range(problem.stages):
        a = np.arange(box.low[s], box.high[s] + 1)[:, None]
        b = np.arange(box.low[s + 1], box.high[s + 1] + 1)[None, :]
        fitting = problem.fitting[s, a, b]
        open_ = (a < b) & _allowed(problem, s, a, b) & (fitting >= box.fewest[s])
        if not open_.any():
            return None
        rows.append(
            _least(
                problem,
                box,
                s,
                (np.broadcast_to(a, open_.shape), np.broadcast_to(b, open_.shape)),
                open_,
                fitting,
                backward[s],
                weight[s],
            )
        )
    return _instance(problem, rows, tuple(split is not False for split in box.split))


def _least(
    problem: JointPipeline,
    box: Box,
    s: int,
    span: tuple[Array, Array],
    open_: Flags,
    fitting: Array,
    backward: Array,
    weight: Array,
) -> _Least:
    chain, (a, b) = problem.chain, (edge[open_] for edge in span)
    forward, update = (chain.prefix[name][s] for name in ("forward", "update"))
    stage = np.array(s)
    again = problem.with_in_flight(box.fewest[s]).recomputing.lower_bounds(s, a, b, np.ones(len(a), np.bool_))
    ending = update[b] - update[a] + reductions(chain, stage, a, b) + copies_update(chain, stage, a, b)
    return _Least(
        forward=int((forward[b] - forward[a]).min()),
        backward=int((backward[b] - backward[a] + again).min()),
        weight=int((weight[b] - weight[a]).min()),
        ending=int(ending.min()),
        room=min(box.most[s], int(fitting[open_].max())),
        send=int(chain.send[s, b - 1].min()) if s < problem.stages - 1 else 0,
        back=int(chain.send_back[s - 1, a - 1].min()) if s else 0,
    )


def scheduled(problem: JointPipeline, choice: Choice) -> PipelineSchedule | None:
    """Schedule problem of a choice; None if it does not fit or violates a constraint on layers and stages."""
    backward, weight = problem.passes(choice.split)
    chain, edges, rows = problem.chain, choice.boundaries, []
    for s in range(problem.stages):
        a, b = edges[s], edges[s + 1]
        if problem.fitting[s, a, b] < choice.in_flight[s] or not _allowed(problem, s, np.array(a), np.array(b)):
            return None
        span = np.array(s), np.array(a), np.array(b)
        rows.append(
            _Least(
                forward=int(chain.forward[s, a:b].sum()),
                backward=int(backward[s, a:b].sum()) + problem.recomputation(s, a, b, choice.in_flight[s]),
                weight=int(weight[s, a:b].sum()),
                ending=int(chain.update[s, a:b].sum() + reductions(chain, *span) + copies_update(chain, *span)),
                room=choice.in_flight[s],
                send=int(chain.send[s, b - 1]) if s < problem.stages - 1 else 0,
                back=int(chain.send_back[s - 1, a - 1]) if s else 0,
            )
        )
    return _instance(problem, rows, choice.split)


def chained(problem: JointPipeline, box: Box, room: tuple[int, ...]) -> ChainPartition:
    """Partition problem whose optimum is a lower bound on all choices of a box.

    Its equations hold for any order with one lane (docs/bounds/any-order.md) and at most ``room`` in flight on each
    stage.
    """
    backward, weight = problem.passes(box.split)
    where = box.where(problem.layers)
    return replace(
        problem.chain,
        backward=backward,
        weight=weight,
        in_flight=np.array(box.fewest),
        warm_up=np.array(room),
        alternating=True,
        where=where if problem.chain.where is None else where & problem.chain.where,
    )


def _allowed(problem: JointPipeline, s: int, a: Array, b: Array) -> Flags:
    """True where the constraints of the chain allow the layers a … b − 1 on stage s."""
    chain = problem.chain
    allowed = np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_)
    if chain.cuts is not None:
        cuts = np.concatenate([[True], chain.cuts, [True]])
        allowed &= cuts[a] & cuts[b]
    if chain.where is not None:
        forbidden = np.insert(np.cumsum(~chain.where[s]), 0, 0)
        allowed &= forbidden[a] == forbidden[b]
    return allowed


def _instance(problem: JointPipeline, rows: list[_Least], split: tuple[bool, ...]) -> PipelineSchedule:
    """Schedule problem of these stages: busy times, lags by the table of `instance`, and counts instead of bytes."""
    # Lags after forwards and backwards; without overlap the sender's action grows instead.
    overlap, latency = problem.chain.overlap, problem.chain.latency.tolist()
    lag = list(latency)
    lag_back = list(latency)
    for s in range(len(rows) - 1):
        sender, returner = rows[s], rows[s + 1]
        if overlap == "none":
            sender.forward += sender.send
            returner.backward += returner.back
        elif overlap == "stream":
            lag[s] += max(0, sender.send - sender.forward)
            lag_back[s] += max(0, returner.back - returner.backward)
        else:
            lag[s] += sender.send
            lag_back[s] += returner.back
    ones, zeros = (1,) * len(rows), (0,) * len(rows)
    return PipelineSchedule(
        device=tuple(range(len(rows))),
        micro_batches=problem.micro_batches,
        forward=tuple(row.forward for row in rows),
        backward=tuple(row.backward for row in rows),
        weight=tuple(row.weight for row in rows),
        split=split,
        lag=tuple(lag),
        lag_back=tuple(lag_back),
        ending=tuple(row.ending for row in rows),
        taken=ones,
        freed=tuple(int(not own) for own in split),
        freed_by_weight=tuple(map(int, split)),
        base=zeros,
        limit=tuple(row.room for row in rows),
    )
