"""Which stages a group may lie in, if no stage's load exceeds a ceiling.

What a group needs, and the group itself, take so much work that so many stages cannot hold it; what needs the group
leaves so many stages for later.
"""

import numpy as np

from pipeplan_formulations.graph.bounds import work
from pipeplan_formulations.graph.instance import GraphPartition


def windows(problem: GraphPartition, ceiling: int, stages: int) -> tuple[list[int], list[int]]:
    """First and last stage of each group, of ``stages``; any stage where nothing is left."""
    table = [work(mode) for mode in problem.modes]
    choices = [[t / share for times, share in table if (t := times[g]) is not None] for g in range(problem.groups)]
    least = np.array([min(choice, default=0.0) for choice in choices])
    ancestors = [0] * problem.groups
    for g, mask in enumerate(problem.descendants):
        for other in _bits(mask):
            ancestors[other] |= 1 << g
    first = [max(0, _stages(least, mask | 1 << g, ceiling) - 1) for g, mask in enumerate(ancestors)]
    needed = [max(1, _stages(least, mask | 1 << g, ceiling)) for g, mask in enumerate(problem.descendants)]
    last = [stages - count for count in needed]
    if any(a > b for a, b in zip(first, last, strict=True)):
        return [0] * problem.groups, [stages - 1] * problem.groups
    return first, last


def _stages(least: np.ndarray[tuple[int, ...], np.dtype[np.float64]], mask: int, ceiling: int) -> int:
    """The least number of stages that hold so much work, with room for the inaccuracy of floating-point sums."""
    total = float(least[list(_bits(mask))].sum())
    return int(np.ceil(total * (1 - 1e-9) / max(ceiling, 1) - 1e-9))


def _bits(mask: int) -> list[int]:
    return [g for g in range(mask.bit_length()) if mask >> g & 1]
