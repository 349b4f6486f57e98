"""The chain partition problem as a mixed-integer linear model.

Every quantity that depends on a cut is a sum over c with the differences of y (see `link_positions`). In the picture
there, F_1 = prefix[5] − prefix[3]. Times of stages and links are variables, tied to y by equations, so each
inequality is one short row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.mip.exposed import exposed_collectives
from pipeplan_formulations.common.mip.model import Expression
from pipeplan_formulations.common.pass_times import Role, Times
from pipeplan_formulations.common.scaling import Scale
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.link_positions import Membership, add_link_positions
from pipeplan_formulations.partition.memory_rows import TieFlags, add_memory_rows
from pipeplan_formulations.partition.model import PartitionModel
from pipeplan_formulations.partition.objective import Hop, RoleSums, delays_of_resources
from pipeplan_formulations.partition.terms import ahead, behind, delays, in_all, load
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
    if problem.endless:
        _bottleneck(model, problem, scale, stages, link, update, reduce)
        return model
    weight = [Expression({})] * problem.stages
    if problem.weight is not None:
        weight = _stage_times(model, problem, scale, "weight", tie_flags)
    own = RoleSums(forward, backward, weight)
    way, service = (_role_times(model, problem, scale, role, own, tie_flags) for role in ("ahead", "service"))
    trip = way if problem.round_trip == "ahead" else own
    step = _Step(model, problem, scale, send, back, own, way, trip, service)
    ending = [u + r for u, r in zip(update, reduce, strict=True)]
    if problem.ends_together:
        ending[0] = model.largest([ending[0], ending[-1]], time=True)
    step.add(ending)

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
    if s == 0 or problem.objective in ("period", "delayed"):
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
    update: list[Expression],
    reduce: list[Expression],
) -> None:
    """Add the bottleneck: T is at least the busy time per sample of each stage and, if transfers overlap, of each link.

    N T is at least the busy time per step. T is an integer, so subtracting N − 1 from that time rounds its quotient
    down. Links round down, and so do stages in units larger than 1, to keep a lower bound.
    """
    many, delayed = problem.divisor, problem.objective == "delayed"
    slack = 0 if scale.unit == 1 else many - 1
    rows = [
        (c.stage * load(problem.overlap, *times) + once, slack)
        for c, times, once in zip(problem.through, stages, update if delayed else reduce, strict=True)
    ]
    rows += [(sums, slack) for sums in reduce if delayed]
    if problem.overlap != "none":
        rows += [(c.out * busy, many - 1) for c, busy in zip(problem.through, link, strict=False)]
    for time, rounding in rows:
        model.at_least(Expression({model.objective: many}) - (time - rounding))


def _role_times(
    model: PartitionModel, problem: ChainPartition, scale: Scale, role: Role, own: RoleSums, tie_flags: TieFlags
) -> RoleSums:
    """F, B and V of each stage in a role; those of ``own`` that have no tables of their own."""

    def times(name: str, default: Sequence[Expression]) -> Sequence[Expression]:
        named = f"{role}_{name}"
        given = getattr(problem, named) is not None
        return _stage_times(model, problem, scale, named, tie_flags) if given else default

    if not problem.has_roles:
        return own
    return RoleSums(times("forward", own.forward), times("backward", own.backward), times("weight", own.weight))


@dataclass(frozen=True)
class _Step:
    """Rows of the objectives 'step' and 'period', from the times of stages and links.

    ``way``, ``trip`` and ``service`` are ``own`` itself if they have no times of their own.
    """

    model: PartitionModel
    problem: ChainPartition
    scale: Scale
    send: list[Expression]
    back: list[Expression]
    own: RoleSums
    way: RoleSums
    trip: RoleSums
    service: RoleSums

    def add(self, ending: Sequence[Expression]) -> None:
        """Add way back and own ending, then services, warm-up and link resources. ``ending`` is E_s of each stage."""
        model, problem = self.model, self.problem
        out, into = [*self.send, Expression({})], [Expression({}), *self.back]
        loads = [
            load(problem.overlap, *times) for times in zip(self.own.forward, self.own.backward, out, into, strict=True)
        ]
        # ``head`` is H_s = E_0 + Σ (p_t + q_t), ``way`` is Σ p_t, both over the stages before, ``trip`` R so far.
        # In a long run the own-ending bound is about the stage alone, so ``way`` stays 0.
        head = trip = ending[0] + self.way.weight[0]
        way = Expression({})
        endings = [e + count.stage * v for e, v, count in zip(ending, self.own.weight, problem.through, strict=True)]
        for s, (work, count) in enumerate(zip(loads, problem.through, strict=True)):
            for busy, many in in_all(count.stage, work, self.own.of_stage(s), self._late_behind(s)):
                model.above(head + busy)
                if (s > 0 or problem.weight is not None) and (endings[s].terms or endings[s].constant):
                    model.above(way + busy + ending[s] + many * self.own.weight[s])
            there, later = self._hop(s, self.way.of_stage(s))
            head = model.define(head + there + later)
            if self.trip is not self.way:
                trip = model.define(sum(self._hop(s, self.trip.of_stage(s)), trip))
            counts_way = problem.objective == "step" and s < problem.stages - 1
            if counts_way and any(e.terms or e.constant for e in endings[s + 1 :]):
                way = model.define(way + there)
        self._add_delays(head if self.trip is self.way else trip)

    def _late_behind(self, s: int) -> Expression | None:
        """The last slice's time behind a stage; None without slices."""
        if self.problem.late_behind is None:
            return None
        if s == self.problem.stages - 1:
            return Expression({})
        return self.model.define(self.model.chosen(s, self.scale.down(self.problem.late_behind[1:-1])))

    def _hop(self, s: int, times: Times) -> tuple[Expression, Expression]:
        """p_s and q_s for these F and B."""
        final, overlap = s == self.problem.stages - 1, self.problem.overlap
        latency = 0 if final else self.scale.down(int(self.problem.latency[s]))
        nothing = Expression({})
        send, return_out = (nothing, nothing) if final else (self.send[s], self.back[s])
        there = ahead(overlap, times.forward, latency, send)
        return there, behind(overlap, times.backward, latency, self.back[s - 1] if s else nothing, return_out)

    def _add_delays(self, trip: Expression) -> None:
        """Add services, warm-up and link resources, with R = ``trip``."""
        model, problem, scale = self.model, self.problem, self.scale

        def held(link: int, row: Array) -> Expression:
            return model.define(model.chosen(link, scale.down(row)))

        # f, g and l before and behind each stage for the link-resource bound.
        nothing, latencies = Expression({}), scale.down(problem.latency).tolist()
        sends, returns = [nothing, *self.send, nothing], [nothing, *self.back, nothing]
        hops = [Hop(*times) for times in zip(sends, returns, [0, *latencies, 0], strict=True)]
        for s, count in enumerate(problem.through):
            through, own, weight = self.trip.of_stage(s), self.own.of_stage(s), self.service.weight[s]
            longer = None if self.trip is self.own else problem.longer(own, through)
            count = count._replace(slower=scale.down(count.slower))
            lanes = delays(
                problem.overlap, count, self.service.of_stage(s), through, longer, sends[s + 1], returns[s], weight
            )
            for delay in (*lanes, *delays_of_resources(problem, s, through, hops[s], hops[s + 1], held)):
                model.above(trip + delay)
