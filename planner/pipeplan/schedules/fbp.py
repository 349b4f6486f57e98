"""FBP-AS: forwards and backwards of different micro-batches side by side on one device.

::

    time            0  1  2  3  4  5  6  7  8  9      3 stages, 5 micro-batches, one unit = F + B
    device 0  F    F0 F1 F2 F3 F4  .  .  .  .  .
              B     .  .  .  .  . B0 B1 B2 B3 B4
    device 1  F     . F0 F1 F2 F3 F4  .  .  .  .
              B     .  .  .  . B0 B1 B2 B3 B4  .
    device 2  F     .  . F0 F1 F2 F3 F4  .  .  .
              B     .  .  . B0 B1 B2 B3 B4  .  .

A device gives its two lanes shares of its arithmetic units in proportion to F and B, so that either takes F + B. A
micro-batch then comes back to stage i (from 1) after 2(N − i + 1) units, which is what the stage holds, and a step of
equal stages takes (M + 2N − 1)(F + B). With replicas, and R_i = r_i + … + r_N, each of a stage's r_i replicas holds
⌈2 R_i / r_i⌉. The links carry one tensor per F + B each way, which is less than 1F1B asks of
them. The name is BaPipe's, as we understand it (arXiv 2012.12544).

A list is both lanes merged by start time, the forward first where both start together. That makes it the 1F1B list with
2(N − i + 1) in flight, which a runtime with one lane can run as it stands; a device with two lanes takes from it when a
forward may start: not before the backwards that stand ahead of it have freed their memory.
"""

from collections.abc import Sequence
from dataclasses import replace

from pipeplan.core.cluster import Overlap
from pipeplan.core.schedule import Schedule
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan.schedules.family import Family, check_size, devices_from, per_replica


def in_flight(replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """⌈2 R_i / r_i⌉ at stage i (2(N − i + 1) without replicas), and never more than a replica's share."""
    check_size(replicas, micro_batches)
    return per_replica([2 * behind for behind in devices_from(replicas)], replicas, micro_batches)


def write(replicas: Sequence[int], micro_batches: int) -> Schedule:
    """Both lanes of every device merged by start time."""
    one_lane = one_forward_one_backward(replicas, micro_batches, in_flight(replicas, micro_batches), "fbp-as")
    return replace(one_lane, two_lanes=True)


FAMILY = Family(
    "fbp-as",
    write,
    in_flight,
    frozenset({Overlap.STREAM}),
    "forwards beside backwards on one device; 2(N - i + 1) micro-batches in flight at stage i",
    two_lanes=True,
)
