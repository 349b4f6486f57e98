"""The best plan of a space, by looking at every one whose floor does not exclude it."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from itertools import count as counter

from . import bottleneck, delayed, rounds, simulate, space
from .costs import Groups, sizes
from .documents import Question
from .prices import Prices
from .schedules import HALVED, Family, families, share, write
from .space import Layers


@dataclass(frozen=True)
class Plan:
    """Everything about a plan but its times."""

    size: int
    groups: Groups
    layers: Layers
    family: Family
    again: tuple[tuple[int, ...], ...] = field(default=())

    @property
    def replicas(self) -> tuple[int, ...]:
        """Of every stage."""
        return tuple(map(len, self.groups))

    def __str__(self) -> str:
        places = " ".join("+".join(f"d{device.number}" for device in own) for own in self.groups)
        cuts = " | ".join(",".join(map(str, own)) for own in self.layers)
        flight = "-".join(map(str, self.family.in_flight))
        again = f", again {self.again}" if any(self.again) else ""
        return f"size {self.size}, {places}: {cuts}, {self.family.name} with {flight} in flight{again}"


def evaluate(question: Question, prices: Prices, plan: Plan) -> int:
    """Nanoseconds of a step, or the period or the largest load where that is the objective."""
    micro_batches = question.batch // plan.size
    reduce = prices.reductions(plan.groups, plan.size, plan.layers, plan.family.halved)
    stages = [
        prices.stage(plan.groups, plan.size, plan.layers, s, plan.again[s], reduce[s]) for s in range(len(plan.groups))
    ]
    ways = prices.ways(plan.groups, plan.size, plan.layers)
    if question.job["objective"] == "bottleneck":
        return bottleneck.largest_load(stages, ways, plan.replicas, micro_batches, question.batch, question.overlap)
    tied, homes = prices.tied(plan.groups, plan.layers), space.homes(plan.groups)
    if question.in_rounds:
        lists = rounds.write(plan.family.name, plan.groups, micro_batches, tied)
    else:
        lists = write(plan.family, plan.replicas, micro_batches, {s for group in tied for s in group}, question.slices)
    if question.job["staleness"]:
        return delayed.period(plan.family, plan.replicas, micro_batches, homes, stages, ways, question.overlap, tied)
    run = lists, homes, stages, ways, question.overlap, plan.family.lanes, tied
    if question.job["objective"] == "period":
        return simulate.period(*run, together=question.level > 1, slices=question.slices)
    return simulate.simulate(*run, together=question.level > 1, slices=question.slices).time


def complete(
    question: Question, prices: Prices, size: int, groups: Groups, layers: Layers, family: Family
) -> Plan | None:
    """The plan with the least recomputation with which every stage fits; None if none fits."""
    if question.in_rounds:
        repeated = rounds.recomputed(question, prices, size, groups, layers, family.name)
        return None if repeated is None else Plan(size, groups, layers, family, repeated)
    again = []
    for s, k in enumerate(family.in_flight):
        chosen = prices.recomputed(groups, size, layers, s, k, family.lanes)
        if chosen is None:
            return None
        again.append(chosen)
    return Plan(size, groups, layers, family, tuple(again))


def floor(question: Question, prices: Prices, plan: Plan) -> int:
    """Nanoseconds that no schedule of these stages undercuts: a replica waits for the way there, works, and sends back.

    Recomputation counts where it is known.
    """
    micro_batches, way, least = question.batch // plan.size, 0, 0
    if question.job["objective"] == "bottleneck":
        return 0
    halved = plan.family.halved or (not plan.family.name and {*HALVED} & {*question.job["schedules"]})
    on: dict[object, tuple[int, int]] = {}  # of each stage's devices the way to the lowest stage, and all their work
    for s, own in enumerate(plan.layers):
        rows = {i: prices.passes_of_slices(plan.groups[s][0].kind, plan.size, i) for i in own}
        again = [rows[i][0] for i in (plan.again[s] if plan.again else ())]
        work = [(forward, backward) for forward, backward, *_ in rows.values()]
        busy = sum(sum(map(sum, row)) for row in work) + sum(map(sum, again))
        alone = sum(each[0] for row in (*work, again) for each in row)
        if halved:  # a weight gradient delays no other stage, and both parts may take less than the whole
            parts = sum(sum(map(sum, (row[0], *row[2:]))) for row in rows.values()) + sum(map(sum, again))
            busy = parts if plan.family.halved and not plan.family.joins else min(busy, parts)
            alone = sum(row[0][0] for row in rows.values())
        first, before = on.get(plan.groups[s], (way, 0))
        on[plan.groups[s]] = first, before + busy
        least = max(least, first + share(len(plan.groups[s]), micro_batches) * (before + busy))
        way += alone * (not question.job["staleness"])
    return least


def rows(question: Question, prices: Prices, downsets: bool = False) -> Iterator[Plan]:
    """Every size, shape and partition, families left open."""
    for size in sizes(question):
        for groups in space.shapes(question, question.batch // size):
            if question.in_rounds:
                yield from (Plan(size, *plan, Family("", ())) for plan in rounds.plans(question, groups))
                continue
            ways = unordered(question, len(groups)) if downsets else space.partitions(question, groups)
            for layers in ways:
                yield Plan(size, groups, layers, Family("", ()))


def optimum(question: Question, prices: Prices, downsets: bool = False) -> tuple[int, Plan] | None:
    """The least value of the space and a plan that has it; None if no plan fits."""
    number = counter()
    names, objective = space.family_names(question), question.job["objective"]
    heap: list[tuple[int, int, int, Plan]] = [
        (floor(question, prices, row), 0, next(number), row) for row in rows(question, prices, downsets)
    ]
    heapq.heapify(heap)
    best: tuple[int, Plan] | None = None
    while heap:
        least, ready, _, plan = heapq.heappop(heap)
        if best is not None and least >= best[0]:
            break
        if ready:
            value = evaluate(question, prices, plan)
            if best is None or value < best[0]:
                best = value, plan
            continue
        seen = set()
        count = question.batch // plan.size
        if question.in_rounds:
            every = rounds.families(question, plan.groups, count)
        else:
            every = families(names, plan.replicas, count, objective, question.slices)
        for family in every:
            whole = complete(question, prices, plan.size, plan.groups, plan.layers, family)
            order = family.halved, family.name in ("gpipe", "terapipe"), family.lanes, family.name * question.in_rounds
            alike = order, family.in_flight, whole.again if whole else None
            if whole is not None and alike not in seen:
                seen.add(alike)
                heapq.heappush(heap, (floor(question, prices, whole), 1, next(number), whole))
    return best


def unordered(question: Question, depth: int) -> Iterator[Layers]:
    """Every row of stages that read from no later one, whatever the listed order."""

    def extend(done: frozenset[int], left: frozenset[int], stages: int) -> Iterator[Layers]:
        if stages == 1:
            yield (tuple(sorted(left)),)
            return
        for size in range(1, len(left) - stages + 2):
            for own in map(frozenset, combinations(sorted(left), size)):
                if all(question.reads[i] <= done | own for i in own):
                    for rest in extend(done | own, left - own, stages - 1):
                        yield (tuple(sorted(own)), *rest)

    return extend(frozenset(), frozenset(range(question.n)), depth)


def fits_in_some_order(question: Question, prices: Prices) -> bool:
    """Whether some order of one lane a device fits on stages of one width: one micro-batch in flight needs least."""
    return any(
        len(set(row.replicas)) == 1
        and complete(question, prices, row.size, row.groups, row.layers, Family("1f1b", (1,) * len(row.groups)))
        for row in rows(question, prices)
    )
