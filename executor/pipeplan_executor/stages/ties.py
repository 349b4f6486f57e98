"""Copies of weights that layers on several stages share.

::

    unsplit   embedding.tokens.weight is head.weight         one Parameter
    stage 0   embedding.tokens.weight ─╮
    stage 2   head.weight ─────────────┴─ gradients summed   equal copies, which equal updates keep equal
"""

from dataclasses import dataclass

from torch import nn

from pipeplan.core.errors import PlanError
from pipeplan.core.plan import Plan
from pipeplan.core.shared_weights import merge_overlapping, stages_holding
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.parameters import shared_parameters


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
        If the plan sums gradients between other stages.
    """
    spans = [stage.layers for stage in plan.stages]
    found: dict[tuple[int, ...], list[dict[int, str]]] = {}
    for shared in shared_parameters(module, sequence.parameters):
        layers = [sequence.names[number] for number, _ in shared]
        stages = stages_holding(layers, spans)
        if len(stages) > 1 and module.get_parameter(shared[0][1]).requires_grad:
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
