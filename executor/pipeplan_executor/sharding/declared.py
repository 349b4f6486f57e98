"""`TensorParallel`: the number of processes that share a rank, and what they share out."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.figures import MOST_DEVICES, whole
from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.options import require
from pipeplan.core.plan import Plan


@dataclass(frozen=True)
class TensorParallel:
    """Tensor-parallel groups of processes in place of the plan's ranks.

    Attributes
    ----------
    size : int
        Tensor-parallel ranks of every group.
    shards : mapping of str to int or GroupedAxis, optional
        Axis along which parameters are sharded, by their names in the unsplit model or glob patterns of them, like
        ``{"block*.query_key_value.*": 0, "block*.attention_out.weight": 1}``. Of a `GroupedAxis` each group is, like
        all queries, all keys and all values. A parameter that none matches is whole on every tensor-parallel rank. By
        default the axes of the workload (`pipeplan.frontend.workload.Workload.shards`).

    Raises
    ------
    InputError
        If the size is not positive.

    Examples
    --------
    >>> pipeplan_executor.TensorParallel(2, {"block*.widen.*": 0, "block*.narrow.weight": 1}).size
    2
    """

    size: int
    shards: Mapping[str, ShardAxis] | None = None

    def __post_init__(self) -> None:
        if whole(self.size, "the size of a tensor-parallel group", -MOST_DEVICES, MOST_DEVICES) < 1:
            raise InputError(
                f"a tensor-parallel group of {self.size} processes cannot run a rank; give 2 or more, or 1 for none"
            )


def declared(plan: Plan, wanted: TensorParallel | int | None = None) -> TensorParallel:
    """Return the tensor-parallel groups on which a plan runs.

    If the plan has teams, they are the groups, and what they share out is sharded. ``wanted`` is for other plans: a
    number is the size of the groups, None a size of 1.

    Raises
    ------
    PlanError
        If the plan's teams share out no parameter, or its split loss is not that of a team.
    InputError
        If ``wanted`` contradicts the plan.
    """
    last = require(plan, Plan).stages[-1]
    if plan.vocabulary is not None and (last.team == 1 or plan.vocabulary != last.layers[-1]):
        raise PlanError(
            f"the plan splits the loss behind {plan.vocabulary!r} along its classes; that takes a team of devices, and "
            f"the last layer, which is {last.layers[-1]!r} on a team of {last.team}; solve again"
        )
    asked = wanted if isinstance(wanted, TensorParallel) else TensorParallel(1 if wanted is None else wanted)
    if plan.team == 1:
        return asked
    own = TensorParallel(plan.team, dict(plan.shards))
    if not (own.shards or plan.sequence or plan.strategies):
        raise PlanError(
            f"each rank of the plan is a team of {plan.team} devices, and they share out no parameter: all of them "
            "would do the same work; solve again"
        )
    if wanted is not None and asked.size != own.size:
        raise InputError(
            f"each rank of the plan is a team of {own.size} devices, and tensor parallelism is given as {asked.size}; "
            f"leave it out, or solve for teams of {asked.size}"
        )
    if asked.shards not in (None, own.shards):
        raise InputError(
            f"the plan says which parameters its teams of {own.size} devices share out, and its times are for those; "
            "leave out the shards that tensor parallelism is given with"
        )
    return own
