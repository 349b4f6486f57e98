"""GPipe: all forwards, then all backwards (Huang et al., NeurIPS 2019, section 2).

::

    time         0  1  2  3  4  5  6  7  8  9 10 11     3 stages, 4 micro-batches, F = B = 1
    device 0    F0 F1 F2 F3  .  .  .  . B0 B1 B2 B3
    device 1     . F0 F1 F2 F3  .  . B0 B1 B2 B3  .
    device 2     .  . F0 F1 F2 F3 B0 B1 B2 B3  .  .

With equal stages and free links a step takes (M + N − 1)(F + B).
"""

from pipeplan.cluster import Overlap
from pipeplan.schedule import Action, Kind, Schedule
from pipeplan.schedules.family import Family, check_size


def in_flight(stages: int, micro_batches: int) -> tuple[int, ...]:
    """Every stage holds all micro-batches."""
    check_size(stages, micro_batches)
    return (micro_batches,) * stages


def write(stages: int, micro_batches: int) -> Schedule:
    """GPipe's order, stage s on device s. Backwards run in the order of the forwards, as they do in torch."""
    check_size(stages, micro_batches)
    return Schedule("gpipe", tuple(_order(stage, micro_batches) for stage in range(stages)))


def _order(stage: int, micro_batches: int) -> tuple[Action, ...]:
    forwards = [Action(Kind.FORWARD, stage, m) for m in range(micro_batches)]
    backwards = [Action(Kind.BACKWARD, stage, m) for m in range(micro_batches)]
    return (*forwards, *backwards, Action(Kind.UPDATE, stage))


FAMILY = Family(
    "gpipe", write, in_flight, frozenset(Overlap), "all forwards, then all backwards; holds every micro-batch"
)
