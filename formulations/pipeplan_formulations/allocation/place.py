"""Solutions of the chain allocation problem: layers, kind, width and in-flight count of each stage."""

from dataclasses import dataclass

ModeKey = tuple[int, int]
"""Kind and width of a stage: the key of its mode in `AllocationTables.modes`."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A stage: layers ``start`` … ``end − 1`` on ``width`` units of a kind, with ``held`` micro-batches in flight.

    ``held`` 0 is the fewest that the in-flight rule allows.
    """

    start: int
    end: int
    kind: int
    width: int
    held: int = 0

    @property
    def mode(self) -> ModeKey:
        """Kind and width."""
        return self.kind, self.width


Allocation = tuple[Place, ...]
