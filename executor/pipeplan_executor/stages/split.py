"""Split of a model into stages at a plan's boundaries, after checking that plan and model belong together.

::

    model   features.0  features.1  classifier          one nn.Module, as layers in order (pipeplan.frontend.capture)
    plan    ╰─── stage 0 ───────╯   ╰ stage 1 ╯         names from the plan
    rank    StageModule             StageModule         parameters keep the unsplit names
"""

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.model import Layer, Model
from pipeplan.core.plan import Plan
from pipeplan.core.strategies import WHOLE, Placements
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.flow import Flow, Tensors, trace
from pipeplan.frontend.capture.front_ends import capture_layers, graph_of
from pipeplan.frontend.capture.graph.gradients import LostInCaptureError
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.capture.private import on_meta
from pipeplan.frontend.parameters import Held, bytes_of, find_ties, named_tensors, own_parameters
from pipeplan.frontend.profile.passes import autocast
from pipeplan.frontend.runnable import changing_buffers, check_plain
from pipeplan.frontend.workload import Workload
from pipeplan_executor.sharding.mesh.ends import check_mesh, mesh_part
from pipeplan_executor.sharding.mesh.sliced_layer import SlicedFlow
from pipeplan_executor.sharding.sequence import AXIS, stream_of
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.stages.constructed import Constructed
from pipeplan_executor.stages.fully_sharded import (
    FullySharded,
    check_sharded_layers,
    check_sharded_plan,
    sharding_units,
)
from pipeplan_executor.stages.materialise import put, values_of
from pipeplan_executor.stages.precision import formats
from pipeplan_executor.stages.slices import sliced_flow
from pipeplan_executor.stages.source import Source, build, constructed_by, converted, draw
from pipeplan_executor.stages.stage import Boundary
from pipeplan_executor.stages.stage_module import SplitLayers, StageModule, copy_inputs, treatment_of
from pipeplan_executor.stages.ties import Copies, find_copies, lent_parameters


@dataclass(frozen=True)
class Fitted:
    """A plan and its model, checked against each other.

    Attributes
    ----------
    workload : Workload
    blank : torch.nn.Module
        The model on the meta device, in the number format of the run.
    sequence : LayerSequence
        Its layers, also on the meta device.
    flow : Flow
        The tensors between them.
    targets : Batch
        Of a micro-batch, on the meta device.
    copies : tuple of Copies
        Copies of weights that stages share.
    constructed : Constructed, optional
        Values of tensors that only the model's constructors give; None for a module that exists already.
    kept : mapping of str to int or GroupedAxis
        Parameters of which processes keep parts along an axis, and which no operator splits like that.
    sliced : SlicedFlow, optional
        Where the tokens are, if the plan cuts sequences into slices.
    """

    plan: Plan
    workload: Workload
    blank: nn.Module
    sequence: LayerSequence
    flow: Flow
    targets: Batch
    copies: tuple[Copies, ...]
    constructed: Constructed | None = None
    kept: Mapping[str, ShardAxis] = field(default_factory=dict)
    sliced: SlicedFlow | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all layers, in order."""
        return self.sequence.names

    @property
    def repeated(self) -> tuple[str, ...]:
        """Layers of which nothing is known but that several processes run them as a whole: all compute the same."""
        return tuple(name for name, strategies in self.plan.strategies if not strategies.operators)

    def span(self, stage: int) -> range:
        """Return the numbers of a stage's layers."""
        edges = self.plan.boundaries
        return range(edges[stage], edges[stage + 1])

    def named_parameters(self, stage: int) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters of a stage under all their names in the unsplit model."""
        known = dict(named_tensors(self.blank))
        own = {id(known[full]) for number in self.span(stage) for full in self.sequence.parameters[number].values()}
        yield from ((name, p) for name, p in self.blank.named_parameters(remove_duplicate=False) if id(p) in own)

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Inputs and outputs of every stage."""
        spans = enumerate(map(self.span, range(len(self.plan.stages))))
        parts = range(len(self.plan.slices))
        return tuple(
            Boundary(
                self._passed(span.start, s),
                self._passed(span.stop, s),
                tuple(Boundary(self._passed(span.start, s, k), self._passed(span.stop, s, k)) for k in parts),
            )
            for s, span in spans
        )

    def joined(self, parts: Sequence[Tensors]) -> Tensors:
        """Return the outputs of the last stage for all slices of a micro-batch."""
        if self.sliced is None:
            return parts[0]
        rows = zip(*parts, strict=True)
        axes = self.sliced.axes[-1]
        return tuple(row[0] if axis is None else torch.cat(row, axis) for row, axis in zip(rows, axes, strict=True))

    @property
    def tokens(self) -> tuple[int | None, ...]:
        """For each stage the tokens of its whole output, where processes have parts of it."""
        ends = [self.span(stage).stop for stage in range(len(self.plan.stages))]
        return tuple(
            self.flow.tensors[end][place].shape[AXIS] if (place := self._stream(end)) is not None else None
            for end in ends
        )

    def _passed(self, number: int, stage: int, part: int | None = None) -> Tensors:
        """Return what one process of a stage has of the tensors before the layer of this number, or of a slice."""
        split, placements, sizes = self._stream(number), self._placements(number), self.plan.stages[stage].mesh
        passed = self.flow.tensors[number] if part is None else self._slice(number, part)
        return tuple(mesh_part(t, placements, sizes) if n == split else t for n, t in enumerate(passed))

    def _slice(self, number: int, part: int) -> Tensors:
        """Return the tensors before the layer of this number, of one slice."""
        assert self.sliced is not None
        pairs, count = zip(self.flow.tensors[number], self.sliced.axes[number], strict=True), self.plan.slices[part]
        return tuple(t if axis is None else _shortened(t, axis, count) for t, axis in pairs)

    def _stream(self, number: int) -> int | None:
        """Return which of the tensors before the layer of this number processes have parts of."""
        is_split = any(entry != WHOLE for entry in self._placements(number))
        return stream_of(self.flow.tensors[number]) if is_split else None

    def _placements(self, number: int) -> Placements:
        """Return the placements of the tensors before the layer of this number; empty is whole."""
        strategies = dict(self.plan.strategies)
        before, after = (strategies.get(name) for name in (["", *self.names, ""][number : number + 2]))
        return before.output if before is not None else after.input if after is not None else ()

    def restored(self, outputs: Tensors) -> Any:
        """Convert the outputs of the last stage to the output of the unsplit model."""
        return self.sequence.restore(outputs[0] if self.flow.bare else outputs)


def _shortened(tensor: Tensor, axis: int, length: int) -> Tensor:
    """Return a tensor on the meta device of another length along an axis."""
    shape = (*tensor.shape[:axis], length, *tensor.shape[axis + 1 :])
    return torch.empty(shape, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad)


def fit(
    plan: Plan,
    source: Source,
    dtype: torch.dtype | None = None,
    precision: str | None = None,
    device: torch.device | str = "cpu",
    both_modes: bool = True,
) -> Fitted:
    """Check that the plan was made for the model, and trace the tensors between its layers.

    ``device``: kind of device for which formats are traced.

    ``both_modes``: see `pipeplan.frontend.capture.capture_layers`.

    Raises
    ------
    PlanError
        If layers are missing, divided, in another order or of other sizes, if stages share a buffer that changes, if
        parameters cannot be sharded at the plan's level of ZeRO, or if outputs cannot be split as planned.
    """
    divided = [name for stage in plan.stages for name, _ in stage.shares]
    if divided:
        raise PlanError(
            f"the plan divides {', '.join(dict.fromkeys(divided))} between neighbours, which takes devices that send a "
            "tensor while they make it; processes here send complete ones. Solve again without --intra-layer"
        )
    check_sharded_plan(plan)
    workload = build(source)
    check_plain(workload.module)
    original = on_meta(workload.module)
    blank = original if dtype is None else on_meta(original).to(dtype)
    inputs, targets = draw(workload, plan.micro_batch, seed=0)
    inputs, targets = converted(inputs, dtype), converted(targets, dtype, torch.device("meta"))
    # the plan's layers in the model, and their sizes, by the fingerprint
    sequence = find_sequence(plan, blank, inputs, both_modes)
    described = describe(plan.model, original, sequence.names, sequence.parameters)
    if described.fingerprint != plan.fingerprint:
        raise PlanError(
            f"the plan was made for another {plan.model} (fingerprint {plan.fingerprint}, this model's is "
            f"{described.fingerprint}): the layers' names agree, their parameters or edges do not; profile this model "
            "and solve again"
        )
    # the tensors between them; under autocast some have other formats
    flow = trace(sequence, inputs)
    if precision is not None:
        flow = replace(flow, tensors=formats(sequence, inputs, precision, torch.device(device)))
    copies = find_copies(plan, sequence, blank)
    fitted = Fitted(plan, workload, blank, sequence, flow, targets, copies, constructed_by(source))
    _check_buffers(fitted)
    check_sharded_layers(plan, blank, sequence, flow)
    check_mesh(plan, sequence.names, flow.tensors)

    def loss(outputs: Tensors, targets: Batch) -> torch.Tensor:
        found: torch.Tensor = workload.loss(fitted.restored(outputs), targets)
        return found

    given = plan, blank, sequence, flow.tensors, loss, fitted.targets
    return replace(fitted, sliced=sliced_flow(*given, partial(autocast, precision, torch.device(device))))


def find_sequence(plan: Plan, blank: nn.Module, inputs: Batch, both_modes: bool = True) -> LayerSequence:
    """Return the model as the sequence of layers that the plan lists, by the first front end that finds it.

    Raises
    ------
    PlanError
        If no front end finds it.
    LostInCaptureError
        If its graph would not hold all that it does.
    """
    names = tuple(name for stage in plan.stages for name in stage.layers)
    reasons: list[str] = []
    nearest: tuple[str, ...] = ()
    graph = cache(partial(graph_of, blank, inputs, both_modes=both_modes))
    front_ends: tuple[Callable[[], LayerSequence], ...] = (
        lambda: capture_layers(blank, inputs, group=names, front_end="chain"),
        lambda: graph().cut_at(graph().module_cuts()),
        lambda: graph().cut_at(graph().module_cuts(names)),
    )
    for number, front_end in enumerate(front_ends):
        try:
            sequence = front_end()
        except LostInCaptureError:
            raise
        except Exception as error:  # a model that is no chain may fail in any way when it is called as one
            if number and not isinstance(error, InputError):
                raise
            reasons.append(str(error))
            continue
        if sequence.names == names:
            return sequence
        nearest = nearest or sequence.names
    kind = type(blank).__name__
    if not nearest:  # the first reason is only that it is no chain
        raise PlanError(f"no plan of this {kind} can run, as its layers cannot be found without values: {reasons[-1]}")
    raise PlanError(
        f"the plan does not belong to this {kind}: {_difference(names, nearest)}; profile this model and solve again"
    )


def _difference(names: Sequence[str], found: Sequence[str]) -> str:
    absent = [name for name in names if name not in set(found)]
    extra = [name for name in found if name not in set(names)]
    if absent:
        more = " …" if len(absent) > 3 else ""
        return f"it has no layer {', '.join(absent[:3])}{more} ({len(absent)} of {len(names)} are missing)"
    if extra:
        return f"{extra[0]} belongs to none of the plan's layers"
    at = next(i for i, name in enumerate(names) if found[i] != name)
    return f"the plan has layer {names[at]} at place {at}, the model {found[at]}"


def describe(name: str, module: nn.Module, layers: Sequence[str], held: Held) -> Model:
    """Return the planner's `Model` of a module, without costs.

    Parameters
    ----------
    module : torch.nn.Module
        The unsplit model.
    layers : sequence of str
        Names of its layers.
    held : sequence of mapping
        Parameters and buffers of each layer, as names in the layer to names in the unsplit model.
    """
    return Model(
        name,
        tuple(
            Layer(layer, bytes_of(own), (layers[i - 1],) if i else (), frozen=bytes_of(frozen))
            for i, (layer, own, frozen) in enumerate(
                zip(layers, own_parameters(module, held), own_parameters(module, held, trained=False), strict=True)
            )
        ),
        ties=find_ties(module, layers, held),
    )


def _check_buffers(fitted: Fitted) -> None:
    """Refuse changing buffers that stages share: each stage has its own copy and would not see the other's writes."""
    edges = fitted.plan.boundaries
    for shared in changing_buffers(fitted.blank, fitted.sequence, fitted.flow):
        if len({bisect_right(edges, number) for number in shared.layers}) > 1:
            raise PlanError(f"{shared.told(fitted.names)} (job: together)")


def build_stage(
    fitted: Fitted,
    stage: int,
    *,
    seed: int = 0,
    weights: str | Path | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    shards: Mapping[str, ParameterShard] | None = None,
    sharded_layers: SplitLayers | None = None,
    fully: FullySharded | None = None,
    others: Sequence[StageModule] = (),
) -> StageModule:
    """Build one stage with its weights; no other layer of the model takes memory.

    The weights come from the ``weights`` file, or from the workload's own module if it has values, or from the seed
    (see `pipeplan_executor.stages.materialise`). Of the parameters in ``shards`` only the shard is kept;
    ``sharded_layers`` calls layers together with the other tensor-parallel ranks (see `pipeplan_executor.sharding`).
    ``fully`` shards all parameters over the replicas; then one unit of layers at a time is whole. What ``others``, the
    earlier stages of the rank, have of its parameters is taken from them.
    """
    span = fitted.span(stage)
    held = fitted.sequence.parameters[span.start : span.stop]
    names = list(dict.fromkeys(full for each in held for full in each.values()))
    layers = copy.deepcopy(fitted.sequence.layers[span.start : span.stop])
    fill = partial(
        values_of,
        fitted.blank,
        fitted.workload.module,
        seed=seed,
        weights=weights,
        device=device,
        dtype=dtype,
        shards=shards,
        constructed=fitted.constructed,
    )
    known = dict(named_tensors(fitted.blank))
    transient = set(names) - set(fitted.blank.state_dict())
    units = [tuple(range(len(layers)))] if fully is None else sharding_units(fitted.blank, held)
    apart = {full for full in names if fully is not None and isinstance(known[full], nn.Parameter)}
    lent = lent_parameters(known, names, others)
    values = lent | fill([full for full in names if full not in apart | lent.keys()])
    for unit in units:
        own = values | fill(list(dict.fromkeys(full for i in unit for full in held[i].values() if full in apart)))
        for i in unit:
            for local, full in held[i].items():
                put(layers[i], local, own[full], lasting=full not in transient)
            layers[i].to(device)
        if fully is not None:
            fully.shard([layers[i] for i in unit], any(_has_backward(fitted, span[i]) for i in unit))
    again = set(fitted.plan.stages[stage].recompute)
    treatments = {
        fitted.names[number]: treatment_of(fitted.flow, number, fitted.names[number] in again, number == span.start)
        for number in span
    }
    if fully is not None or sharded_layers is not None:  # inputs are views, into which autograd lets nothing write
        every = {n: (fitted.flow.overwritten if n == span.start else fitted.flow.writes)[n] for n in span}
        places = {n: tuple(place for place, is_written in enumerate(own) if is_written) for n, own in every.items()}
        for number, layer in zip(span, layers, strict=True) if fully is not None else ():
            copy_inputs(layer, places[number])  # in the layer's call
        copies = {fitted.names[n]: () if fully is not None else own for n, own in places.items()}
        treatments = {name: replace(how, copies=copies[name]) for name, how in treatments.items()}
    module = StageModule(
        dict(zip(treatments, layers, strict=True)), treatments, held, sharded_layers, others if lent else ()
    )
    if fully is not None:
        fully.finish(module)
    return module


def _has_backward(fitted: Fitted, number: int) -> bool:
    """Return whether anything is trained in a layer, or before it."""
    known = dict(named_tensors(fitted.blank))
    own = (known[full] for full in fitted.sequence.parameters[number].values())
    return any(tensor.requires_grad for tensor in (*own, *fitted.flow.tensors[number]))
