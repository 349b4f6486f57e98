"""How far each stage is from both ends of a step: heads, round trips and tails. Used by every bound of this folder."""

from dataclasses import dataclass

from pipeplan_formulations.schedule.instance import PipelineSchedule


@dataclass(frozen=True)
class Reach:
    """Least times along the chain of one micro-batch, one entry for each stage.

    ::

        F_0 ─▶ F_1 ─▶ F_2 ─▶ F_3          head:        start of F_0 to start of F_2
                      │        │          round_trip:  start of F_2 to end of I_2
        I_0 ◀─ I_1 ◀─ I_2 ◀─ I_3          tail:        end of I_2 to the end of the step

    Attributes
    ----------
    head : tuple of int
        Σ_{t<s} (F_t + lag_t).
    round_trip : tuple of int
        F_s, then all that comes after it up to the end of I_s.
    tail : tuple of int
        max over t ≤ s of  Σ_{t≤v<s} (back_v + I_v) + W_t + ending_t: what must follow I_s(i), whatever i.
    """

    head: tuple[int, ...]
    round_trip: tuple[int, ...]
    tail: tuple[int, ...]


def reach(problem: PipelineSchedule) -> Reach:
    """Heads, round trips and tails of all stages."""
    stages = range(problem.stages)
    head, trip = [0], [0] * problem.stages
    tail: list[int] = []
    for s in stages[1:]:
        head.append(head[-1] + problem.forward[s - 1] + problem.lag[s - 1])
    for s in reversed(stages):
        beyond = 0 if s == problem.stages - 1 else problem.lag[s] + trip[s + 1] + problem.lag_back[s]
        trip[s] = problem.forward[s] + beyond + problem.backward[s]
    for s in stages:
        own = problem.weight[s] + problem.ending[s]
        tail.append(max(own, problem.lag_back[s - 1] + problem.backward[s - 1] + tail[-1]) if s else own)
    return Reach(tuple(head), tuple(trip), tuple(tail))
