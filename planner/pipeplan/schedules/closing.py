"""What ends a device's list."""

from collections.abc import Iterable, Sequence

from pipeplan.core.schedule import Action, Kind


def closing(stages: Iterable[int], replicas: Sequence[int], tied: Iterable[Sequence[int]] = ()) -> tuple[Action, ...]:
    """The end of the list of a device with these stages: gradients are summed, then every stage updates.

    Reductions come in an order that all devices share, that of the first stage of each collective: those of different
    groups of tied stages must not wait for each other.

    Parameters
    ----------
    replicas : sequence of int
        Of every stage of the pipeline; those with one reduce nothing, unless they are tied.
    tied : iterable of sequence of int
        Groups of stages that hold copies of the same weights.
    """
    own = sorted(stages)
    first = {stage: min(group) for group in tied for stage in group}
    reducing = sorted((s for s in own if replicas[s] > 1 or s in first), key=lambda s: (first.get(s, s), s))
    return (*(Action(Kind.REDUCE, s) for s in reducing), *(Action(Kind.UPDATE, s) for s in own))
