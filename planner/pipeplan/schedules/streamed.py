"""1F1B-AS: one forward, one backward, on devices whose tensors leave while they are being made.

::

    device 0     F0━━F1━━F2━━            the link is busy under the forward that fills it,
    link 0→1     ▔▔▔▔▔▔▔▔▔▔▔▔            so a hop costs its latency only
    device 1         F0━━F1━━B0━━

The order is that of 1F1B-SNO (N − i + 1 in flight at stage i, from 1): with streaming links there is no travel time to
hide, and a step of equal stages takes (M + N − 1)(F + B). The name (asynchronous device) is BaPipe's, as we understand
it (arXiv 2012.12544).
"""

from collections.abc import Sequence
from dataclasses import replace

from pipeplan.core.cluster import Overlap
from pipeplan.core.schedule import Schedule
from pipeplan.schedules import sno
from pipeplan.schedules.family import Family


def write(replicas: Sequence[int], micro_batches: int) -> Schedule:
    """The order of 1F1B-SNO under its own name."""
    return replace(sno.write(replicas, micro_batches), family="1f1b-as")


FAMILY = Family(
    "1f1b-as",
    write,
    sno.in_flight,
    frozenset({Overlap.STREAM}),
    "one forward, one backward on streaming devices; N - i + 1 micro-batches in flight at stage i",
)
