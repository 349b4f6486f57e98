"""The third question: how it is trained, and what the answer must respect."""

from dataclasses import dataclass
from enum import StrEnum

from pipeplan.errors import InputError
from pipeplan.model import Model

OPTIMIZER_STATE = {"sgd": 0, "momentum": 1, "adam": 2}
"""Copies of the parameters that each optimiser keeps as state."""


class Objective(StrEnum):
    """``STEP``: time of one synchronous step. ``BOTTLENECK``: the largest stage load of an endless pipeline."""

    STEP = "step"
    BOTTLENECK = "bottleneck"


class Recompute(StrEnum):
    """Activations computed again in the backward: of no layer, of those that it takes to fit, or of every layer."""

    NONE = "none"
    CHOOSE = "choose"
    FULL = "full"


class Order(StrEnum):
    """``SEARCH``: any order of unlike devices. ``GIVEN``: stages take devices in the order in which they are listed."""

    SEARCH = "search"
    GIVEN = "given"


def default_batch(model: Model) -> int:
    """One micro-batch of the smallest profiled size: enough for a bottleneck, which knows no steps."""
    return min((profile.micro_batch for profile in model.profiles), default=1)


@dataclass(frozen=True)
class Job:
    """Batch, optimiser, limits and wishes.

    Attributes
    ----------
    batch : int
        Samples in one step, over all micro-batches.
    micro_batches : tuple of int
        Numbers of micro-batches to consider; empty is every one that the profiles allow.
    optimizer : str
        A key of `OPTIMIZER_STATE`.
    schedules : tuple of str
        Schedule families to consider; empty is every one that suits the cluster. ``'any'`` adds every order at all,
        with backwards split or not, on stages of one width.
    depths : tuple of int
        Numbers of stages to consider; empty is 1 up to the number of devices.
    memory : int or None
        Bytes a device may use, where that is less than the device has.
    objective : Objective
    extrapolate : bool
        Allow micro-batch sizes outside the measured ones (costs grow linearly with the size).
    replicas : tuple of int
        Numbers of devices that may share a stage; empty is every one, ``(1,)`` is no replication.
    equal_replicas : bool
        One number of replicas for all stages.
    recompute : Recompute
    zero1 : bool
        Replicas share the optimiser's state out among them (Rajbhandari et al., ZeRO, 2020, stage 1).
    order : Order
        Of devices along the pipeline.
    together : tuple of tuple of str
        Layers that one stage must hold: every layer from the first of them to the last.
    no_cut_after : tuple of str
        Layers that may not be the last of their stage.
    pin : tuple of (str, str)
        A layer and where it must lie: a kind of device, or one device, like ``'d3'``.
    intra_layer : bool
        A layer at the end of a stage may be divided between neighbours (devices whose tensors leave while they are
        made, only).
    """

    batch: int
    micro_batches: tuple[int, ...] = ()
    optimizer: str = "sgd"
    schedules: tuple[str, ...] = ()
    depths: tuple[int, ...] = ()
    memory: int | None = None
    objective: Objective = Objective.STEP
    extrapolate: bool = False
    replicas: tuple[int, ...] = ()
    equal_replicas: bool = False
    recompute: Recompute = Recompute.CHOOSE
    zero1: bool = False
    order: Order = Order.SEARCH
    together: tuple[tuple[str, ...], ...] = ()
    no_cut_after: tuple[str, ...] = ()
    pin: tuple[tuple[str, str], ...] = ()
    intra_layer: bool = False

    def __post_init__(self) -> None:
        for name, words in (("objective", Objective), ("recompute", Recompute), ("order", Order)):
            value = getattr(self, name)
            if value not in list(words):
                raise InputError(f"{name} {value!r} is not known; choose from {', '.join(words)}")
            object.__setattr__(self, name, words(value))
        if self.batch < 1:
            raise InputError(f"the batch must hold at least one sample, not {self.batch}")
        if self.optimizer not in OPTIMIZER_STATE:
            raise InputError(f"optimizer {self.optimizer!r} is not known; choose from {', '.join(OPTIMIZER_STATE)}")
        for count in self.micro_batches:
            if count < 1 or self.batch % count:
                raise InputError(f"{count} micro-batches do not divide the batch of {self.batch} samples")
        if any(depth < 1 for depth in self.depths):
            raise InputError(f"a pipeline has at least one stage; depths asked for: {self.depths}")
        if any(count < 1 for count in self.replicas):
            raise InputError(f"a stage has at least one replica; replicas asked for: {self.replicas}")
