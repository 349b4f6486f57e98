"""Every order of one lane a device, backwards split or joined stage by stage: for tiny questions only."""

from collections.abc import Iterator
from functools import cache
from itertools import product

from . import simulate, space
from .costs import Groups, sizes
from .documents import Question
from .prices import Prices
from .schedules import Action
from .space import Layers

MOST_STAGES, MOST_MICRO_BATCHES = 2, 2
"""Beyond, there are too many orders to play each of them."""


def tiny(question: Question) -> bool:
    """Whether every shape of one width has so few orders; stages of several replicas are not looked at."""
    shapes = [
        (groups, question.batch // size)
        for size in sizes(question)
        for groups in space.shapes(question, question.batch // size)
        if len(set(map(len, groups))) == 1
    ]
    return all(
        len(groups[0]) == 1 and (len(groups) == 1 or (len(groups) <= MOST_STAGES and count <= MOST_MICRO_BATCHES))
        for groups, count in shapes
    )


@cache
def words(micro_batches: int, kinds: str) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Every order of the kinds of each micro-batch, one after the other."""
    found = []

    def extend(done: list[int], order: tuple[tuple[str, int], ...]) -> None:
        if len(order) == micro_batches * len(kinds):
            found.append(order)
        for m, count in enumerate(done):
            if count < len(kinds):
                done[m] += 1
                extend(done, (*order, (kinds[count], m)))
                done[m] -= 1

    extend([0] * micro_batches, ())
    return tuple(found)


def most_held(order: tuple[tuple[str, int], ...]) -> int:
    """Micro-batches whose forward has begun and whose last backward has not ended."""
    held = most = 0
    for kind, _ in order:
        held += kind == "F"
        most = max(most, held)
        held -= kind == order[-1][0] if order[-1][0] in "BW" else 0
    return most


def optimum(question: Question, prices: Prices) -> int | None:
    """The least step time over all partitions and all orders on shapes of one device a stage; None if none fits."""
    best: int | None = None
    for size in sizes(question):
        count = question.batch // size
        for groups in space.shapes(question, count):
            if max(map(len, groups)) > 1:
                continue
            for layers in space.partitions(question, groups):
                for time in _times(question, prices, size, groups, layers):
                    best = time if best is None else min(best, time)
    return best


def _times(question: Question, prices: Prices, size: int, groups: Groups, layers: Layers) -> Iterator[int]:
    count, depth = question.batch // size, len(groups)
    reduce, tied = prices.reductions(groups, size, layers), prices.tied(groups, layers)
    summed = {s for group in tied for s in group}
    ways = prices.ways(groups, size, layers)
    splittable = [_splits(prices, size, groups, layers, s) for s in range(depth)]
    if depth == 1:  # nothing overlaps, so any order takes as long: the one that holds least
        choices = [[tuple((kind, m) for m in range(count) for kind in kinds) for kinds in ("FB", "FIW")]]
    else:
        choices = [[*words(count, "FB"), *words(count, "FIW")] for _ in range(depth)]
    for row in product(*choices):
        again = []
        for s, order in enumerate(row):
            chosen = prices.recomputed(groups, size, layers, s, most_held(order), 1)
            if chosen is None or (order[-1][0] == "W" and not splittable[s]):
                break
            again.append(chosen)
        else:
            stages = [prices.stage(groups, size, layers, s, again[s], reduce[s]) for s in range(depth)]
            lists: list[list[Action]] = [
                [*((kind, s, m) for kind, m in order), *([("R", s, 0)] if s in summed else []), ("U", s, 0)]
                for s, order in enumerate(row)
            ]
            homes = [(s,) for s in range(depth)]
            try:
                yield simulate.simulate(lists, homes, stages, ways, question.overlap, 1, tied).time
            except simulate.DeadlockError:
                continue


def _splits(prices: Prices, size: int, groups: Groups, layers: Layers, s: int) -> bool:
    """Whether any layer of a stage that has a backward says how long its parts take."""
    table = prices.table(groups[s][0].kind, size)
    parts = any(table[i].input_gradient + table[i].weight_gradient for i in layers[s])
    return parts or not any(table[i].backward for i in layers[s])
