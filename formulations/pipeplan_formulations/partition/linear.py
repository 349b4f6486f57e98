"""The chain partition problem as a mixed-integer linear model.

Every quantity that depends on a cut is a sum over c with the differences of y (see `link_positions`). In the picture
there, F_1 = prefix[5] − prefix[3]. Times of stages and links are variables, tied to y by equations, so each
inequality is one short row.
"""

from collections.abc import Sequence

import numpy as np

from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.mip.exposed import exposed_collectives
from pipeplan_formulations.common.mip.model import Expression
from pipeplan_formulations.common.scaling import Scale
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.link_positions import Membership, add_link_positions
from pipeplan_formulations.partition.memory_rows import TieFlags, add_memory_rows
from pipeplan_formulations.partition.model import PartitionModel
from pipeplan_formulations.partition.objective import Hop, delays_of_resources
from pipeplan_formulations.partition.terms import ahead, behind, delays, load
from pipeplan_formulations.partition.windows import windows


def linear_model(problem: ChainPartition, scale: Scale, low: int, high: int) -> PartitionModel | None:
    """The linear model in units of ``scale``, T between ``low`` and ``high``; None if no partition fits."""
    room = windows(problem)
    if not room.possible:
        return None
    # Positions of the links, and memory.
    model = PartitionModel()
    add_link_positions(model, problem, room)
    on = Membership(model, problem)
    tie_flags = TieFlags(model, on)
    add_memory_rows(model, problem, room, on, tie_flags)
    # Variables for the times of stages and links.
    forward, backward, update = (
        _stage_times(model, problem, scale, name, tie_flags) for name in ("forward", "backward", "update")
    )
    send, back, link = (_link_times(model, problem, scale, name) for name in ("send", "send_back", "link"))
    model.minimize(model.time(low, high))
    stages = list(zip(forward, backward, [*send, Expression({})], [Expression({}), *back], strict=True))
    reduce = [_reduction(model, problem, scale, s, on, tie_flags) for s in range(problem.stages)]
    if problem.objective == "bottleneck":
        _bottleneck(model, problem, scale, stages, link, reduce)
        return model
    weight = [Expression({})] * problem.stages
    if problem.weight is not None:
        weight = _stage_times(model, problem, scale, "weight", tie_flags)
    _step(model, problem, scale, stages, [u + r for u, r in zip(update, reduce, strict=True)], weight)

    def held(link: int, row: Sequence[int]) -> Expression:
        return model.define(model.chosen(link, scale.down(np.array(row))))

    for path in problem.paths:  # path cuts
        length = path.length(forward, backward, update, reduce, send, back, held)
        model.above(length - path.constant + scale.down(path.constant))
    return model


def _stage_times(
    model: PartitionModel, problem: ChainPartition, scale: Scale, name: str, tie_flags: TieFlags
) -> list[Expression]:
    """The time of each stage, a sum over its layers; backwards include the forwards of recomputed layers."""
    prefix = np.insert(np.cumsum(scale.down(getattr(problem, name)), axis=-1), 0, 0, axis=-1)
    times = [model.over_stage(s, prefix[s]) for s in range(problem.stages)]
    if name == "backward":
        for again in model.again:
            times[again.stage] += Expression(
                {again.number: scale.down(int(problem.forward[again.stage, again.layers[0]]))}
            )
    if name == "update" and problem.objective != "bottleneck":
        for tie in problem.ties:
            for s, update in enumerate(scale.down(np.array(tie.update)).tolist()):
                times[s] += update * tie_flags.has_copy(tie, s) if update else 0
    return [model.define(time) for time in times]


def _link_times(model: PartitionModel, problem: ChainPartition, scale: Scale, name: str) -> list[Expression]:
    """The table's entry for the cut of each link."""
    table = scale.down(getattr(problem, name))
    return [model.define(model.chosen(link, table[link])) for link in range(problem.stages - 1)]


def _reduction(
    model: PartitionModel, problem: ChainPartition, scale: Scale, s: int, on: Membership, tie_flags: TieFlags
) -> Expression:
    """R_s: what is exposed of the layers' sums and gathers, and the parts of ties that are split."""
    total = _exposed(model, s, on, problem.reduce[s], problem.hides[s], int(problem.reduce_base[s]), scale)
    if s == 0 or problem.objective == "period":
        base = int(problem.gather_base[s])
        total += _exposed(model, s, on, problem.gather[s], problem.gather_hides[s], base, scale)
    for tie in problem.ties:
        copy, home = scale.down(tie.reduce[s]), scale.down(tie.home[s])
        total += copy * tie_flags.has_copy(tie, s) if copy else 0
        total += home * tie_flags.is_home(tie, s) if home else 0
    return model.define(total)


def _exposed(
    model: PartitionModel, s: int, on: Membership, times: Array, hides: Array, base: int, scale: Scale
) -> Expression:
    """What is exposed of collectives that take ``times`` for each layer, and ``base``.

    If nothing is hidden, it is the sum over the layers, and the base if one of them has a time.
    """
    some = times > 0
    if not some.any():
        return Expression({})
    if hides.any():
        inside = [on(s, layer) for layer in range(len(times))]
        return exposed_collectives(model, inside, times.tolist(), hides.tolist(), base, scale.unit)
    total, base = model.over_stage(s, np.insert(np.cumsum(scale.down(times)), 0, 0)), scale.down(base)
    if base and some.all():
        total += base
    elif base:
        total += base * model.largest([on(s, int(i)) for i in np.flatnonzero(some)])
    return total


def _bottleneck(
    model: PartitionModel,
    problem: ChainPartition,
    scale: Scale,
    stages: Sequence[tuple[Expression, ...]],
    link: list[Expression],
    reduce: list[Expression],
) -> None:
    """Add the bottleneck: T is at least the busy time per sample of each stage and, if transfers overlap, of each link.

    N T is at least the busy time per step. T is an integer, so subtracting N − 1 from that time rounds its quotient
    down. Links round down, and so do stages in units larger than 1, to keep a lower bound.
    """
    many = problem.divisor
    rows = [
        (c.stage * load(problem.overlap, *times) + once, 0 if scale.unit == 1 else many - 1)
        for c, times, once in zip(problem.through, stages, reduce, strict=True)
    ]
    if problem.overlap != "none":
        rows += [(c.out * busy, many - 1) for c, busy in zip(problem.through, link, strict=False)]
    for time, slack in rows:
        model.at_least(Expression({model.objective: many}) - (time - slack))


def _step(
    model: PartitionModel,
    problem: ChainPartition,
    scale: Scale,
    stages: Sequence[tuple[Expression, ...]],
    ending: Sequence[Expression],
    weight: Sequence[Expression],
) -> None:
    """Add way back and own ending, then services, warm-up and link resources. ``ending``: E_s, ``weight``: V_s."""
    # ``head`` is H_s = E_0 + Σ (p_t + q_t), ``way`` is Σ p_t, both over the stages before.
    # In a long run the own-ending bound is about the stage alone, so ``way`` stays 0.
    head, way = ending[0] + weight[0], Expression({})
    ending = [e + count.stage * v for e, v, count in zip(ending, weight, problem.through, strict=True)]
    for s, (times, count) in enumerate(zip(stages, problem.through, strict=True)):
        forward, backward, send, return_in = times
        busy = count.stage * load(problem.overlap, *times)
        model.above(head + busy)
        if (s > 0 or problem.weight is not None) and (ending[s].terms or ending[s].constant):
            model.above(way + busy + ending[s])
        final = s == problem.stages - 1
        latency = 0 if final else scale.down(int(problem.latency[s]))
        return_out = Expression({}) if final else stages[s + 1][3]
        there = ahead(problem.overlap, forward, latency, send)
        head = model.define(head + there + behind(problem.overlap, backward, latency, return_in, return_out))
        counts_way = problem.objective == "step" and not final
        if counts_way and any(e.terms or e.constant for e in ending[s + 1 :]):
            way = model.define(way + there)

    def held(link: int, row: Array) -> Expression:
        return model.define(model.chosen(link, scale.down(row)))

    # Here ``head`` is R; f, g and l before and behind each stage for the link-resource bound.
    nothing, latencies = Expression({}), scale.down(problem.latency).tolist()
    sends, returns = [nothing, *(times[2] for times in stages)], [*(times[3] for times in stages), nothing]
    hops = [Hop(*times) for times in zip(sends, returns, [0, *latencies, 0], strict=True)]
    for s, (times, count) in enumerate(zip(stages, problem.through, strict=True)):
        forward, backward, send, return_in = times
        shared = delays_of_resources(problem, s, forward, backward, hops[s], hops[s + 1], held)
        for delay in (*delays(problem.overlap, count, forward, backward, send, return_in, weight[s]), *shared):
            model.above(head + delay)
