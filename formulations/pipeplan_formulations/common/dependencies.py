"""Dependencies between the actions of a training step, as data: what each action waits for.

::

    F(s, m, k)   the tensor of F(s - 1, m, k);                F(s, m, k - 1)
    I(s, m, k)   F(s, m, k);  the tensor of I(s + 1, m, k);   I(s, m, k + 1)
    W(s, m, k)   I(s, m, k)
    R(s)         every I and W of stage s on its device
    U(s)         the same, and R(s)

of stage s, micro-batch m and token slice k, where they exist. I is the gradient of a stage's inputs: an input gradient,
or the joined backward that makes it. Slices go forward in order and back in reverse, as attention looks back.

The simulator, the executor and the scheduling problem take their dependencies from here. The validator has its own.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

Part: TypeAlias = Literal["F", "I", "W"]
"""Forward, input gradient (or joined backward), weight gradient."""


class Dependency(NamedTuple):
    """An action of the same micro-batch that has to end first: its kind, and how many stages and slices away it is.

    What another stage makes is waited for as a tensor, which may have to travel.
    """

    kind: Part
    stage: int = 0
    slice: int = 0


OF_MICRO_BATCHES: Mapping[Part, tuple[Dependency, ...]] = {
    "F": (Dependency("F", stage=-1), Dependency("F", slice=-1)),
    "I": (Dependency("F"), Dependency("I", stage=1), Dependency("I", slice=1)),
    "W": (Dependency("I"),),
}
"""What the actions of a micro-batch wait for."""

OF_STEPS: Mapping[Literal["R", "U"], tuple[Literal["I", "W", "R"], ...]] = {"R": ("I", "W"), "U": ("I", "W", "R")}
"""What reduction and update wait for: all actions of these kinds that their device runs of their stage."""
