"""Copies of weights that layers on several stages share, and weights that stages of the same ranks have in common.

::

    unsplit   embedding.tokens.weight is head.weight         one Parameter
    stage 0   embedding.tokens.weight ─╮
    stage 2   head.weight ─────────────┴─ gradients summed   equal copies, which equal updates keep equal

If stages 0 and 2 are on the same ranks, each has one Parameter for both. It is stage 0's: both stages add to its
gradient, and stage 0 sums and updates it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from pipeplan.core.errors import PlanError
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Action, Schedule
from pipeplan.core.shared_weights import keepers, merge_overlapping, stages_holding
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.parameters import shared_parameters
from pipeplan_executor.stages.stage_module import StageModule


@dataclass(frozen=True)
class Copies:
    """Parameters of which the same stages have copies.

    Attributes
    ----------
    stages : tuple of int
    names : tuple of tuple of str
        For each of these stages the parameters' names in the unsplit model, in one order for all stages.
    """

    stages: tuple[int, ...]
    names: tuple[tuple[str, ...], ...]

    def on(self, stage: int) -> tuple[str, ...]:
        """Return their names on a stage; empty if it has no copies."""
        return self.names[self.stages.index(stage)] if stage in self.stages else ()


def find_copies(plan: Plan, sequence: LayerSequence, module: nn.Module) -> tuple[Copies, ...]:
    """Return the copies whose gradients are summed between stages, in the same order on every rank.

    Raises
    ------
    PlanError
        If the plan sums gradients between other stages, or sums or updates what stages of a rank have in common ahead
        of one of them.
    """
    spans = [stage.layers for stage in plan.stages]
    found: dict[tuple[int, ...], list[dict[int, str]]] = {}
    for shared in shared_parameters(module, sequence.parameters):
        layers = [sequence.names[number] for number, _ in shared]
        if not module.get_parameter(shared[0][1]).requires_grad:
            continue
        holders = stages_holding(layers, spans)
        stages = keepers(holders, plan.schedule.homes)
        for stage in stages:
            _check_lists(plan.schedule, stage, holders)
        if len(stages) > 1:
            names = [full for _, full in shared]
            named = {s: next(n for n, layer in zip(names, layers, strict=True) if layer in spans[s]) for s in stages}
            found.setdefault(stages, []).append(named)
    wanted = merge_overlapping(found)
    if plan.pipeline.tied != wanted:
        raise PlanError(
            f"the plan sums gradients of shared weights between stages {plan.pipeline.tied or 'none'}, and the model's "
            f"shared weights lie on {wanted or 'one stage each'}; profile this model and solve again"
        )
    return tuple(
        Copies(stages, tuple(tuple(named[s] for named in rows) for s in stages)) for stages, rows in found.items()
    )


def _check_lists(schedule: Schedule, keeper: int, holders: Sequence[int]) -> None:
    """Refuse lists in which a stage ends its step ahead of others that use its weights on its ranks."""
    for rank in schedule.homes[keeper]:
        end: Action | None = None
        for action in schedule.orders[rank]:
            if not action.kind.per_micro_batch:
                end = end or (action if action.stage == keeper else None)
            elif end is not None and action.stage in holders:
                raise PlanError(
                    f"{end} stands ahead of {action} in the list of rank {rank}, and stage {action.stage} uses weights "
                    f"of stage {keeper} there; move it behind"
                )


def lent_parameters(
    known: Mapping[str, Tensor], names: Iterable[str], others: Iterable[StageModule]
) -> dict[str, nn.Parameter]:
    """Return the parameters among these names of the unsplit model that other stages have, under any name."""
    there = {id(known[name]): own for other in others for name, own in other.named_parameters(remove_duplicate=False)}
    return {name: there[id(known[name])] for name in names if id(known[name]) in there}
