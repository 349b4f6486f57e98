"""What memory alone says about the order on a device: which I and W must have ended before a forward starts.

Let stage s lie on device d with room R, and H_s be the stages t ≤ s on d. While micro-batch i has started F_s and not
ended I_s, it has ended F_t and not I_t on every other stage of H_s, so it holds Σ taken_t over H_s. Hence at most

    K_s = ⌊R / Σ_{t in H_s} taken_t⌋

micro-batches are between F_s and I_s at once, and I_s(i − K_s) ends before F_s(i) starts. When F_s(i) starts, n of I_s
and k ≤ n ≤ i of W_s have ended. Of what stage s holds by itself,

    (i + 1) taken_s − n freed_s − k freed_by_weight_s ≤ R − Σ_{t in H_s, t < s} taken_t (i + 1 − n):

the last term is what the micro-batches between F_s and I_s hold on the other stages of H_s. So every n asks for a
least k, and n = i says how many W must have ended in any case.
"""

from pipeplan_formulations.schedule.instance import PipelineSchedule


class Admission:
    """The counts of one stage.

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
        """Least number of W that must have ended when F(i) starts after so many I; None if no number is enough."""
        held = (i + 1) * self._taken - backwards * self._freed
        need = held + self._others * (i + 1 - backwards) - self._room
        if need <= 0:
            return 0
        if not self._by_weight or -(-need // self._by_weight) > backwards:
            return None
        return -(-need // self._by_weight)

    def choices(self, i: int) -> list[tuple[int, int]]:
        """All (n, k) of which one, or more than it in both, has ended when F(i) starts; none if F(i) cannot start."""
        found: list[tuple[int, int]] = []
        for backwards in range(max(0, i + 1 - self.most), i + 1):
            weights = self.weights(i, backwards)
            if weights is None or (found and weights >= found[-1][1]):
                continue
            found.append((backwards, weights))
            if not weights:
                break
        return found
