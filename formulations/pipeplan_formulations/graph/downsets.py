"""Downsets of a graph: sets of groups closed under predecessors; the difference of two nested ones is a stage.

::

    0 ──▶ 1 ──▶ 3            {} {0} {0,1} {0,2} {0,1,2} {0,1,2,3}: six, of sixteen sets
     ╲──▶ 2 ──╱
"""

from collections.abc import Iterable, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.graph.instance import GraphPartition

WORD = 63
"""Groups per word of `words`: the bits of a non-negative int64."""


def all_downsets(problem: GraphPartition, most: int, clock: Clock | None = None) -> list[int] | None:
    """Every downset as a bit mask, smallest first; None if there are more than ``most``."""
    needs = [0] * problem.groups
    for a, b in problem.edges:
        needs[b] |= 1 << a
    found, layer = [0], {0}
    while layer:
        if clock is not None:
            clock.check()
        grown = set()
        for downset in layer:
            for g, need in enumerate(needs):
                if not downset >> g & 1 and need & downset == need:
                    grown.add(downset | 1 << g)
            if len(found) + len(grown) > most:
                return None
        found += sorted(grown)
        layer = grown
    return found


def prefixes(orders: Iterable[Sequence[int]]) -> list[int]:
    """Downsets that are prefixes of the topological orders, each once, smallest first."""
    found = {0}
    for order in orders:
        mask = 0
        for g in order:
            mask |= 1 << g
            found.add(mask)
    return sorted(found, key=lambda mask: (mask.bit_count(), mask))


def orders(problem: GraphPartition, count: int, seed: int) -> list[list[int]]:
    """Topological orders: one depth-first, one breadth-first, and ``count`` random ones.

    Each random order stays on the current branch with a probability of its own, so they range between the two others.
    """
    n = problem.groups
    after: list[list[int]] = [[] for _ in range(n)]
    for a, b in problem.edges:
        after[a].append(b)
    # Number of incoming edges of each group; ``walk`` takes ready groups, by a stack (stay 1) or a queue (stay 0).
    missing = [sum(b == g for _, b in problem.edges) for g in range(n)]
    random = Random(seed)

    def walk(stay: float, shuffle: bool) -> list[int]:
        left = list(missing)
        ready = [g for g in range(n) if not left[g]]
        order: list[int] = []
        while ready:
            last = stay >= 1 or (stay > 0 and random.random() < stay)
            g = ready.pop(-1 if last else random.randrange(len(ready)) if shuffle else 0)
            order.append(g)
            new = list(dict.fromkeys(after[g]))
            if shuffle:
                random.shuffle(new)
            for b in reversed(new) if last else new:
                left[b] -= after[g].count(b)
                if not left[b]:
                    ready.append(b)
        return order

    return [walk(1.0, False), walk(0.0, False), *(walk(random.random(), True) for _ in range(count))]


def members(downsets: Sequence[int], groups: int) -> NDArray[np.bool_]:
    """Membership table of shape (downsets, groups): True where a downset holds a group."""
    size = -(-groups // 8)
    data = b"".join(mask.to_bytes(size, "little") for mask in downsets)
    bits = np.unpackbits(np.frombuffer(data, np.uint8).reshape(len(downsets), size), axis=1, bitorder="little")
    return bits[:, :groups].astype(np.bool_)


def words(downsets: Sequence[int], groups: int) -> NDArray[np.int64]:
    """Bit masks in 64-bit words; shape (words, downsets). I is a subset of J where ``I & J == I`` in each."""
    low = 2**WORD - 1
    return np.array([[mask >> k & low for mask in downsets] for k in range(0, groups, WORD)], dtype=np.int64)
