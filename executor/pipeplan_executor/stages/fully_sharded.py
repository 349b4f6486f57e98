"""Levels 2 and 3 of ZeRO: the parameters of each stage in shards of its replicas, by torch's `fully_shard`.

::

    level 3   gather ─ F of a layer ─ free      gather ─ B of a layer ─ free, sum     of every layer and micro-batch
    level 2   gather ─ F of a layer                      B of a layer ─ sum           gathered once per step, freed by R

A layer with parameters is a unit: its weights are gathered together, and its gradients summed together, each share at
its owner. Layers that share parameters are one unit, which is gathered from the first one's forward to the last one's,
and from the last one's backward to the first one's. A replica's share of a parameter is a range of its rows
(`torch.chunk` along the first axis), so some replicas may have no share of a small one. Frozen weights are gathered
with the others at level 3, where they have no sums, and stay whole at level 2. All passes are collectives: replicas
must run the same ones in one order. Stages are sharded independently of each other; one of a single replica is left
whole. In a tensor-parallel group each process shares out what it has, its shards of some parameters and the
whole of others, with its counterparts in the other replicas::

                  replica 0   replica 1                  one matrix of a team of two, split along its columns
    TP rank 0     a0          a1                         a0 and a1: rows of the first half of the columns
    TP rank 1     b0          b1                         gathered: a0 and a1 on both processes of TP rank 0
"""

import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan.core.errors import PlanError
from pipeplan.core.job import SHARDED, WHOLLY_SHARDED
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.shared_weights import merge_overlapping
from pipeplan.core.validate.deadlock import deadlocks
from pipeplan.core.wording import some
from pipeplan.frontend.capture.flow import Flow
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.parameters import Held, named_tensors, shared_parameters
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.stages.messages import gather_from_owners, sum_at_owners

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

JOINED = frozenset((Kind.FORWARD, Kind.BACKWARD, Kind.REDUCE, Kind.UPDATE))
"""Actions of stages whose parameters are sharded."""


def sharded_stages(plan: Plan) -> tuple[int, ...]:
    """Return the stages with sharded gradients or parameters: at levels 2 and 3 those with several replicas."""
    return tuple(s for s, ranks in enumerate(plan.schedule.homes) if plan.zero >= SHARDED and len(ranks) > 1)


def check_sharded_plan(plan: Plan) -> None:
    """Refuse a plan whose gradients or parameters cannot be sharded.

    Raises
    ------
    PlanError
        With the level of ZeRO that can be executed.
    """
    stages = sharded_stages(plan)
    if not stages:
        return
    for rank, order in enumerate(plan.schedule.orders):
        own = sorted({action.stage for action in order})
        if len(own) > 1:
            raise _refused(
                plan,
                f"a rank has one stage, and rank {rank} has stages {' and '.join(map(str, own))}: at one of them it "
                "could wait for replicas that wait for it at another",
            )
    for stage in stages:
        _check_replicas(plan, stage)
    _check_common_passes(plan)


def _refused(plan: Plan, reason: str) -> PlanError:
    """Return an error with the plan's level of ZeRO, and the level that can be executed."""
    return PlanError(f"at level {plan.zero} of ZeRO {reason}; solve again with --zero 1")


def _check_replicas(plan: Plan, stage: int) -> None:
    """Refuse a stage whose replicas cannot run every pass together."""
    ranks = plan.schedule.homes[stage]
    kinds = [[action.kind for action in plan.schedule.orders[rank]] for rank in ranks]
    split = sorted({kind.name.lower() for row in kinds for kind in row if kind not in JOINED})
    if split:
        raise _refused(plan, f"stage {stage} cannot run {some(split)}: gradients are summed behind joined backwards")
    rule = (
        "all replicas of a stage must run as many micro-batches in one order, since they gather weights and sum "
        f"gradients in every pass; those of stage {stage} run"
    )
    counts = [row.count(Kind.FORWARD) for row in kinds]
    if len(set(counts)) > 1:
        found = ", ".join(map(str, counts))
        raise _refused(plan, f"{rule} {found}. Choose a number of micro-batches that {len(ranks)} divides")
    if any(row != kinds[0] for row in kinds):
        raise _refused(plan, f"{rule} forwards and backwards in different orders")


def _check_common_passes(plan: Plan) -> None:
    """Refuse a schedule that deadlocks if replicas begin every pass together.

    ::

        stage 0   rank 0   F0 B0 F1 B1      F1 is made when B0 has arrived
        stage 1   rank 1   F0    B0
                  rank 2   F1    B1         F0 begins when F1 has arrived

    A tensor on its way from one micro-batch of a pass to another one crosses the stage in between, in another pass. So
    replicas deadlock if and only if one device does that runs their micro-batches one after the other.
    """
    schedule = plan.schedule
    rows = ([schedule.orders[rank] for rank in ranks] for ranks in schedule.homes)
    orders = tuple(tuple(dict.fromkeys(chain.from_iterable(zip(*row, strict=True)))) for row in rows)
    if any(deadlocks(Schedule(schedule.family, orders), plan.pipeline.tied)):
        replicas = ", ".join(str(len(ranks)) for ranks in schedule.homes)
        raise _refused(
            plan,
            f"replicas begin every pass together, and then {schedule.family} on stages of {replicas} replicas "
            "deadlocks. Hold more micro-batches in flight ahead of wider stages",
        )


def check_sharded_layers(plan: Plan, model: nn.Module, sequence: LayerSequence, flow: Flow) -> None:
    """Refuse parameters of the unsplit model that cannot be sharded.

    Raises
    ------
    PlanError
        With the names of layers and parameters, and the level of ZeRO that can be executed.
    """
    stages, edges = sharded_stages(plan), plan.boundaries
    for stage in stages:
        _check_parameters(plan, model, sequence, flow, range(edges[stage], edges[stage + 1]))
    for shared in shared_parameters(model, sequence.parameters):
        homes = sorted({bisect_right(edges, number) - 1 for number, _ in shared})
        if len(homes) > 1 and not set(stages).isdisjoint(homes):
            raise _refused(
                plan,
                f"a stage with replicas shares no weights with others, and {shared[0][1]} is on stages "
                f"{' and '.join(map(str, homes))}. Keep its layers on one stage (job: together)",
            )


def _check_parameters(plan: Plan, model: nn.Module, sequence: LayerSequence, flow: Flow, span: range) -> None:
    """Refuse parameters of a stage's layers that cannot be sharded."""
    known, held = dict(named_tensors(model)), sequence.parameters[span.start : span.stop]
    for number, names in zip(span, held, strict=True):
        for own, full in names.items():
            parameter, layer = known[full], sequence.names[number]
            if not isinstance(parameter, nn.Parameter) or (plan.zero == SHARDED and not parameter.requires_grad):
                continue
            if not parameter.dim():
                raise _refused(plan, f"a parameter needs an axis, and {full} is a single number")
            if not parameter.is_contiguous():
                raise _refused(plan, f"a parameter's rows must be contiguous, and those of {full} are not")
            if own in flow.changed[number]:
                raise _refused(plan, f"a forward cannot change a parameter, and that of {layer} changes {full}")
    for unit in sharding_units(model, held):
        every = [known[full] for number in unit for full in held[number].values()]
        formats = {p.dtype for p in every if isinstance(p, nn.Parameter) and p.requires_grad}
        if len(formats) > 1:
            layers = some([sequence.names[span[number]] for number in unit])
            told = " and ".join(sorted(str(each).removeprefix("torch.") for each in formats))
            raise _refused(plan, f"parameters of a layer have one number format, and those of {layers} {told}")


def sharding_units(model: nn.Module, held: Held) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the layers of each unit: layers that share parameters are one.

    Parameters
    ----------
    model : torch.nn.Module
        The unsplit model.
    held : sequence of mapping
        Names of each layer's parameters and buffers: in the layer, and in the model.
    """
    together = ([number for number, _ in shared] for shared in shared_parameters(model, held))
    return merge_overlapping([*together, *([number] for number in range(len(held)))])


class _Collective:
    """A collective of gloo for `fully_shard`: allocation of its tensors."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty tensor."""
        return torch.empty(*size, dtype=dtype, device=device)


class Gather(_Collective):
    """A gather by messages: gloo's own copies everything twice."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        """Fill the output, of which the input is this replica's part."""
        del input_tensor, async_op
        gather_from_owners(output_tensor.view(-1).chunk(group.size()), group)


class Sum(_Collective):
    """A sum of each share at its owner by messages: gloo's own moves twice as many bytes."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        """Fill the output with the sum of this replica's shares of all inputs."""
        del op, async_op
        parts, own = [*input_tensor.view(-1).chunk(group.size())], output_tensor.view(-1)
        parts[group.rank()] = own.copy_(parts[group.rank()])
        sum_at_owners(parts, group)


class FullySharded:
    """Sharding of a stage's layers over its replicas.

    Parameters
    ----------
    level : {2, 3}
        Level of ZeRO.
    group : ProcessGroup
        The stage's replicas.
    """

    def __init__(self, level: int, group: dist.ProcessGroup, device: torch.device) -> None:
        from torch.distributed.device_mesh import DeviceMesh  # takes a second to load

        self._frees, self._group = level == WHOLLY_SHARDED, group
        self._mesh = DeviceMesh.from_group(group, device.type)

    def shard(self, layers: Sequence[nn.Module], returns: bool = True) -> None:
        """Keep only this replica's shard of the parameters of a unit of layers, and gather them in its passes.

        ``returns``: the unit has a backward.
        """
        from torch.distributed.fsdp import fully_shard

        left = {parameter for layer in layers for parameter in layer.parameters() if self._stays(parameter)}
        own = [layer for layer in layers if not left.issuperset(layer.parameters())]
        if own:
            fully_shard(own, mesh=self._mesh, reshard_after_forward=self._frees, ignored_params=left)
            own[0].set_gradient_divide_factor(1.0)  # losses are weighted: gradients are sums
            own[0].set_force_sum_reduction_for_comms(True)
            own[0].set_unshard_in_backward(returns)
            if dist.get_backend(self._group) == "gloo":
                own[0].set_custom_all_gather(Gather())
                own[0].set_custom_reduce_scatter(Sum())

    def finish(self, stage: nn.Module) -> None:
        """Let a stage's sharded layers work together."""
        from torch.distributed.fsdp import fully_shard

        left = {parameter for parameter in stage.parameters() if self._stays(parameter)}
        whole = fully_shard(stage, mesh=self._mesh, ignored_params=left)
        whole.set_reshard_after_backward(self._frees)
        whole.set_reduce_scatter_unused_params(True)  # replicas may use different ones

    def _stays(self, parameter: nn.Parameter) -> bool:
        """Return whether replicas keep a parameter whole: at level 2 those that are not trained."""
        return not self._frees and not parameter.requires_grad

    @staticmethod
    @contextmanager
    def passing() -> Iterator[None]:
        """Context of a step, without torch's warning of layers that return views, since nothing writes into these.

        Converted weights are not shared between micro-batches (`pipeplan_executor.stages.precision`): they would stay
        whole, and their gradients come too late to be summed behind the layer's backward.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
            yield

    def free(self, stage: nn.Module) -> None:
        """Free the weights of a stage that are still gathered."""
        for unit in self._units(stage):
            unit.reshard()

    def shards(
        self, named: Iterable[tuple[str, nn.Parameter]], among: Mapping[str, ParameterShard]
    ) -> dict[str, ParameterShard]:
        """Return this replica's shard of each parameter, or of this process's shard in ``among``, by name."""
        parts, number = dist.get_world_size(self._group), dist.get_rank(self._group)
        return {
            name: ParameterShard(tuple(each.shape), 0, parts, number, among.get(name))
            for name, each in named
            if not self._stays(each)
        }

    @staticmethod
    def _units(stage: nn.Module) -> "list[FSDPModule]":
        from torch.distributed.fsdp import FSDPModule

        return [part for part in stage.modules() if isinstance(part, FSDPModule)]


def local(tensor: Tensor) -> Tensor:
    """Return this replica's numbers of a sharded tensor, without a graph; any other tensor itself, detached."""
    own: Tensor = tensor.detach()
    return own.to_local() if hasattr(own, "to_local") else own
