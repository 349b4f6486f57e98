"""Which forwards may start so that the pipeline can always drain.

A stage holds what a micro-batch has taken at the start of its F until its I and W give it back. Let ``z`` be the last
stage on a device, in the order in which a micro-batch comes by, and ``n_s`` how many F of stage s have started. The
device is *safe* if the oldest micro-batch that has not passed all of it still finds room:

(1)  full + Σ_s taken_s · max(0, n_s − n_z − 1) ≤ room        with full = Σ_s taken_s, room = limit − base.

*Enough.* Let every device be safe, and run every W that waits. The oldest micro-batch j that has not ended has n_s = j
on the stages that it has yet to pass, and the older ones hold nothing, so by (1) its next F finds room. Afterwards (1)
holds again: if the stage is z, no term grows, and if not, its own term is max(0, j + 1 − j − 1) = 0. So j passes all
stages, comes back, and gives back all it held.

*Needed.* Micro-batches pass a stage in order, so no I of a later one precedes the last F of j: whatever runs before,
the later ones keep what they hold until j has passed z. Where (1) fails there is no room for that.
"""

from collections.abc import Sequence

from pipeplan_formulations.schedule.instance import PipelineSchedule


class Admission:
    """Says which F may start, given how many have started on each stage."""

    def __init__(self, problem: PipelineSchedule) -> None:
        self._device, self._hosted, self._taken = problem.device, problem.hosted, problem.taken
        self._spare = [
            room - sum(problem.taken[s] for s in stages)
            for room, stages in zip(problem.room, problem.hosted, strict=True)
        ]

    def keeps_safe(self, stage: int, started: Sequence[int]) -> bool:
        """Whether (1) holds after one more F of the stage, if it held before."""
        device = self._device[stage]
        hosted = self._hosted[device]
        if stage == hosted[-1]:
            return True
        passed = started[hosted[-1]] + 1
        ahead = sum([self._taken[s] * max(0, started[s] + (s == stage) - passed) for s in hosted])
        return ahead <= self._spare[device]
