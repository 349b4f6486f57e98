"""Dependencies between the actions of a training step, as data.

::

    F(s, m, k)   the tensor of F(s - 1, m, k);                F(s, m, k - 1)
    I(s, m, k)   F(s, m, k);  the tensor of I(s + 1, m, k);   I(s, m, k + 1)
    W(s, m, k)   I(s, m, k)
    R(s)         every I and W of stage s on its device
    U(s)         the same, and R(s)

Each row has an action of stage s, micro-batch m and token slice k, and the actions that it waits for, if they exist. I
is an input gradient, or the joined backward that computes it. Slices run forward in order and backward in reverse,
because attention looks at earlier tokens.

The simulator, the executor and the scheduling problem use these dependencies. The validator has its own.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

Part: TypeAlias = Literal["F", "I", "W"]
"""Forward, input gradient (or joined backward), weight gradient."""


class Dependency(NamedTuple):
    """An action of the same micro-batch that has to end first: its kind, and its distance in stages and slices.

    The result of an action on another stage is waited for as a tensor, which may have to be sent.
    """

    kind: Part
    stage: int = 0
    slice: int = 0


OF_MICRO_BATCHES: Mapping[Part, tuple[Dependency, ...]] = {
    "F": (Dependency("F", stage=-1), Dependency("F", slice=-1)),
    "I": (Dependency("F"), Dependency("I", stage=1), Dependency("I", slice=1)),
    "W": (Dependency("I"),),
}
"""Dependencies of the actions of a micro-batch."""

OF_STEPS: Mapping[Literal["R", "U"], tuple[Literal["I", "W", "R"], ...]] = {"R": ("I", "W"), "U": ("I", "W", "R")}
"""Dependencies of reduction and update: all actions of these kinds that their device runs for their stage."""
