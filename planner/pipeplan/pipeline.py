"""Stages on devices, with their times, memory and transfers: what a schedule runs on.

::

    stage 0 ──transfers[0]──▶ stage 1 ──transfers[1]──▶ stage 2
            ◀──returns[0]────         ◀──returns[1]────
"""

from dataclasses import dataclass

from pipeplan.cluster import Overlap


@dataclass(frozen=True, slots=True)
class Stage:
    """Times (nanoseconds) and memory (bytes) of one stage, per micro-batch unless said otherwise.

    Attributes
    ----------
    forward, backward, input_gradient, weight_gradient : int
    update, reduce : int
        Once a step.
    resident : int
        Bytes that stay for the whole step: parameters, gradients, optimiser state.
    held : int
        Bytes that a micro-batch keeps from its forward on (saved tensors and the received input).
    held_after_input_gradient : int
        What of ``held`` is still there between input and weight gradient; torch's own engine frees nothing there.
    workspace : int
        Bytes that live only while an action of this stage runs.
    """

    forward: int
    backward: int
    input_gradient: int = 0
    weight_gradient: int = 0
    update: int = 0
    reduce: int = 0
    resident: int = 0
    held: int = 0
    held_after_input_gradient: int | None = None
    workspace: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """One tensor's way between the devices of two neighbouring stages.

    ``occupancy`` nanoseconds each of ``resources`` is busy (one direction of a link, or the network cards of two
    nodes, which all transfers through them share in turn); ``latency`` more until the tensor is there.
    """

    size: int = 0
    occupancy: int = 0
    latency: int = 0
    resources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """Everything about a plan that the simulator needs, but for the order of actions.

    Attributes
    ----------
    stages : tuple of Stage
    placement : tuple of int
        The device (0 … devices − 1) of each stage.
    transfers, returns : tuple of Transfer
        One a boundary: activations forward, gradients back. A boundary inside one device costs nothing.
    overlap : Overlap
    runtime : tuple of int
        Bytes, one a device, that its runtime takes.
    limits : tuple of int
        Bytes, one a device (`pipeplan.chain.UNLIMITED` for none).
    """

    stages: tuple[Stage, ...]
    placement: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    returns: tuple[Transfer, ...]
    overlap: Overlap
    runtime: tuple[int, ...]
    limits: tuple[int, ...]

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.limits)
