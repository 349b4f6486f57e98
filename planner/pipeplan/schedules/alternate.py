"""The common part of the 1F1B families: a few forwards to warm up, then one backward, one forward, in turn."""

from pipeplan.schedule import Action, Kind


def alternate(stage: int, in_flight: int, micro_batches: int) -> tuple[Action, ...]:
    """One stage's list: ``in_flight`` forwards, then backwards and forwards in turn, the last backwards, the update.

    ::

        in_flight = 2, micro_batches = 4     F0 F1 B0 F2 B1 F3 B2 B3 U

    Every forward after the warm-up follows the backward whose memory it takes over, so that the stage never holds
    more than ``in_flight`` micro-batches.
    """
    order = [Action(Kind.FORWARD, stage, m) for m in range(in_flight)]
    for m in range(micro_batches):
        order.append(Action(Kind.BACKWARD, stage, m))
        if m + in_flight < micro_batches:
            order.append(Action(Kind.FORWARD, stage, m + in_flight))
    order.append(Action(Kind.UPDATE, stage))
    return tuple(order)
