"""Sampled step times of a schedule with perturbed times of actions and transfers."""

from collections.abc import Callable, Sequence

import numpy as np

from pipeplan.core.perturbation import Robust
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Schedule
from pipeplan.simulate import makespan
from pipeplan.simulate.perturbed.factors import BLOCK, Factors
from pipeplan.simulate.perturbed.lockstep import last_ends
from pipeplan.simulate.perturbed.replay import replayed
from pipeplan.simulate.perturbed.sequence import has_own_resources, topological_groups
from pipeplan.simulate.perturbed.times import Ints, perturbed
from pipeplan.simulate.program import build_program


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
    """Return the nanoseconds of perturbed steps, shape (samples,).

    The lists do not change; the times of actions and transfers do (`simulate.perturbed.factors`). The same seed
    perturbs the n-th action of a kind on a device equally in every schedule.

    Parameters
    ----------
    samples : int, optional
        Number of steps; by default ``robust.wanted``.
    start : int
        Number of samples to skip, as already known.
    devices : sequence of int, optional
        Numbers of the pipeline's devices that are common to all pipelines; by default their own.
    check : callable
        Called repeatedly; it may raise an error to stop the sampling.

    Raises
    ------
    PlanError
        As in `pipeplan.simulate.simulate`.
    """
    count = robust.wanted if samples is None else samples
    names = range(pipeline.devices) if devices is None else devices
    program = build_program(schedule, pipeline, True)
    alone, order = has_own_resources(program), topological_groups(program)
    if sum(map(len, order)) < len(program.actions):
        makespan(schedule, pipeline)  # raises the error that describes the deadlock
    found = [np.zeros(0, np.int64)]
    for block in range(start // BLOCK, -(-(start + count) // BLOCK)):
        check()
        first, size = block * BLOCK, min(BLOCK, start + count - block * BLOCK)
        times = perturbed(program, Factors(robust.spread, robust.device_spread, seed, block), names)
        steps = last_ends(program, order, times, check)[:size] if alone else replayed(program, times, size, check)
        found.append(steps[max(start - first, 0) :])
    return np.concatenate(found)
