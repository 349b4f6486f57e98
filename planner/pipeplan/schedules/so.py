"""1F1B-SO: one forward, one backward, with a doubled warm-up, so that tensors travel while devices compute.

::

    time         0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15     3 stages, 4 micro-batches, F = B = SR = 1
    device 0    F0 F1 F2 F3  .  .  .  .  . B0  . B1  . B2  . B3
    device 1     .  . F0 F1 F2  .  . B0 F3 B1  . B2  . B3  .  .
    device 2     .  .  .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .  .  .

Stage i (from 1) of N holds 2(N − i) + 1 micro-batches: one for every device and for every link on the way to the end
and back. With replicas, and R_i = r_i + … + r_N, each of its r_i replicas holds ⌈(2 R_i − r_i) / r_i⌉. With equal
stages and hops that take SR ≤ (F + B) / 2 without occupying a device, a step takes (M + N − 1)(F + B) + (N − 1) 2 SR:
a link's time is paid once, not per micro-batch. The name (synchronous device, overlap) is BaPipe's, as we understand it
(arXiv 2012.12544); DAPPLE's policy of 2(S − s) − 1 in flight is the same count.
"""

from collections.abc import Sequence

from pipeplan.core.cluster import Overlap
from pipeplan.core.schedule import Schedule
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan.schedules.family import Family, check_size, devices_from, per_replica


def in_flight(replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """⌈(2 R_i − r_i) / r_i⌉ at stage i (2(N − i) + 1 without replicas), and never more than a replica's share."""
    check_size(replicas, micro_batches)
    wanted = [2 * behind - r for behind, r in zip(devices_from(replicas), replicas, strict=True)]
    return per_replica(wanted, replicas, micro_batches)


def write(replicas: Sequence[int], micro_batches: int) -> Schedule:
    """1F1B with the doubled warm-up."""
    return one_forward_one_backward(replicas, micro_batches, in_flight(replicas, micro_batches), "1f1b-so")


FAMILY = Family(
    "1f1b-so",
    write,
    in_flight,
    frozenset({Overlap.COPY}),
    "one forward, one backward, doubled warm-up; 2(N - i) + 1 micro-batches in flight at stage i hide the links",
)
