"""What a schedule family is: somebody who writes action lists."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeplan.cluster import Overlap
from pipeplan.errors import InputError
from pipeplan.schedule import Schedule


@dataclass(frozen=True)
class Family:
    """A way to order the actions of any number of stages and micro-batches.

    Attributes
    ----------
    name : str
    write : callable
        ``write(stages, micro_batches)`` is the `Schedule`.
    in_flight : callable
        ``in_flight(stages, micro_batches)``: for every stage, the most micro-batches that it holds at a time (from the
        start of a forward to the end of its backward), whatever the times are.
    suits : frozenset of Overlap
        The clusters for which `pipeplan.solve` considers the family unless told otherwise.
    summary : str
        One line for tables.
    two_lanes : bool
        The schedule's devices run forwards beside backwards.
    """

    name: str
    write: Callable[[int, int], Schedule]
    in_flight: Callable[[int, int], tuple[int, ...]]
    suits: frozenset[Overlap]
    summary: str
    two_lanes: bool = False


def check_size(stages: int, micro_batches: int) -> None:
    """Refuse a pipeline without stages or a step without micro-batches."""
    if stages < 1 or micro_batches < 1:
        raise InputError(
            f"a schedule needs at least one stage and one micro-batch, not {stages} stages and {micro_batches} "
            "micro-batches"
        )
