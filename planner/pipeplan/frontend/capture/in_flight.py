"""Check that a layer computes the same with several micro-batches in flight as with one after the other.

::

    plain loop   F0 B0 F1 B1      F1 may read what B0 left: the gradient that was kept of a tensor
    a plan       F0 F1 B0 B1      B0 may read what F1 left: an attribute in place of one that the graph holds

Such a layer would silently train something else. It is called in both orders, with random values, on the CPU.
"""

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from pipeplan.core.errors import PlanError
from pipeplan.frontend.capture.draws import RepeatedDraws
from pipeplan.frontend.capture.graph.gradients import READS_GRADIENT, Seen, place_of
from pipeplan.frontend.capture.private import with_random_values
from pipeplan.frontend.rewind import preserved_numbers

_MOST = 2**24
"""Numbers in parameters and inputs of a layer up to which it is called; larger ones would take seconds each."""
_PLAIN, _PLANNED = ("F0", "B0", "F1", "B1"), ("F0", "F1", "B0", "B1")


def check_in_flight(name: str, layer: nn.Module, given: Sequence[Tensor], acts: Sequence[Seen]) -> None:
    """Refuse a layer that computes something else with two micro-batches in flight.

    Parameters
    ----------
    given : sequence of Tensor
        Inputs of a micro-batch; only shapes, types and ``requires_grad`` are read.
    acts : sequence
        What acts on gradients in the layer's forward (see `watching_gradients`); without any nothing is called.

    Raises
    ------
    PlanError
        With the layer, and the line that reads a gradient if that is known.
    """
    kept = [hooks for part in layer.modules() for hooks in (part._backward_hooks, part._backward_pre_hooks)]
    hooks = [hook for each in kept for hook in each.values()]
    texts = [f"has a hook on its backward ({place_of(hooks[0])})"] if hooks else []
    texts += [act if isinstance(act, str) else act[1] for act in acts]
    reads = next((text for text in texts if text.startswith(READS_GRADIENT)), "")
    differs: bool | None = None
    if texts and sum(tensor.numel() for tensor in (*layer.parameters(), *given)) <= _MOST:
        with suppress(Exception):  # what needs a device, or other values; nothing is known then
            differs = _differs(layer, given)
    if differs or (differs is None and reads):
        what = (reads or texts[0]).partition("), ")[0].removesuffix(")")
        raise PlanError(
            f"layer {name} computes something else, or leaves other buffers, when the forward of the next micro-batch "
            f"comes before the backward of this one, as in most plans: it {what}). Pass what a backward needs through "
            "the graph (ctx.save_for_backward, a variable of the hook's own), and let no forward read what a backward "
            "has left"
        )


def _differs(layer: nn.Module, given: Sequence[Tensor]) -> bool | None:
    """Return whether the two orders differ; None if the forward alone does not repeat (a counter outside the layer)."""
    if not _alike(_run(layer, given, ("F0", "F1")), _run(layer, given, ("F0", "F1"))):
        return None
    plain = _run(layer, given, _PLAIN)
    try:
        return not _alike(_run(layer, given, _PLANNED), plain)
    except RuntimeError:  # a forward writes into what the earlier backward needs
        return True


def _run(layer: nn.Module, given: Sequence[Tensor], order: Sequence[str]) -> list[Tensor | None]:
    """Return outputs, gradients and buffers of a fresh copy of the layer after these passes."""
    numbers = torch.Generator().manual_seed(0)
    copied = with_random_values(layer, numbers)
    inputs = [[_drawn(tensor, numbers, number) for tensor in given] for number in range(2)]
    outputs: dict[int, list[Tensor]] = {}
    with preserved_numbers(), torch.random.fork_rng(devices=[]), torch.enable_grad(), RepeatedDraws():
        for step in order:
            number = int(step[1])
            if step[0] == "F":
                made = copied(*(x.clone() for x in inputs[number]))  # no leaves, as behind another layer
                outputs[number] = [made] if isinstance(made, Tensor) else list(made)
            else:
                roots = [output for output in outputs[number] if output.requires_grad]
                torch.autograd.backward(roots, [torch.full_like(root, number + 1) for root in roots])
    leaves = [x for row in inputs for x in row] + list(copied.parameters())
    made = [y.detach() for row in outputs.values() for y in row]
    return [*made, *(leaf.grad for leaf in leaves), *copied.buffers()]


def _drawn(like: Tensor, numbers: torch.Generator, number: int) -> Tensor:
    """Return an input of micro-batch 0 or 1."""
    if not (like.is_floating_point() or like.is_complex()):
        return torch.full(like.shape, number, dtype=like.dtype)
    return torch.randn(like.shape, dtype=like.dtype, generator=numbers).requires_grad_(like.requires_grad)


def _alike(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    return len(one) == len(other) and all(
        a is b if a is None or b is None else a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )
