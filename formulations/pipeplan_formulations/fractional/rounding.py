"""Rounding of shares: to whole layers within the solver's accuracy, and to whole numbers of channels."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise, product

import numpy as np

from pipeplan_formulations.fractional.instance import FractionalPartition, Positions, split, whole

CLOSE = 1e-7
"""Largest difference of a share from 0 or 1 that counts as the solver's inaccuracy."""
MOST = 4096
"""Largest number of combinations that are all tried; beyond it, boundaries are rounded one after the other."""


def tidy(problem: FractionalPartition, positions: Positions) -> Positions:
    """Round positions close to integers, unless that violates the memory limit or costs time."""
    snapped = tuple(float(round(p)) if abs(p - round(p)) < CLOSE else p for p in positions)
    if snapped == positions or not problem.feasible(snapped):
        return positions
    return snapped if whole(problem.evaluate(snapped)) <= whole(problem.evaluate(positions)) else positions


def rounded(problem: FractionalPartition, positions: Positions, channels: Sequence[int]) -> Positions | None:
    """Best of the neighbouring positions whose shares are whole numbers of channels.

    Parameters
    ----------
    channels : sequence of int, length n
        Number of equal parts into which each layer can be divided; 1 for a layer that stays whole.

    Returns
    -------
    positions, or None if none of those tried satisfies the memory limit.
    """
    choices = [_neighbours(position, channels) for position in positions[1:-1]]
    return _pick(problem, positions, choices)


def nudged(problem: FractionalPartition, positions: Positions, step: float) -> Positions | None:
    """Best of these positions and those ``step`` beside them; None if none of them satisfies the memory limit.

    A solver's shares are exact only to its tolerance, and a slightly larger share may no longer fit on chip.
    """
    choices = [
        tuple(dict.fromkeys((p, max(0.0, p - step), min(float(problem.layers), p + step), float(round(p)))))
        for p in positions[1:-1]
    ]
    return _pick(problem, positions, choices)


def _pick(problem: FractionalPartition, ends: Positions, choices: list[tuple[float, ...]]) -> Positions | None:
    """Best choice of one position for each inner boundary."""
    if math.prod(map(len, choices)) <= MOST:
        return _best(problem, ((ends[0], *inner, ends[-1]) for inner in product(*choices)))
    chosen = [
        choice[int(np.argmin(np.abs(np.array(choice) - at)))] for at, choice in zip(ends[1:-1], choices, strict=True)
    ]
    for i, choice in enumerate(choices):
        tried = ((ends[0], *chosen[:i], p, *chosen[i + 1 :], ends[-1]) for p in choice)
        found = _best(problem, tried)
        if found is not None:
            chosen[i] = found[i + 1]
    return _best(problem, [(ends[0], *chosen, ends[-1])])


def _neighbours(position: float, channels: Sequence[int]) -> tuple[float, ...]:
    """Positions at the nearest whole numbers of channels on either side."""
    layer, share = split(position)
    if share == 0:
        return (position,)
    count = channels[layer]
    parts = {math.floor(share * count + CLOSE), math.ceil(share * count - CLOSE)}
    return tuple(layer + part / count for part in sorted(parts))


def _best(problem: FractionalPartition, tried: Iterable[Positions]) -> Positions | None:
    kept = [p for p in tried if all(a <= b for a, b in pairwise(p)) and problem.feasible(p)]
    return min(kept, key=problem.evaluate, default=None)
