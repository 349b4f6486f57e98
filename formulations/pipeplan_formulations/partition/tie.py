"""Two layers that share weights."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tie:
    """What it costs to have layers ``first`` < ``last`` in different stages.

    Each of the two stages then holds ``resident`` more bytes (its copy of what is shared beyond what its layer has
    in `ChainPartition.resident`) and spends ``reduce`` ns on adding up the two gradients. In one stage they cost
    nothing more.

    Raises
    ------
    ValueError
        If the layers are not in order or a number is negative.
    """

    first: int
    last: int
    resident: int = 0
    reduce: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.last:
            raise ValueError(f"a tie joins an earlier layer to a later one, not {self.first} to {self.last}")
        if self.resident < 0 or self.reduce < 0:
            raise ValueError(f"a tie costs {self.resident} bytes and {self.reduce} ns; neither may be negative")
