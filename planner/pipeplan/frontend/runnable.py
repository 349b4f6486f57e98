"""`check_plain`, `changing_buffers`, `refusals`: why a module cannot run in stages, for executor and profiler."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from pipeplan.core.errors import PlanError
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.flow import Flow, trace
from pipeplan.frontend.capture.graph.gradients import place_of
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.parameters import named_tensors


def check_plain(module: nn.Module) -> None:
    """Refuse wrappers, sparse gradients, hooks that would be lost, and modules without anything to train.

    Raises
    ------
    PlanError
        With the path of the wrapper, or the name of the parameter.
    """
    for path, part in module.named_modules():
        if isinstance(part, nn.parallel.DistributedDataParallel):
            raise PlanError(
                f"{path or 'the model'} is wrapped in DistributedDataParallel; give the bare module: the plan says "
                "which stages have replicas, and their gradients are summed where it says so"
            )
        if getattr(part, "sparse", False) is True and isinstance(part, nn.Embedding | nn.EmbeddingBag):
            raise PlanError(
                f"{path or 'the model'} makes sparse gradients, and stages add and sum dense ones: build it with "
                "sparse=False; what is trained stays the same"
            )
    for name, parameter in module.named_parameters():
        if type(parameter) is not nn.Parameter:
            raise PlanError(
                f"{name} is a {type(parameter).__name__}, which another library shards or fills later; give the "
                "module with plain parameters (no fully_shard, no lazy layers): the plan assigns parameters to ranks"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise PlanError("no parameter requires a gradient, so there is nothing to train; freeze some of them only")
    check_hooks(module)


def check_hooks(module: nn.Module) -> None:
    """Refuse hooks on gradients of parameters: a stage has parameters of its own, and adds gradients of micro-batches.

    Raises
    ------
    PlanError
        With the name of the parameter, and the hook's file and line.
    """
    for name, parameter in module.named_parameters():
        hooks = [*(parameter._backward_hooks or {}).values(), *(parameter._post_accumulate_grad_hooks or {}).values()]
        if hooks:
            raise PlanError(
                f"{name} has a hook on its gradient ({place_of(hooks[0])}), which would be lost: stages have "
                "parameters of their own. Clip with Pipeline(clip=), freeze with requires_grad_(False), or put a hook "
                "on the layer with register_full_backward_hook"
            )


@dataclass(frozen=True)
class ChangingBuffer:
    """A buffer that several layers hold, and one of them changes.

    Attributes
    ----------
    name : str
        In the unsplit model.
    layers : tuple of int
        Numbers of the layers that hold it.
    """

    name: str
    layers: tuple[int, ...]

    def told(self, names: Sequence[str]) -> str:
        """Return what is wrong with it where its layers are on several stages."""
        held = " and ".join(names[number] for number in self.layers)
        return (
            f"layers {held} share a buffer that changes ({self.name}), and stages have buffers of their own; give each "
            "layer one, or keep them on one stage"
        )


def changing_buffers(module: nn.Module, sequence: LayerSequence, flow: Flow) -> tuple[ChangingBuffer, ...]:
    """Return the changing buffers that several layers hold; each must stay on one stage.

    Parameters
    ----------
    module : torch.nn.Module
        The unsplit model, on any device.
    sequence, flow
        Its layers, and the trace of them.
    """
    known, found = dict(named_tensors(module)), dict[int, dict[int, str]]()
    changed = set[int]()
    for number, names in enumerate(sequence.parameters):
        for local, full in names.items():
            if not isinstance(known[full], nn.Parameter):
                found.setdefault(id(known[full]), {}).setdefault(number, full)
                changed.update({id(known[full])} if local in flow.changed[number] else ())
    return tuple(
        ChangingBuffer(next(iter(holders.values())), tuple(holders))
        for key, holders in found.items()
        if key in changed and len(holders) > 1
    )


def refusals(module: nn.Module, sequence: LayerSequence, inputs: Batch) -> tuple[str, ...]:
    """Return why ``pipeplan run`` would refuse plans of this module, a sentence each; empty if nothing is known.

    Nothing is computed. What depends on the plan, such as sharded parameters, is left to the executor.

    Parameters
    ----------
    module : torch.nn.Module
    sequence : LayerSequence
        Its layers.
    inputs : batch
        One micro-batch.
    """
    try:
        check_plain(module)
        flow = trace(sequence, inputs)
    except PlanError as error:
        return (f"pipeplan run refuses every plan of this model: {error}",)
    return tuple(
        f"pipeplan run refuses plans that separate some layers: {shared.told(sequence.names)} (job: together)"
        for shared in changing_buffers(module, sequence, flow)
    )
