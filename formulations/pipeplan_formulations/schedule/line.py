"""Random instances on a line of devices, for the comparison of schedules.

::

    device 0 ─lag─▶ device 1 ─lag─▶ … ─lag─▶ device p − 1        each with room for k micro-batches in flight
"""

from random import Random

from pipeplan_formulations.schedule.instance import PipelineSchedule

FORWARD, BACKWARD, WEIGHT, LAG = 1000, 1000, 700, 100
TAKEN, FREED = 100, 60
SEED = 7


def line(stages: int, micro_batches: int, in_flight: int, spread: float = 0.0, seed: int = SEED) -> PipelineSchedule:
    """Create an instance with one stage per device and split backwards; I frees 60 % of a micro-batch, W the rest.

    Parameters
    ----------
    stages, micro_batches : int
    in_flight : int
        Number of micro-batches that fit on each device.
    spread : float
        Each F, I and W of each stage is a mean time multiplied by a factor from [1 − spread, 1 + spread], truncated to
        an integer; all F are drawn first, then all I, then all W.
    seed : int
        Seed of ``random.Random``.
    """
    draw = Random(seed)

    def times(mean: int) -> tuple[int, ...]:
        return tuple(int(mean * draw.uniform(1 - spread, 1 + spread)) for _ in range(stages))

    return PipelineSchedule(
        device=tuple(range(stages)),
        micro_batches=micro_batches,
        forward=times(FORWARD),
        backward=times(BACKWARD),
        weight=times(WEIGHT),
        split=(True,) * stages,
        lag=(LAG,) * (stages - 1),
        lag_back=(LAG,) * (stages - 1),
        ending=(0,) * stages,
        taken=(TAKEN,) * stages,
        freed=(FREED,) * stages,
        freed_by_weight=(TAKEN - FREED,) * stages,
        base=(0,) * stages,
        limit=(TAKEN * in_flight,) * stages,
    )
