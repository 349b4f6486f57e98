"""Precedence of operations: by the chain of each micro-batch, and by memory.

The chain of a micro-batch, independent of waiting times (`heads`, `tails`, `precedes`)::

    F_0 ─▶ F_1 ─▶ … ─▶ F_{S−1} ─▶ I_{S−1} ─▶ … ─▶ I_1 ─▶ I_0        heads: longest path to the start of an operation
                                     │              │      │        tails: longest path from its end to the step's end
                                  W_{S−1}          W_1    W_0

Memory (`Admission`): the numbers of I and W that must have ended before a forward starts.

Let stage s lie on device d with room R, and H_s be the stages t ≤ s on d. While micro-batch i has started F_s and not
ended I_s, it has ended F_t and not I_t on every other stage of H_s, so it holds Σ taken_t over H_s. Hence at most

    K_s = ⌊R / Σ_{t in H_s} taken_t⌋

micro-batches are between F_s and I_s at once, and I_s(i − K_s) ends before F_s(i) starts. When F_s(i) starts, n of I_s
and k ≤ n ≤ i of W_s have ended. Of what stage s holds by itself,

    (i + 1) taken_s − n freed_s − k freed_by_weight_s ≤ R − Σ_{t in H_s, t < s} taken_t (i + 1 − n):

The last term is the memory that the micro-batches between F_s and I_s hold on the other stages of H_s. So every n gives
a least k, and n = i gives the number of W that must have ended in any case.
"""

from pipeplan_formulations.schedule.instance import Kind, Op, PipelineSchedule

OfKind = dict[Kind, tuple[int, ...]]
"""A number for each kind and stage."""


def heads(problem: PipelineSchedule) -> OfKind:
    """Least time from the start of the step to the start of each kind at each stage, by inputs and transfers."""
    last = problem.stages - 1
    forward = [0]
    for s in range(last):
        forward.append(forward[s] + problem.forward[s] + problem.in_transit[s])
    backward = [0] * last + [forward[last] + problem.forward[last]]
    for s in reversed(range(last)):
        backward[s] = backward[s + 1] + problem.backward[s + 1] + problem.in_transit_back[s]
    weight = [b + time for b, time in zip(backward, problem.backward, strict=True)]
    found: OfKind = {"F": tuple(forward), "I": tuple(backward), "W": tuple(weight)}
    rows: dict[Kind, Kind] = {"A": "F", "G": "I"}
    for kind, source in rows.items():
        ready = (problem.ready.get((kind, s), 0) for s in range(problem.stages))
        found[kind] = tuple(head + time for head, time in zip(found[source], ready, strict=True))
    return found


def tails(problem: PipelineSchedule) -> OfKind:
    """Least time from the end of each kind at each stage to the end of the step, endings included.

    Values of transfers are valid only for existing transfers.
    """
    last = problem.stages - 1
    backward = [w + ending for w, ending in zip(problem.weight, problem.ending, strict=True)]
    for s in range(1, problem.stages):
        backward[s] = max(backward[s], problem.in_transit_back[s - 1] + problem.backward[s - 1] + backward[s - 1])
    forward = [0] * last + [problem.backward[last] + backward[last]]
    for s in reversed(range(last)):
        forward[s] = problem.in_transit[s] + problem.forward[s + 1] + forward[s + 1]
    onward = [problem.lag[s] + problem.forward[s + 1] + forward[s + 1] for s in range(last)]
    back = [problem.lag_back[s] + problem.backward[s] + backward[s] for s in range(last)]
    return {
        "F": tuple(forward),
        "I": tuple(backward),
        "W": problem.ending,
        "A": (*onward, 0),
        "G": (0, *back),
    }


def precedes(problem: PipelineSchedule, a: Op, b: Op) -> bool:
    """True if the chain of a micro-batch, and the order within one kind and stage, put a before b."""
    if a.micro_batch > b.micro_batch:
        return False
    if a.kind == b.kind and a.stage == b.stage:
        return a.micro_batch < b.micro_batch
    if a.kind == "W":
        return False
    if b.kind == "W":  # after I of its stage
        return depth(problem, a) <= depth(problem, Op("I", b.stage, 0))
    return depth(problem, a) < depth(problem, b)


def depth(problem: PipelineSchedule, op: Op) -> int:
    """Number of operations and transfers of its micro-batch before it, at most; W come after all of them."""
    steps = {
        "F": 2 * op.stage,
        "A": 2 * op.stage + 1,
        "I": 4 * problem.stages - 3 - 2 * op.stage,
        "G": 4 * problem.stages - 2 - 2 * op.stage,
        "W": 4 * problem.stages + op.stage,
    }
    return steps[op.kind]


class Admission:
    """Memory-based precedence of one stage: counts of I and W that must end before a forward.

    Attributes
    ----------
    most : int
        K_s, at most M.
    """

    def __init__(self, problem: PipelineSchedule, stage: int) -> None:
        d = problem.device[stage]
        self._room = problem.room[d]
        self._others = sum(problem.taken[t] for t in problem.hosted[d] if t < stage)
        self._taken, self._freed = problem.taken[stage], problem.freed[stage]
        self._by_weight = problem.freed_by_weight[stage]
        each = self._taken + self._others
        self.most = min(problem.micro_batches, self._room // each) if each else problem.micro_batches

    def weights(self, i: int, backwards: int) -> int | None:
        """Least number of W that must have ended when F(i) starts after ``backwards`` I; None if none is enough."""
        held = (i + 1) * self._taken - backwards * self._freed
        need = held + self._others * (i + 1 - backwards) - self._room
        if need <= 0:
            return 0
        if not self._by_weight or -(-need // self._by_weight) > backwards:
            return None
        return -(-need // self._by_weight)

    def choices(self, i: int) -> list[tuple[int, int]]:
        """Minimal pairs (n, k): at least n I and k W of one pair have ended when F(i) starts; empty if it cannot."""
        found: list[tuple[int, int]] = []
        for backwards in range(max(0, i + 1 - self.most), i + 1):
            weights = self.weights(i, backwards)
            if weights is None or (found and weights >= found[-1][1]):
                continue
            found.append((backwards, weights))
            if not weights:
                break
        return found
