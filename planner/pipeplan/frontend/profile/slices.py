"""`with_slices`: a profiled model with measured token slices, which the executor runs as in a pipeline.

::

    16 slices      ┃ 0 ┃ 1 ┃ … ┃ 15 ┃      measured: the first, and the last with the keys and values of all before it

What runs slices is found by an entry point of `GROUP`: this package has no such thing itself.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from pipeplan.core.errors import InputError
from pipeplan.core.model import LayerCost, Model
from pipeplan.core.operators import tokens_of
from pipeplan.core.profiles import SliceProfile
from pipeplan.core.slicing import check_divides
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.flow import trace
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.operators.find import find_operators
from pipeplan.frontend.profile.passes import Loss, autocast
from pipeplan.frontend.profile.request import Request
from pipeplan.frontend.profile.segments import MeasuredPass, measured_costs

GROUP = "pipeplan.slices"


class Cut(NamedTuple):
    """A slice: the tokens of all slices of a sequence, and which of them it is."""

    tokens: tuple[int, ...]
    number: int


class SliceRunner(Protocol):
    """Makes layers that run on a slice, with keys and values of the slices before it."""

    def __call__(
        self,
        module: nn.Module,
        sequence: LayerSequence,
        inputs: Batch,
        targets: Any,
        loss: Loss | None,
        cuts: Sequence[Cut],
        context: Callable[[], AbstractContextManager[object]],
    ) -> Sequence[tuple[tuple[nn.Module, ...], Loss | None]]:
        """Return for each slice its layers, and the loss of what the last one returns.

        The first layer takes the whole inputs, as far as tokens are no axis of what layers pass on.
        """


def slice_runner() -> SliceRunner:
    """Return what runs slices.

    Raises
    ------
    InputError
        If no installed package does.
    """
    for point in entry_points(group=GROUP):
        found: SliceRunner = point.load()
        return found
    raise InputError(
        "slices are measured by the package pipeplan_executor, which is not installed (install pipeplan again), or "
        "profile without slices"
    )


@dataclass(frozen=True)
class SlicePass:
    """The pass of a slice of so many samples."""

    size: int
    cut: Cut
    run: MeasuredPass


def slice_passes(
    module: nn.Module, passes: Mapping[int, MeasuredPass], device: torch.device, request: Request
) -> list[SlicePass]:
    """Return passes of the first and the last of each number of equal slices, for each micro-batch size.

    Parameters
    ----------
    passes : mapping of int to MeasuredPass
        Of whole sequences, by micro-batch size.

    Raises
    ------
    InputError
        If a number does not divide the tokens.
    PlanError
        If the model cannot run in slices.
    """
    runner, context = slice_runner(), partial(autocast, request.precision, device)
    smallest = min(passes)
    own, name = passes[smallest], request.name or type(module).__name__.lower()
    inputs = trace(own.sequence, own.inputs).tensors[:-1]
    graphs = find_operators(module, own.sequence, inputs, smallest, context).graphs
    tokens = tokens_of(graphs.values())
    for count in request.slices:
        check_divides(count, tokens, name)
    cuts = [cut for count in sorted({*request.slices} - {1}) for cut in _ends(tokens // count, tokens)]
    found = []
    for size, each in passes.items():
        made = runner(module, each.sequence, each.inputs, each.targets, each.loss, cuts, context)
        for cut, (layers, loss) in zip(cuts, made, strict=True):
            said = f"{size} samples, {cut.tokens[cut.number]} tokens behind {sum(cut.tokens[: cut.number])}"
            sequence = replace(each.sequence, layers=layers)
            found.append(SlicePass(size, cut, MeasuredPass(said, sequence, each.inputs, each.targets, loss)))
    return found


def with_slices(
    model: Model,
    slices: Sequence[SlicePass],
    device: torch.device,
    whole: bool,
    request: Request,
    on_progress: Callable[[str], None],
) -> Model:
    """Return the model with these slices measured."""
    nothing = (frozenset[str](),) * len(model.layers)
    numbered = dict(enumerate(each.run for each in slices))
    costs = measured_costs(numbered, device, whole, nothing, request, on_progress)
    rows = [_with_keys(model, costs[n], each.size, each.cut.tokens[each.cut.number]) for n, each in enumerate(slices)]
    origin = model.profiles[0]
    pairs = zip(slices[::2], rows[::2], rows[1::2], strict=True)
    found = (SliceProfile(origin.device, e.size, e.cut.tokens[0], a, b, origin.provenance) for e, a, b in pairs)
    return replace(model, slice_profiles=tuple(found))


def _ends(length: int, tokens: int) -> tuple[Cut, Cut]:
    """The first and the last slice of this length."""
    return Cut((length, tokens - length), 0), Cut((tokens - length, length), 1)


def _with_keys(model: Model, costs: Sequence[LayerCost], size: int, length: int) -> tuple[LayerCost, ...]:
    """Costs whose saved bytes include keys and values, which autograd does not keep."""
    found = []
    for layer, cost in zip(model.layers, costs, strict=True):
        attentions = (each.attention for each in model.operators[layer.operators].operators)
        keys = sum(size * -(-each.keys * length // model.tokens) for each in attentions if each is not None)
        found.append(replace(cost, saved=cost.saved + keys, update=0))
    return tuple(found)
