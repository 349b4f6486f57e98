"""`TensorParallel`: the number of processes that share a rank, and the axes along which parameters are cut."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeplan.core.errors import InputError


@dataclass(frozen=True)
class TensorParallel:
    """Teams of processes in the place of the plan's ranks.

    Attributes
    ----------
    size : int
        Members of every team.
    shards : mapping of str to int, optional
        By glob patterns of parameters' names in the unsplit model, the axis along which they are cut, like
        ``{"block*.query_key_value.*": 0, "block*.attention_out.weight": 1}``. What no pattern matches is whole on every
        member. By default what the workload says (`pipeplan.frontend.workload.Workload.shards`).

    Raises
    ------
    InputError
        If the size is not positive.
    """

    size: int
    shards: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"a team of {self.size} processes cannot run a rank; give 2 or more, or 1 for none")


def declared(wanted: TensorParallel | int | None = None) -> TensorParallel:
    """``wanted``, of which a number is the size alone and None is 1."""
    if isinstance(wanted, TensorParallel):
        return wanted
    return TensorParallel(1 if wanted is None else wanted)
