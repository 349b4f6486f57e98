"""How many micro-batches each stage keeps in flight, tuned one stage at a time.

Where memory is short these counts decide more than priorities do: a stage that takes forwards early delays backwards,
and the stages before it, full, wait for those.
"""

import time
from dataclasses import replace

from pipeplan_formulations.schedule.constructive.dispatch import dispatch
from pipeplan_formulations.schedule.constructive.numbers import Numbered
from pipeplan_formulations.schedule.constructive.rule import Rule
from pipeplan_formulations.schedule.instance import PipelineSchedule


def tuned(problem: PipelineSchedule, rule: Rule, until: float) -> tuple[int, Numbered]:
    """The best of hill climbing over ``rule.held``, one more or less on one stage a step, until a moment.

    Equal values are walked along, never twice to the same counts; the walk ends where no step is left.
    """
    fits = [_alone(problem, stage) for stage in range(problem.stages)]
    held = rule.held or tuple(fits)
    most, best = dispatch(problem, replace(rule, held=held))
    seen = {held}
    stage = waited = 0
    while waited < problem.stages and time.monotonic() < until:
        waited += 1
        for count in (held[stage] - 1, held[stage] + 1):
            other = (*held[:stage], count, *held[stage + 1 :])
            if not 1 <= count <= fits[stage] or other in seen:
                continue
            seen.add(other)
            value, orders = dispatch(problem, replace(rule, held=other))
            if value <= most:
                waited = 0 if value < most else waited
                most, best, held = value, orders, other
                break
        stage = (stage + 1) % problem.stages
    return most, best


def _alone(problem: PipelineSchedule, stage: int) -> int:
    """Most micro-batches that fit on the stage while each other one on its device holds one."""
    device, taken = problem.device[stage], problem.taken[stage]
    left = problem.room[device] - sum(problem.taken[s] for s in problem.hosted[device])
    return min(problem.micro_batches, 1 + left // taken) if taken else problem.micro_batches
