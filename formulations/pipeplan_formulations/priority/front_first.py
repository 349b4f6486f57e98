"""The front layer that is ready: an order of chunks that is at most one chunk behind the best link.

Whenever the link is free, the next chunk of the first layer leaves whose gradients are ready.
"""

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.priority.instance import Chunks, Order

NAME = "front-first"


def front_first(problem: Chunks) -> Order:
    """Return the order."""
    left = [len(own) for own in problem.times]
    ready = problem.ready.tolist()
    order: list[int] = []
    clock, back = 0, len(left)  # layers from ``back`` on are ready
    waiting: list[int] = []  # those of them with chunks left, the front one last
    while back or waiting:
        while back and (not waiting or ready[back - 1] <= clock):
            back -= 1
            if left[back]:
                clock = max(clock, ready[back])
                waiting.append(back)
        if not waiting:
            break
        layer = waiting[-1]
        order.append(layer)
        clock += problem.times[layer][len(problem.times[layer]) - left[layer]]
        left[layer] -= 1
        if not left[layer]:
            waiting.pop()
    return tuple(order)


def solve(
    problem: Chunks, limits: Limits, hint: Order | None = None, on_progress: Progress | None = None
) -> Report[Order]:
    """Return the order, or ``hint`` if that is better, with T* as bound."""
    bracket = Bracket(problem.evaluate, limits, on_progress)
    bracket.low = problem.lower_bound()
    bracket.offer(front_first(problem))
    if hint is not None:
        bracket.offer(hint)
    return bracket.report(Stop.EXHAUSTED, NAME)
