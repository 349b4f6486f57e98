"""ZeRO-1 for the user's own optimiser: it is built for whole parameters, then holds this replica's pieces of them."""

from collections.abc import Sequence

import torch
from torch import optim

from pipeplan.core.errors import InputError
from pipeplan_executor.optim.reduction import Piece

ELEMENTWISE = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Rprop,
    optim.Adadelta,
    optim.ASGD,
)
"""Optimisers whose update of a number depends on that number's own gradient and past only."""


def check_elementwise(optimizer: torch.optim.Optimizer, why: str) -> None:
    """Refuse an optimiser that may look at more than one number at a time; ``why`` it sees some only.

    Raises
    ------
    InputError
        Naming those that are known not to.
    """
    if not (isinstance(optimizer, ELEMENTWISE) or getattr(optimizer, "elementwise", False)):
        raise InputError(
            f"{why}, and {type(optimizer).__name__} is not known to treat each number by itself; do without, or, if it "
            "does, say so in its class: elementwise = True. Known: "
            f"{', '.join(known.__name__ for known in ELEMENTWISE)}"
        )


def onto_pieces(optimizer: torch.optim.Optimizer, pieces: Sequence[Piece]) -> None:
    """Let an optimiser that was built for whole parameters update this replica's pieces of them, group by group.

    Raises
    ------
    InputError
        If it is not known to work number by number, or keeps state already.
    """
    check_elementwise(optimizer, "under ZeRO-1 a replica updates a flat piece of the stage's numbers")
    if optimizer.state:
        raise InputError(
            "under ZeRO-1 an optimiser must begin without state, for it holds pieces of parameters only; "
            f"{type(optimizer).__name__} has some before its first step. Solve without --zero1"
        )
    by_parameter: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_parameter.setdefault(id(piece.parameter), []).append(piece)
    for group in optimizer.param_groups:
        own = [piece for parameter in group["params"] for piece in by_parameter.get(id(parameter), ())]
        group["params"] = [piece.updated for piece in own]
        if "param_names" in group:
            group["param_names"] = [piece.name for piece in own]
