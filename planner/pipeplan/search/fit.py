"""Why nothing fits, and the least memory that would."""

from collections.abc import Sequence

import numpy as np

from pipeplan.chain import UNLIMITED
from pipeplan.search.candidates import Candidate
from pipeplan.units import format_bytes


def least_memory(candidate: Candidate) -> int:
    """Bytes that every device would need at least for some partition of this candidate (min-max over stages)."""
    problem, chain = candidate.problem, candidate.chain
    n = problem.layers
    resident = np.concatenate([[0], np.cumsum(problem.resident)])
    saved = np.concatenate([[0], np.cumsum(problem.saved)])
    received = np.concatenate([[0], problem.received])
    best = np.full(n + 1, UNLIMITED)
    best[0] = 0
    for s in range(problem.stages):
        then = np.full(n + 1, UNLIMITED)
        for a in range(s, n):
            need = resident[a + 1 :] - resident[a] + np.maximum.accumulate(problem.workspace[a:])
            need += int(problem.in_flight[s]) * (saved[a + 1 :] - saved[a] + received[a]) + int(chain.runtime[s])
            then[a + 1 :] = np.minimum(then[a + 1 :], np.maximum(need, best[a]))
        best = then
    return int(best[n])


def explain_infeasible(candidates: Sequence[Candidate]) -> str:
    """The numbers, and the smallest change of memory that would let some plan fit."""
    if not candidates:
        return "No candidate is left: the depths asked for exceed the devices or the layers. Ask for fewer stages."
    needs = [(least_memory(candidate), number) for number, candidate in enumerate(candidates)]
    least, number = min(needs)
    easiest = candidates[number]
    limits = sorted({int(limit) for candidate in candidates for limit in candidate.chain.limit})
    have = " and ".join("no limit" if limit == UNLIMITED else format_bytes(limit) for limit in limits)
    lines = [
        f"No plan fits: the devices have {have} each, and the least that any plan needs is {format_bytes(least)} "
        f"a device (with {easiest.label}; searched {len(candidates)} combinations of depth, micro-batch and schedule).",
        f"What would fit: --memory {_rounded_up(least)} on such devices, or more of them, or smaller micro-batches.",
    ]
    return "\n".join(lines)


def _rounded_up(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{-(-size * 100 // factor) / 100:.2f}{unit}"
    return f"{size}B"
