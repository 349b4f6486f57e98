"""1F1B-SNO: one forward, one backward, with the fewest micro-batches in flight that keep all devices busy.

::

    time         0  1  2  3  4  5  6  7  8  9 10 11     3 stages, 4 micro-batches, F = B = 1
    device 0    F0 F1 F2  .  . B0 F3 B1  . B2  . B3
    device 1     . F0 F1  . B0 F2 B1 F3 B2  . B3  .
    device 2     .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .

Stage i (from 1) of N warms up with N − i + 1 forwards. With replicas, the R_i = r_i + … + r_N devices from there on
want one micro-batch each, so each of its r_i replicas warms up with ⌈R_i / r_i⌉. With free links a step of equal stages
takes (M + N − 1)(F + B); every hop's time is paid again and again, since nothing is left to do while a tensor travels.
The order is that of PipeDream-flush and of Megatron-LM's schedule without interleaving; the name (synchronous device,
no overlap) is BaPipe's, as we understand it (arXiv 2012.12544).
"""

from collections.abc import Sequence

from pipeplan.core.cluster import Overlap
from pipeplan.core.schedule import Schedule
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan.schedules.family import Family, check_size, devices_from, per_replica


def in_flight(replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """⌈R_i / r_i⌉ at stage i (N − i + 1 without replicas), and never more than a replica's share."""
    check_size(replicas, micro_batches)
    return per_replica(devices_from(replicas), replicas, micro_batches)


def write(replicas: Sequence[int], micro_batches: int) -> Schedule:
    """1F1B with the least warm-up."""
    return one_forward_one_backward(replicas, micro_batches, in_flight(replicas, micro_batches), "1f1b-sno")


FAMILY = Family(
    "1f1b-sno",
    write,
    in_flight,
    frozenset({Overlap.NONE, Overlap.COPY}),
    "one forward, one backward; N - i + 1 micro-batches in flight at stage i",
)
