"""Simulated annealing over the orders of devices, each timed as `evaluate` does: with lanes, and with wires that serve
first come, first served.

::

    device 1   F2 I0 W0 F3 I1        some operation goes a few places on, or back
                  ╰────▶

What becomes longer is taken with a probability that falls with the time that is left (Kirkpatrick, Gelatt and Vecchi,
"Optimization by simulated annealing", 1983). `swaps` looks at the critical path only and is quicker, but its network
has no lanes and no wires.
"""

import time
from math import exp
from random import Random

from pipeplan_formulations.schedule.instance import Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate, worth

_FAR = 3  # places
_WARM = 0.005  # of the makespan: what at first is often taken
_STALE = 4000  # orders without a new best after which it ends


def annealed(
    problem: PipelineSchedule, orders: Orders, seconds: float, seed: int = 0, bound: int = 0
) -> tuple[int, Orders]:
    """The best orders of devices that are found within some wall time, and their makespan; no worse than those given.

    Parameters
    ----------
    orders : Orders
        Lists of devices that end and fit; what they say of wires is left out.
    bound : int
        A makespan that is good enough, as one below which there is none: the search ends where it is met.
    """
    begin, random = time.monotonic(), Random(seed)
    here = orders[: problem.devices]
    value = evaluate(problem, here)
    assert value is not None
    best, least, stale = here, value, 0
    left = 1.0
    while least > bound and stale < _STALE and (left := 1 - (time.monotonic() - begin) / max(seconds, 1e-9)) > 0:
        stale += 1
        trial = _moved(here, random)
        after = None if trial is None else worth(problem, trial)
        if trial is None or after is None:
            continue
        if after <= value or random.random() < exp((value - after) / (_WARM * value * left)):
            here, value = trial, after
            if value < least:
                best, least, stale = here, value, 0
    return least, best


def _moved(orders: Orders, random: Random) -> Orders | None:
    """One operation a few places on or back; None if it passed one that it waits for, or that waits for it."""
    device = random.randrange(len(orders))
    order = list(orders[device])
    if len(order) < 2:
        return None
    start = random.randrange(len(order))
    end = start + random.choice((-1, 1)) * random.randint(1, _FAR)
    if not 0 <= end < len(order):
        return None
    op = order.pop(start)
    order.insert(end, op)
    passed = order[start:end] if start < end else order[end + 1 : start + 1]
    if any(_tied(op, other) for other in passed):
        return None
    return (*orders[:device], tuple(order), *orders[device + 1 :])


def _tied(a: Op, b: Op) -> bool:
    """Whether their order is known: of one kind and stage, or one micro-batch at one stage."""
    return a.stage == b.stage and (a.kind == b.kind or a.micro_batch == b.micro_batch)
