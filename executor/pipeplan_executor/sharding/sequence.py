"""Tokens of the tensors between layers, and checks of plans that say which outputs are split along these.

"Sequence parallelism" of Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022,
section 4.2.2.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import Tensor

from pipeplan.core.errors import PlanError
from pipeplan.core.plan import Plan
from pipeplan.core.wording import some

AXIS = 1
"""The axis of tokens, behind that of samples."""


def stream_of(tensors: Sequence[Tensor]) -> int | None:
    """Return which of the tensors between two layers may be split along tokens, by number.

    It is the only one, or the only one with a gradient; masks and positions that pass beside it are whole.
    """
    own = [n for n, tensor in enumerate(tensors) if len(tensors) == 1 or tensor.requires_grad]
    return own[0] if len(own) == 1 else None


def check_sequence(plan: Plan, names: Sequence[str], flow: Sequence[Sequence[Tensor]]) -> None:
    """Refuse outputs that cannot be split along tokens.

    Raises
    ------
    PlanError
        With the layer and the reason.
    """
    if not plan.sequence:
        return
    if plan.team == 1:
        raise PlanError(
            f"the plan splits the outputs of {some(plan.sequence)} along tokens, and its ranks are single devices; "
            "only the devices of a team split them"
        )
    made: Mapping[str, Sequence[Tensor]] = dict(zip(names, flow[1:], strict=True))
    for name in plan.sequence:
        if name not in made:
            raise PlanError(f"the plan splits the output of {name!r} along tokens, which is none of its layers")
        if name == names[-1]:
            raise PlanError(
                f"the plan splits the output of {name}, its last layer, along tokens; the loss needs it whole"
            )
        shapes = [tuple(tensor.shape) for tensor in made[name]]
        place = stream_of(made[name])
        if place is None or len(shapes[place]) < 3:
            raise PlanError(
                f"the plan splits the output of {name} along tokens, which takes one tensor of samples, tokens and "
                f"features, and beside it only tensors without a gradient; it returns {' and '.join(map(str, shapes))}"
            )
        for team in plan.teams:
            if shapes[place][AXIS] % team:
                raise PlanError(
                    f"the plan splits the {shapes[place][AXIS]} tokens of {name} among {team} devices, which cannot "
                    "have equal parts; choose a length that their number divides"
                )


def check_context(plan: Plan, names: Sequence[str], parameters: Mapping[str, Tensor]) -> None:
    """Refuse products and attention on parts of the tokens where there are none.

    ``names``: all layers, in order; ``parameters``: by all of their names in the unsplit model.

    Raises
    ------
    PlanError
        With the layer or the parameter.
    """
    if plan.context and not plan.sequence:
        raise PlanError(
            "the plan runs products or attention on parts of the tokens, and splits no output along tokens; solve again"
        )
    split = {*plan.sequence, *(after for before, after in pairwise(names) if before in plan.sequence)}
    for name, _, by in plan.context.attention:
        if name not in split:
            raise PlanError(
                f"the plan runs attention of {name!r} on parts of the tokens (by {by}); neither its input nor its "
                "output is split along tokens"
            )
    for name in plan.context.products:
        if name not in parameters:
            raise PlanError(
                f"the plan multiplies {name!r} with parts of the tokens, which is no parameter of the model"
            )
        if parameters[name].dim() != 2 or name in dict(plan.shards):
            raise PlanError(
                f"the plan multiplies {name!r} with parts of the tokens; that takes a whole matrix, and it is shared "
                f"out or has {parameters[name].dim()} axes"
            )
