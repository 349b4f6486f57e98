"""Weights that several layers share, and what becomes of them when the layers lie on several stages.

::

    unsplit   embedding.tokens.weight is head.weight         one Parameter
    stage 0   embedding.tokens.weight ─╮
    stage 2   head.weight ─────────────┴─ gradients summed   equal copies, which equal updates keep equal
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from pipeplan.errors import PlanError
from pipeplan.plan import Plan
from pipeplan.profile.ties import held_by, shared_parameters
from pipeplan.tied import holders, joined


@dataclass(frozen=True)
class Copies:
    """Parameters of which the same several stages have copies.

    Attributes
    ----------
    stages : tuple of int
    names : tuple of tuple of str
        For each of these stages what the unsplit model calls the parameters there, in one order for all stages.
    """

    stages: tuple[int, ...]
    names: tuple[tuple[str, ...], ...]

    def on(self, stage: int) -> tuple[str, ...]:
        """Their names on a stage; none if it has no copies."""
        return self.names[self.stages.index(stage)] if stage in self.stages else ()


def find_copies(plan: Plan, module: nn.Module) -> tuple[Copies, ...]:
    """What has to be summed between stages, in an order that is the same on every rank.

    Raises
    ------
    PlanError
        If the plan sums between other stages.
    """
    layers = [name for stage in plan.stages for name in stage.layers]
    spans = [stage.layers for stage in plan.stages]
    found: dict[tuple[int, ...], list[dict[int, str]]] = {}
    for row in shared_names(module, layers):
        layer, inner = row[0]
        stages = holders([name for name, _ in row], spans)
        if len(stages) > 1 and module.get_submodule(layer).get_parameter(inner).requires_grad:
            named = {s: next(f"{a}.{b}" for a, b in row if a in spans[s]) for s in stages}
            found.setdefault(stages, []).append(named)
    wanted = joined(found)
    if plan.pipeline.tied != wanted:
        raise PlanError(
            f"the plan sums gradients of shared weights between stages {plan.pipeline.tied or 'none'}, and the model's "
            f"shared weights lie on {wanted or 'one stage each'}; profile this model and solve again"
        )
    return tuple(
        Copies(stages, tuple(tuple(named[s] for named in rows) for s in stages)) for stages, rows in found.items()
    )


def shared_names(module: nn.Module, layers: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """For each shared parameter the layers that hold it, in order, each with the parameter's name inside it."""
    rows = shared_parameters(module, held_by(module, layers))
    return tuple(tuple((layers[n], name.removeprefix(f"{layers[n]}.")) for n, name in row) for row in rows)


def owners(module: nn.Module, layers: Sequence[str], only: Sequence[str]) -> tuple[str, ...]:
    """Layers outside ``only`` whose weights layers in ``only`` share: those that say what values these have."""
    wanted = set(only)
    rows = [[layer for layer, _ in row] for row in shared_names(module, layers)]
    found = {row[0] for row in rows if row[0] not in wanted and wanted.intersection(row)}
    return tuple(layer for layer in layers if layer in found)


def tie(module: nn.Module, rows: Sequence[Sequence[tuple[str, str]]], layers: Sequence[str]) -> None:
    """Make those ``layers`` share again that did by ``rows``, from `shared_names`: the first one's values count.

    Giving layers values one by one leaves each with parameters of its own.
    """
    there = set(layers)
    for row in rows:
        present = [(layer, name) for layer, name in row if layer in there]
        for layer, name in present[1:]:
            first, inner = present[0]
            *path, last = name.split(".")
            holder = module.get_submodule(".".join([layer, *path]))
            holder.register_parameter(last, module.get_submodule(first).get_parameter(inner))
