"""`TensorParallel`: the number of processes that share a rank, and the axes along which parameters are sharded."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeplan.core.errors import InputError


@dataclass(frozen=True)
class TensorParallel:
    """Tensor-parallel groups of processes in place of the plan's ranks.

    Attributes
    ----------
    size : int
        Tensor-parallel ranks of every group.
    shards : mapping of str to int, optional
        Axis along which parameters are sharded, by glob patterns of their names in the unsplit model, like
        ``{"block*.query_key_value.*": 0, "block*.attention_out.weight": 1}``. A parameter that no pattern matches is
        whole on every tensor-parallel rank. By default the axes of the workload
        (`pipeplan.frontend.workload.Workload.shards`).

    Raises
    ------
    InputError
        If the size is not positive.
    """

    size: int
    shards: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(
                f"a tensor-parallel group of {self.size} processes cannot run a rank; give 2 or more, or 1 for none"
            )


def declared(wanted: TensorParallel | int | None = None) -> TensorParallel:
    """Return ``wanted`` as a `TensorParallel`: a number is its size, None a size of 1."""
    if isinstance(wanted, TensorParallel):
        return wanted
    return TensorParallel(1 if wanted is None else wanted)
