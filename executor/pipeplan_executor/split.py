"""Cuts a chain of modules at a plan's boundaries and checks that plan and model belong together.

::

    model   features.0  features.1  classifier          one nn.Module
    plan    ╰─── stage 0 ───────╯   ╰ stage 1 ╯         names from the plan
    rank    StageModule             StageModule         parameters keep the unsplit names

This file is the seam for other front ends: whatever gives one module per stage, the boundary tensors and the unsplit
parameter names can be run.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeplan.errors import PlanError
from pipeplan.model import Layer, Model
from pipeplan.plan import Plan
from pipeplan.profile.ties import bytes_of, find_ties, held_by, own_parameters
from pipeplan.workload import Workload, load_workload
from pipeplan_executor.materialise import initialise, read_weights
from pipeplan_executor.shapes import Flow, trace
from pipeplan_executor.ties import Copies, find_copies, owners, shared_names, tie

Source = Workload | str | Callable[[], Workload]
"""A workload, ``'module:function'``, or a function that returns a workload."""


def build(source: Source) -> Workload:
    """The workload, its module on the meta device unless the source is a workload that has its module already."""
    if isinstance(source, Workload):
        return source
    with torch.device("meta"):
        return load_workload(source) if isinstance(source, str) else source()


def on_meta(module: nn.Module) -> nn.Module:
    """A copy without values; the original's weights are not copied even for a moment."""
    stand_ins: dict[int, object] = {}
    for parameter in module.parameters():
        stand_ins[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in module.buffers():
        stand_ins[id(buffer)] = buffer.detach().to("meta")
    return copy.deepcopy(module, stand_ins)


def without_inplace(module: nn.Module) -> nn.Module:
    """Switch ``inplace`` off in every submodule: a stage must not write into a tensor that it received."""
    for part in module.modules():
        if getattr(part, "inplace", False) is True:
            part.inplace = False  # type: ignore[assignment]
    return module


@dataclass(frozen=True)
class Boundary:
    """What enters and leaves a stage, for one micro-batch, on the meta device."""

    inputs: Tensor
    outputs: Tensor


@dataclass(frozen=True)
class Fitted:
    """A plan and the model it belongs to, checked against each other.

    Attributes
    ----------
    workload : Workload
    blank : torch.nn.Module
        The model on the meta device.
    boundaries : tuple of Boundary
        One a stage.
    copies : tuple of Copies
        Of weights that stages share.
    """

    plan: Plan
    workload: Workload
    blank: nn.Module
    boundaries: tuple[Boundary, ...]
    copies: tuple[Copies, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All layers, in order."""
        return tuple(name for stage in self.plan.stages for name in stage.layers)


def fit(plan: Plan, source: Source, dtype: torch.dtype | None = None) -> Fitted:
    """Check that the plan was made for the model; find what passes between the stages.

    Raises
    ------
    PlanError
        If layers are missing, divided, in another order or of other sizes, if the model is no chain, or if a stage
        begins with something that cannot stand there.
    """
    divided = [name for stage in plan.stages for name, _ in stage.shares]
    if divided:
        raise PlanError(
            f"the plan divides {', '.join(dict.fromkeys(divided))} between neighbours, which takes devices that send a "
            "tensor while they make it; processes here send complete ones. Solve again without --intra-layer"
        )
    workload = build(source)
    blank = without_inplace(on_meta(workload.module))
    names = [name for stage in plan.stages for name in stage.layers]
    _check_names(blank, names)
    described = describe(plan.model, blank, names)
    if described.fingerprint != plan.fingerprint:
        raise PlanError(
            f"the plan was made for another {plan.model} (fingerprint {plan.fingerprint}, this model's is "
            f"{described.fingerprint}): the layers' names agree, their parameters or edges do not; profile this model "
            "and solve again"
        )
    if dtype is not None:
        blank.to(dtype)
    inputs, _ = draw(workload, plan.micro_batch, seed=0, dtype=dtype)
    flow = trace(blank, names, inputs)
    return Fitted(plan, workload, blank, tuple(_boundaries(plan, flow)), find_copies(plan, blank))


def describe(name: str, module: nn.Module, names: Sequence[str]) -> Model:
    """The model as a planner sees it, without costs."""
    held = held_by(module, names)
    return Model(
        name,
        tuple(
            Layer(layer, bytes_of(own), (names[i - 1],) if i else ())
            for i, (layer, own) in enumerate(zip(names, own_parameters(module, held), strict=True))
        ),
        ties=find_ties(module, names, held),
    )


def draw(
    workload: Workload, samples: int, seed: int, dtype: torch.dtype | None = None, step: int = 0
) -> tuple[Tensor, Tensor]:
    """A batch; the same for the same seed and step in every process. Floating-point parts are converted."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    with torch.device("cpu"):
        inputs, targets = workload.draw(samples, generator)
    return converted(inputs, dtype), converted(targets, dtype)


def converted(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The tensor in another floating-point format; integers stay."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _check_names(module: nn.Module, names: list[str]) -> None:
    known = dict(module.named_modules())
    absent = [name for name in names if name not in known]
    if absent:
        raise PlanError(
            f"the plan does not belong to this {type(module).__name__}: it has no layer {', '.join(absent[:3])}"
            f"{' …' if len(absent) > 3 else ''} ({len(absent)} of {len(names)} are missing); profile this model and "
            "solve again"
        )
    owner: dict[int, str] = {}
    for name in names:
        owner.update({id(parameter): name for parameter in known[name].parameters()})
        for buffer in known[name].buffers():
            if owner.setdefault(id(buffer), name) != name:
                raise PlanError(
                    f"layers {owner[id(buffer)]} and {name} share a buffer, and stages have buffers of their own; give "
                    "each layer one, or put both layers into one module"
                )
    for full, tensor in (*module.named_parameters(), *module.named_buffers()):
        if id(tensor) not in owner:
            raise PlanError(f"{full} belongs to none of the plan's layers; profile this model and solve again")


def _boundaries(plan: Plan, flow: Flow) -> Iterator[Boundary]:
    given = flow.inputs
    end = 0
    for number, stage in enumerate(plan.stages):
        end += len(stage.layers)
        yield Boundary(given, flow.outputs[end - 1])
        given = flow.outputs[end - 1]
        if end < len(flow.outputs) and flow.changed[end - 1]:
            raise PlanError(
                f"stage {number + 1} (from layer {plan.stages[number + 1].layers[0]} on) writes into its input in "
                "place; use the out-of-place operation there (x.relu(), not x.relu_())"
            )


class StageModule(nn.Module):
    """The layers of one stage, run in order; parameters and buffers are called as in the unsplit model."""

    def __init__(self, layers: dict[str, nn.Module], recompute: Sequence[str] = ()) -> None:
        super().__init__()
        for name, layer in layers.items():
            *path, last = name.split(".")
            holder: nn.Module = self
            for part in path:
                if part not in holder._modules:
                    holder.add_module(part, nn.Module())
                holder = holder.get_submodule(part)
            holder.add_module(last, layer)
        self.row = tuple((layer, name in set(recompute)) for name, layer in layers.items())

    def forward(self, x: Tensor) -> Tensor:
        """Through all layers; those to recompute keep their input only."""
        for layer, again in self.row:
            x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        return x


def build_stage(
    fitted: Fitted,
    stage: int,
    *,
    seed: int = 0,
    weights: str | Path | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> StageModule:
    """One stage with its weights; no other layer of the model takes memory.

    The weights come from the ``weights`` file, or from the workload's own module where that has values, or from the
    seed (see `pipeplan_executor.materialise`).
    """
    part = fitted.plan.stages[stage]
    whole = materialised(fitted, part.layers, seed=seed, weights=weights, device=device, dtype=dtype)
    return StageModule({name: whole.get_submodule(name) for name in part.layers}, part.recompute)


def materialised(
    fitted: Fitted,
    only: Sequence[str],
    *,
    seed: int = 0,
    weights: str | Path | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """A copy of the model in which the layers ``only`` have values.

    Where one of them shares weights with an earlier layer, that layer draws its weights here too, for a moment.
    """
    whole = copy.deepcopy(fitted.blank)
    shared = shared_names(whole, fitted.names)
    own = fitted.workload.module
    if weights is not None:
        read_weights(whole, only, weights, device, dtype)
    elif any(tensor.is_meta for tensor in (*own.parameters(), *own.buffers())):
        drawn = (*owners(whole, fitted.names, only), *only)
        initialise(whole, fitted.names, seed, device, dtype, drawn)
        tie(whole, shared, drawn)
        for name in drawn[: len(drawn) - len(only)]:
            whole.get_submodule(name).to_empty(device="meta")
    else:
        for name in only:
            layer = whole.get_submodule(name)
            layer.to_empty(device=device)
            values = {
                **dict(own.get_submodule(name).named_parameters()),
                **dict(own.get_submodule(name).named_buffers()),
            }
            with torch.no_grad():
                for inner, tensor in (*layer.named_parameters(), *layer.named_buffers()):
                    tensor.copy_(values[inner])
    tie(whole, shared, only)
    return whole
