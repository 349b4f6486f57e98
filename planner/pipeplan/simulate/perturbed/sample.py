"""Step times of a schedule whose actions and transfers take longer or shorter than planned."""

from collections.abc import Callable, Sequence

import numpy as np

from pipeplan.core.perturbation import Robust
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Schedule
from pipeplan.simulate import makespan
from pipeplan.simulate.perturbed.factors import BLOCK, Factors
from pipeplan.simulate.perturbed.lockstep import last_ends
from pipeplan.simulate.perturbed.replay import replayed
from pipeplan.simulate.perturbed.sequence import alone_on_wires, follows
from pipeplan.simulate.perturbed.times import Ints, perturbed
from pipeplan.simulate.program import number


def step_times(
    schedule: Schedule,
    pipeline: Pipeline,
    robust: Robust,
    *,
    samples: int | None = None,
    start: int = 0,
    seed: int = 0,
    devices: Sequence[int] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Ints:
    """Nanoseconds of so many perturbed steps, shape (samples,).

    The lists stay as they are; what changes is how long actions and transfers take (`simulate.perturbed.factors`). The
    same seed disturbs the n-th piece of work of a sort on a device alike in every schedule.

    Parameters
    ----------
    samples : int, optional
        By default as many as the question wants.
    start : int
        Leave out so many, as if they were known already.
    devices : sequence of int, optional
        The numbers by which the pipeline's devices are known to other pipelines; by default their own.
    check : callable
        Called now and then: it may raise an error to end this.

    Raises
    ------
    PlanError
        As in `pipeplan.simulate.simulate`.
    """
    count = robust.wanted if samples is None else samples
    names = range(pipeline.devices) if devices is None else devices
    program = number(schedule, pipeline, True)
    alone, order = alone_on_wires(program), follows(program)
    if sum(map(len, order)) < len(program.actions):
        makespan(schedule, pipeline)  # says who waits for whom
    found = [np.zeros(0, np.int64)]
    for block in range(start // BLOCK, -(-(start + count) // BLOCK)):
        check()
        first, size = block * BLOCK, min(BLOCK, start + count - block * BLOCK)
        times = perturbed(program, Factors(robust.spread, robust.device_spread, seed, block), names)
        steps = last_ends(program, order, times, check)[:size] if alone else replayed(program, times, size, check)
        found.append(steps[max(start - first, 0) :])
    return np.concatenate(found)
