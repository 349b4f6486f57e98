"""Profiles of a torch module, layer by layer. Light to import: torch is loaded when something is measured.

::

    module ──capture──▶ row of layers ──segments──▶ what is in memory at once ──measure──▶ times, bytes ──▶ Model
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pipeplan.model import Model
from pipeplan.profile.apart import profile_workload

Progress = Callable[[str], None]
"""Called with a line of text as the measurement goes on."""


def profile(
    module: Any,
    example_inputs: Any,
    *,
    micro_batches: Sequence[int] = (1, 2, 4, 8),
    repeats: int = 7,
    warmup: int = 2,
    optimizer: str = "sgd",
    device: str = "cpu",
    device_name: str | None = None,
    threads: int = 1,
    crowd: int = 1,
    name: str | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    targets: Any = None,
    group: Sequence[str] = (),
    front_end: Literal["auto", "chain", "graph"] = "auto",
    precision: Literal["bf16", "fp16"] | None = None,
    progress: Progress | None = None,
) -> Model:
    """Measure what every layer of a torch module costs on this machine, in this process.

    On a CPU times depend on how the process hands out memory, which the provenance tells; `profile_workload` measures
    in a process that does it as a local worker does.

    The layers run as a pipeline stage runs them: all forward in order, keeping what backward needs, then backward in
    reverse order into gradients that are already there. So caches are as cold, and memory as fresh, as in training.
    The backward pass is joined, and split as a pipeline splits it (see `pipeplan.deferred`).

    A module that lies on the device it is measured on is measured in place: its parameters, buffers and gradients
    are afterwards what they were. From any other device, ``meta`` included, each layer comes to the measured device
    alone (parameters without values are drawn with ``reset_parameters``) and goes before the next one comes, so the
    whole module never exists there.

    Parameters
    ----------
    module : torch.nn.Module
        It becomes a row of layers (see `pipeplan.capture`). It is neither copied nor changed.
    example_inputs : batch or callable
        The module's argument, a tuple of its arguments, or a dict of its keyword arguments: tensors whose first axis
        counts samples, cut or repeated to every micro-batch size. Or ``draw(samples)``, which returns such a batch, or
        a pair of a batch and its targets (so a batch of two tensors can only be drawn in such a pair).
    micro_batches : sequence of int
        Sizes to measure, in samples.
    repeats, warmup : int
        Rounds over all layers and sizes that count (their median is kept), and rounds before them that do not.
    optimizer : {'sgd', 'momentum', 'adam'}
        Whose step is timed, layer by layer, with a learning rate of zero.
    device : {'cpu', 'cuda'}
    device_name : str, optional
        Name of the kind of device in the profile: ``'cpu-worker'``, or the name that CUDA gives the card.
    threads : int
        Threads that torch may use on a CPU. With one, what other programs do on a busy machine is not counted.
    crowd : int
        Workers that are busy on this machine at once, the measured one included: give the number of processes that
        will train here. The others pass over the same layers meanwhile, each with gradients of its own.
    name : str, optional
        Name of the model; otherwise the module's class.
    loss : callable, optional
        ``loss(outputs, targets) -> scalar tensor``. What it costs is added to the last layer, because the last stage
        computes it. Without it, backward starts from a gradient of ones.
    targets : batch, optional
        The targets of ``example_inputs``.
    group : sequence of str
        Patterns (``'blocks.*'``, ``'Bottleneck'``) of module paths or class names to keep whole, as one layer.
    front_end : {'auto', 'chain', 'graph'}
        How the layers are found: as submodules that pass one tensor on, in the graph that torch.export captures, or as
        a chain where the module is one.
    precision : {'bf16', 'fp16'}, optional
        Measure forward and loss under autocast, as ``Pipeline(..., precision=)`` runs them.
    progress : callable, optional
        Called with a line of text as the measurement goes on.

    Returns
    -------
    Model
        One profile for each micro-batch size. The weight gradient is that of linear maps, convolutions and embeddings;
        gradients of other parameters come with the input gradient.

    Raises
    ------
    InputError
        If the module is no row of layers, or an argument makes no sense.
    """
    from pipeplan.profile.run import Request, run

    request = Request(
        micro_batches=tuple(micro_batches),
        repeats=repeats,
        warmup=warmup,
        optimizer=optimizer,
        device=device,
        device_name=device_name,
        threads=threads,
        crowd=crowd,
        name=name,
        loss=loss,
        group=tuple(group),
        front_end=front_end,
        precision=precision,
    )
    return run(module, example_inputs, targets, request, progress or (lambda _: None))


__all__ = ["Progress", "profile", "profile_workload"]
