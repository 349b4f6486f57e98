"""`Program`: the calls of a recorded layer, and the operator, view or constant that each of them is.

With it a layer can be run by parts: views of what an operator makes are taken of the part that a device has, and an
operator is called with the parts that it needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from torch import Tensor

from pipeplan.core.operators import OperatorGraph
from pipeplan.frontend.operators.record import Call, Record
from pipeplan.frontend.operators.sources import View

Pieces = tuple[tuple[str, int], ...]
"""Loop and length of each piece of an axis of a tensor, outermost first; none of one that broadcasts."""


class Role(StrEnum):
    """What a call is: it depends on no input and no weight, it only views a tensor, or it is an operator."""

    CONSTANT = "constant"
    VIEW = "view"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Step:
    """A call of a layer.

    Attributes
    ----------
    call : Call or None
        None for an operator that passes a tensor on.
    role : Role
    views : tuple of View or None
        Each result as a view of an operator's output, an input or a weight; None for constants.
    operator : str
        Its name, if it is one.
    operands : mapping of int to tuple of Pieces
        Of an operator, for each tensor that it reads, by its ``id``, the pieces of its axes.
    passed : Tensor or None
        What an operator without call passes on.
    """

    call: Call | None
    role: Role
    views: tuple[View | None, ...]
    operator: str = ""
    operands: Mapping[int, tuple[Pieces, ...]] = field(default_factory=dict)
    passed: Tensor | None = None

    @property
    def has_gradient(self) -> bool:
        """Whether autograd recorded the call."""
        return self.call is not None and any(each.requires_grad for each in self.call.made)


@dataclass(frozen=True)
class Program:
    """The forward of a layer, call by call.

    Attributes
    ----------
    graph : OperatorGraph
        Its operators.
    record : Record
        Its tensors have no values; they are known by their ``id``, and one that is written in place is another one from
        then on.
    steps : sequence of Step
    given : mapping of int to View or None
        Inputs and parameters before the first call; None for parameters that are not trained.
    """

    graph: OperatorGraph
    record: Record
    steps: Sequence[Step]
    given: Mapping[int, View | None]
