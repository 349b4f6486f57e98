"""Which stages a group may lie in, if no stage's load exceeds a ceiling.

What a group needs, and the group itself, take so much work that so many stages cannot hold it; what needs the group
leaves so many stages for later.
"""

import numpy as np

from pipeplan_formulations.graph.bound import least_loads
from pipeplan_formulations.graph.problem import GraphPartition


def windows(problem: GraphPartition, ceiling: int, stages: int) -> tuple[list[int], list[int]]:
    """First and last stage of each group, of ``stages``."""
    work = np.nan_to_num(least_loads(problem).min(axis=0), posinf=0.0)
    ancestors = [0] * problem.groups
    for g, mask in enumerate(problem.descendants):
        for other in _bits(mask):
            ancestors[other] |= 1 << g
    first = [_stages(work, mask | 1 << g, ceiling) - 1 for g, mask in enumerate(ancestors)]
    last = [stages - _stages(work, mask | 1 << g, ceiling) for g, mask in enumerate(problem.descendants)]
    return [max(0, f) for f in first], [min(stages - 1, s) for s in last]


def _stages(work: np.ndarray[tuple[int, ...], np.dtype[np.float64]], mask: int, ceiling: int) -> int:
    """The least number of stages that hold so much work, with room for the inaccuracy of floating-point sums."""
    total = float(work[list(_bits(mask))].sum())
    return int(np.ceil(total * (1 - 1e-9) / max(ceiling, 1) - 1e-9))


def _bits(mask: int) -> list[int]:
    return [g for g in range(mask.bit_length()) if mask >> g & 1]
