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
equal stages takes (M + 2N − 1)(F + B). The links carry one tensor per F + B each way, which is less than 1F1B asks of
them. The name is BaPipe's, as we understand it (arXiv 2012.12544).

A list is both lanes merged by start time, the forward first where both start together. That makes it the 1F1B list with
2(N − i + 1) in flight, which a runtime with one lane can run as it stands; a device with two lanes takes from it when a
forward may start: not before the backwards that stand ahead of it have freed their memory.
"""

from pipeplan.cluster import Overlap
from pipeplan.schedule import Schedule
from pipeplan.schedules.alternate import alternate
from pipeplan.schedules.family import Family, check_size


def in_flight(stages: int, micro_batches: int) -> tuple[int, ...]:
    """2(N − i + 1) at stage i, and never more than there are micro-batches."""
    check_size(stages, micro_batches)
    return tuple(min(2 * (stages - stage), micro_batches) for stage in range(stages))


def write(stages: int, micro_batches: int) -> Schedule:
    """Both lanes of every device merged by start time, stage s on device s."""
    counts = in_flight(stages, micro_batches)
    orders = tuple(alternate(stage, count, micro_batches) for stage, count in enumerate(counts))
    return Schedule("fbp-as", orders, two_lanes=True)


FAMILY = Family(
    "fbp-as",
    write,
    in_flight,
    frozenset({Overlap.STREAM}),
    "forwards beside backwards on one device; 2(N - i + 1) micro-batches in flight at stage i",
    two_lanes=True,
)
