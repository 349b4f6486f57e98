"""GPipe: all forwards, then all backwards (Huang et al., NeurIPS 2019, section 2).

::

    time         0  1  2  3  4  5  6  7  8  9 10 11     3 stages, 4 micro-batches, F = B = 1
    device 0    F0 F1 F2 F3  .  .  .  . B0 B1 B2 B3
    device 1     . F0 F1 F2 F3  .  . B0 B1 B2 B3  .
    device 2     .  . F0 F1 F2 F3 B0 B1 B2 B3  .  .

With equal stages and free links a step takes (M + N − 1)(F + B).
"""

from collections.abc import Sequence

from pipeplan.core.cluster import Overlap
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules.family import Family, check_size, closing, in_lanes, largest_share


def in_flight(replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """Return the micro-batches of a replica of each stage: it holds all of them."""
    check_size(replicas, micro_batches)
    return tuple(largest_share(count, micro_batches) for count in replicas)


def write(replicas: Sequence[int], micro_batches: int) -> Schedule:
    """Write GPipe's order. Backwards run in the order of the forwards, as they do in torch."""
    check_size(replicas, micro_batches)
    return Schedule("gpipe", in_lanes(lambda stage, own: _order(stage, own, replicas), replicas, micro_batches))


def _order(stage: int, own: Sequence[int], replicas: Sequence[int]) -> tuple[Action, ...]:
    forwards = [Action(Kind.FORWARD, stage, m) for m in own]
    backwards = [Action(Kind.BACKWARD, stage, m) for m in own]
    return (*forwards, *backwards, *closing((stage,), replicas))


FAMILIES = (
    Family(
        "gpipe",
        write,
        in_flight,
        frozenset(Overlap),
        "all forwards, then all backwards; holds every micro-batch",
        phases=True,
    ),
)
