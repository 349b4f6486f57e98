"""The common part of ZB-H1 and ZB-H2: 1F1B with split backwards, the weight gradients some micro-batches late.

::

    k = 2, 1 late, 4 micro-batches      F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3

W(i − late) runs behind I(i), and a forward behind both, so the device holds at most k + late micro-batches. Forwards
and I stand as in 1F1B, so the lists end where 1F1B's do: if k never grows from a stage to the next.
"""

from collections.abc import Iterator

from pipeplan.core.schedule import Action, Kind


def late_weights(stage: int, micro_batches: int, in_flight: int, late: int) -> Iterator[Action]:
    """One device's list."""
    for m in range(min(in_flight, micro_batches)):
        yield Action(Kind.FORWARD, stage, m)
    for m in range(micro_batches):
        yield Action(Kind.INPUT_GRADIENT, stage, m)
        if m >= late:
            yield Action(Kind.WEIGHT_GRADIENT, stage, m - late)
        if m + in_flight < micro_batches:
            yield Action(Kind.FORWARD, stage, m + in_flight)
    for m in range(max(micro_batches - late, 0), micro_batches):
        yield Action(Kind.WEIGHT_GRADIENT, stage, m)
