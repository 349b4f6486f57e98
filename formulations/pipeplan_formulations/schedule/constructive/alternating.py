"""Lists written without looking at the clock: 1F1B, and the handwritten zero-bubble schedules."""

from pipeplan_formulations.schedule.constructive.numbers import F, I, Numbered, W, number
from pipeplan_formulations.schedule.instance import PipelineSchedule


def alternating(problem: PipelineSchedule, held: list[int], delay: list[int]) -> Numbered:
    """``held`` forwards on each stage, then one I and one F in turn; W comes ``delay`` micro-batches after its I.

    With one stage on each device and ``held`` that does not grow from stage to stage, such lists end.

    ::

        held 3, delay 1     F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 …
    """
    orders: Numbered = [[] for _ in problem.hosted]
    many = problem.micro_batches
    for s, device in enumerate(problem.device):
        order = orders[device]
        order += [number(problem, F, s, m) for m in range(min(held[s], many))]
        for m in range(many):
            order.append(number(problem, I, s, m))
            if problem.split[s] and m >= delay[s]:
                order.append(number(problem, W, s, m - delay[s]))
            if m + held[s] < many:
                order.append(number(problem, F, s, m + held[s]))
        if problem.split[s]:
            order += [number(problem, W, s, m) for m in range(max(0, many - delay[s]), many)]
    return orders


def one_forward_one_backward(problem: PipelineSchedule, most: list[int]) -> Numbered:
    """1F1B with up to ``most`` micro-batches in flight on each stage, fewer where they do not fit."""
    return alternating(problem, _fitting(problem, most), [0] * problem.stages)


def zero_bubble(problem: PipelineSchedule, extra: int) -> Numbered:
    """ZB-H1 (``extra`` 1) and ZB-H2 (2) of "Zero Bubble Pipeline Parallelism" (Qi et al., 2023), section 2.

    H1 keeps as many micro-batches in flight as 1F1B, p − s on stage s, H2 one more for each stage behind. The W of
    stage s wait long enough to fill the time after its last I: s micro-batches, or 2s. Where memory is short, the
    forwards are cut to what fits, then the delay.
    """
    stages = problem.stages
    held = _fitting(problem, [extra * (stages - s) - (extra - 1) for s in range(stages)])
    return alternating(problem, held, [_delay(problem, s, held[s], extra * s) for s in range(stages)])


def _fitting(problem: PipelineSchedule, most: list[int]) -> list[int]:
    held: list[int] = []
    for s, wanted in enumerate(most):
        room, taken = problem.room[problem.device[s]], problem.taken[s]
        before = held[-1] if held else problem.micro_batches
        held.append(max(1, min(wanted, before, room // taken if taken else wanted)))
    return held


def _delay(problem: PipelineSchedule, stage: int, held: int, wanted: int) -> int:
    left = problem.room[problem.device[stage]] - held * problem.taken[stage]
    waiting = problem.freed_by_weight[stage]
    return min(wanted, problem.micro_batches, left // waiting if waiting else wanted)
