"""`Job`: batch, schedules and other options of a planning problem, and constraints on its plans."""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from typing import Literal

from pipeplan.core.choices import groups, known, member, names, numbers, pins
from pipeplan.core.errors import InputError
from pipeplan.core.figures import MOST_SAMPLES, shown, whole
from pipeplan.core.model import Model
from pipeplan.core.parts import switch
from pipeplan.core.strategies import NAMED_STRATEGIES
from pipeplan.core.units import parse_bytes, parse_reserve

OPTIMIZER_STATE = {"sgd": 0, "momentum": 1, "adam": 2}
"""Copies of the parameters that each optimiser keeps as state."""
MOST_BYTES = 64
"""Most bytes of state, or of gradients, that may be stated for a parameter."""
MOST_AXES = 3
"""Axes of the meshes that teams may be; the strategies of an operator grow with their power."""


class Objective(StrEnum):
    """Objective to minimise.

    ``STEP``: time of one synchronous step. ``PERIOD``: time from step to step in a long run, where a device begins its
    next step without waiting for the others. ``BOTTLENECK``: the largest stage load of an endless pipeline.

    Examples
    --------
    >>> pipeplan.Objective("period") is pipeplan.Objective.PERIOD
    True
    """

    STEP = "step"
    PERIOD = "period"
    BOTTLENECK = "bottleneck"

    @property
    def simulated(self) -> bool:
        """Whether values come from simulated steps; those of ``BOTTLENECK`` come from a formula."""
        return self is not Objective.BOTTLENECK

    @property
    def figure(self) -> str:
        """What its values are, in words: ``'step time'``, ``'period'`` or ``'load per sample'``."""
        return {Objective.STEP: "step time", Objective.BOTTLENECK: "load per sample"}.get(self, self.value)

    def samples(self, batch: int) -> int:
        """Samples that one of its values is the time of: those of a step, or one of an endless pipeline."""
        return batch if self.simulated else 1


class Recompute(StrEnum):
    """Layers whose activations are recomputed in the backward: none, those needed for the plan to fit, or all."""

    NONE = "none"
    CHOOSE = "choose"
    FULL = "full"


class Order(StrEnum):
    """Order of devices along the pipeline.

    ``SEARCH``: any order of unlike devices. ``GIVEN``: stages take devices as they are listed, d0 first. With ``GIVEN``
    only devices after the last stage stay unused. To leave another one out, remove it from the cluster.
    """

    SEARCH = "search"
    GIVEN = "given"


def default_batch(model: Model) -> int:
    """Return the smallest profiled micro-batch size: enough for the bottleneck objective, which has no steps."""
    return min((profile.micro_batch for profile in model.profiles), default=1)


SHARDED, WHOLLY_SHARDED = 2, 3
"""The levels of ZeRO from which on gradients, and parameters too, are shared out."""


@dataclass(frozen=True)
class Job:
    """Batch, optimiser, limits and constraints of a planning problem.

    Values may be given as on the command line (``memory='8GiB'``, ``depths='2,4'``) or briefly (``depths=2``,
    ``pin={'head': 'd3'}``): see `pipeplan.core.choices`. Fields hold them as below.

    Attributes
    ----------
    batch : int
        Samples in one step, over all micro-batches.
    micro_batches : tuple of int
        Numbers of micro-batches to consider; empty is every number that the profiles allow.
    optimizer : str
        A key of `OPTIMIZER_STATE`. Empty (or None) is the default, which depends on the model: see `of`.
    state_bytes, gradient_bytes : int or None
        Bytes of optimiser state, and of gradients, that are kept for each parameter; None is what the optimiser and the
        model's number format ask for. The state includes a copy of the parameters in single precision.
    schedules : tuple of str
        Schedule families to consider; empty is every family that suits the cluster. ``'any'`` adds every order of
        actions, with joined or split backwards, on stages with equal numbers of replicas.
    depths : tuple of int
        Numbers of stages to consider; empty is 1 up to the number of devices.
    memory : int or None
        Bytes that a device may use, where that is less than the device has.
    reserve : int or float
        What of each device's own memory is left free: bytes, or a share below 1.
    objective : Objective
    extrapolate : bool
        Allow micro-batch sizes outside the measured ones (costs grow linearly with the size).
    replicas : tuple of int
        Numbers of devices that may share a stage; empty is every number, ``(1,)`` is no replication.
    equal_replicas : bool
        Require the same number of replicas for all stages.
    regular : bool
        Require equal groups of devices, as other launchers have them: equally many replicas of all stages, each stage
        inside one node or on whole nodes. It sets ``equal_replicas``.
    recompute : Recompute
    zero : tuple of int
        Levels of ZeRO to consider (Rajbhandari et al., ZeRO, 2020); empty is every level that suits. The replicas of a
        stage share out, from level 1 on, the update and the optimiser's state; from level 2 on, gradients too; at
        level 3, parameters too. All stages of a plan have one level; at levels 2 and 3 they have equally many replicas.
    slices : tuple of int
        Numbers of equal token slices of a sequence to consider (sequence chunks); empty is 1, whole sequences.
    chunks : tuple of int
        Numbers of stages of each device (virtual stages) to consider. Schedules that place several stages on a device
        are searched then, on equal numbers of replicas and at levels 0 and 1 of ZeRO. Empty is 1, and for models of
        like blocks, where no schedule is named and a step has few samples for each device, up to 12 of those that
        divide the blocks.
    teams : tuple of int
        Numbers of devices that share every layer of a stage (tensor parallelism) to consider. Empty is 1, 2, 4 and 8,
        as far as a node has room, where the operators of the model's layers are known; it is 1 for the bottleneck, in a
        given order, with divided layers, layers pinned to single devices or on-chip memory. Replicas, depths and
        micro-batches count teams as devices; memory is that of one device.
    unlike_rounds : bool
        Let the rounds of several stages of each device be cut unlike, in proportion to how many layers they have, under
        the objective ``'step'`` on devices of one kind.
    unlike_teams : bool
        Let the stages of a plan have teams of unlike sizes, which takes longer to prove.
    sequence_parallel : bool
        Let teams also split along tokens what passes between layers, where operators are known to allow it.
    context_parallel : bool
        Let teams also run products of matrices and attention on parts of the tokens, with whole weights, where these
        pass between layers and operators are known to allow it.
    mesh_axes : int
        Most axes of the meshes that teams may be, split unlike along each, also along samples; several axes only of
        teams over several nodes. 0 is no meshes.
    strategy : str
        How teams of several devices split products of matrices: ``'2d'``, ``'2.5d'`` or ``'3d'`` tensor parallelism, in
        any number of nodes; empty is any way.
    vocabulary_parallel : bool
        Let teams compute the loss on logits that are split along their classes, where it is known to allow it.
    overlap_reduction : bool
        Sum a stage's gradients in buckets while its last backward still runs, instead of all behind it.
    staleness : int
        1 lets the gradients of a batch be summed and applied while the next one runs, with the weights that it began
        with: W(t + 1) = W(t) - v grad f(W(t - 1)). It goes with the objective 'period', and is never a default.
    order : Order
        Order of devices along the pipeline.
    together : tuple of tuple of str
        Groups of layers; one stage must hold every layer from the first of a group to its last.
    no_cut_after : tuple of str
        Layers that may not be the last of their stage.
    pin : tuple of (str, str)
        A layer and its required place: a kind of device, or one device, like ``'d3'``.
    intra_layer : bool
        Allow a layer at the end of a stage to be divided between neighbours (only with `Overlap.STREAM`).

    Raises
    ------
    InputError
        If a field has an invalid value, or two of them contradict each other whatever the model and the cluster.

    Notes
    -----
    Of a parameter with w bytes, g of its gradient and o of optimiser state, each of r replicas keeps w + g + o at level
    0 of ZeRO, w + g + o / r at level 1, w + (g + o) / r at level 2, and (w + g + o) / r at level 3 (Rajbhandari et al.,
    2020, section 3.1), buffers of its collectives besides.

    Examples
    --------
    >>> job = pipeplan.Job(64, memory="8GiB", depths="2,4")
    >>> job.memory, job.depths
    (8589934592, (2, 4))
    """

    batch: int
    micro_batches: tuple[int, ...] = ()
    optimizer: str = ""
    state_bytes: int | None = None
    gradient_bytes: int | None = None
    schedules: tuple[str, ...] = ()
    depths: tuple[int, ...] = ()
    memory: int | None = None
    reserve: int | float = 0
    objective: Objective = Objective.STEP
    extrapolate: bool = False
    replicas: tuple[int, ...] = ()
    equal_replicas: bool = False
    regular: bool = False
    recompute: Recompute = Recompute.CHOOSE
    zero: tuple[int, ...] = ()
    slices: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()
    teams: tuple[int, ...] = ()
    unlike_rounds: bool = False
    unlike_teams: bool = False
    sequence_parallel: bool = True
    context_parallel: bool = True
    mesh_axes: int = 2
    strategy: str = ""
    vocabulary_parallel: bool = True
    overlap_reduction: bool = True
    staleness: int = 0
    order: Order = Order.SEARCH
    together: tuple[tuple[str, ...], ...] = ()
    no_cut_after: tuple[str, ...] = ()
    pin: tuple[tuple[str, str], ...] = ()
    intra_layer: bool = False

    def __post_init__(self) -> None:
        for name, members in (("objective", Objective), ("recompute", Recompute), ("order", Order)):
            self._set(name, member(getattr(self, name), name, members))
        self._set("batch", whole(self.batch, "the batch (samples of one step)", 1, MOST_SAMPLES))
        if isinstance(self.memory, str):
            self._set("memory", parse_bytes(self.memory))
        if self.memory is not None:
            self._set("memory", whole(self.memory, "memory (bytes that a device may use)"))
        for name, what, least in (
            ("state_bytes", "bytes of optimiser state for each parameter", 0),
            ("gradient_bytes", "bytes of gradients for each parameter", 1),
        ):
            if getattr(self, name) is not None:
                self._set(name, whole(getattr(self, name), f"{name} ({what})", least, MOST_BYTES))
        if isinstance(self.reserve, str):
            self._set("reserve", parse_reserve(self.reserve))
        if isinstance(self.reserve, float) and 0 <= self.reserve < 1:
            self._set("reserve", self.reserve or 0)
        elif isinstance(self.reserve, float):
            raise InputError(
                f"reserve {shown(self.reserve)} is no share of each device's memory that can be left free: 0.05 "
                "leaves 5 %; a whole number is bytes"
            )
        else:
            self._set("reserve", whole(self.reserve, "reserve (bytes of each device's memory that are left free)"))
        for name in (
            "extrapolate",
            "equal_replicas",
            "regular",
            "unlike_rounds",
            "unlike_teams",
            "sequence_parallel",
            "context_parallel",
            "vocabulary_parallel",
            "overlap_reduction",
            "intra_layer",
        ):
            switch(getattr(self, name), name)
        for name, what in (
            ("micro_batches", "numbers of micro-batches"),
            ("depths", "stages of a pipeline (depths)"),
            ("replicas", "replicas of a stage"),
            ("slices", "token slices of a sequence (1 leaves it whole)"),
            ("chunks", "stages of a device (chunks)"),
            ("teams", "devices of a team (teams)"),
        ):
            self._set(name, numbers(getattr(self, name), name, what, 1, MOST_SAMPLES))
        self._set("mesh_axes", whole(self.mesh_axes, "the most axes of a mesh", 0, MOST_AXES))
        self._set("staleness", whole(self.staleness, "staleness (batches by which gradients are late)", 0, 1))
        if self.strategy != "":
            self._set("strategy", known(self.strategy, "strategy", NAMED_STRATEGIES))
        levels = numbers(self.zero, "zero", "a level of ZeRO", 0, WHOLLY_SHARDED)
        self._set("zero", tuple(sorted(levels)))
        for name in ("schedules", "no_cut_after"):
            self._set(name, names(getattr(self, name), name))
        self._set("together", groups(self.together, "together"))
        self._set("pin", pins(self.pin))
        if self.optimizer is None:
            self._set("optimizer", "")
        if not isinstance(self.optimizer, str) or self.optimizer:
            self._set("optimizer", known(self.optimizer, "optimizer", OPTIMIZER_STATE))
        if self.staleness:
            self._check_delayed()
        if self.level >= SHARDED:
            self._check_sharded()
        if self.unlike_teams and len(self.teams) < 2:
            raise InputError(
                "unlike_teams lets stages have teams of unlike sizes; name several sizes (teams), like 1, 2 and 4"
            )
        if self.regular:
            self._check_regular()
        if max(self.slices, default=1) > 1:
            self._check_parts(f"{max(self.slices)} token slices (slices)", "whole sequences")
        if max(self.chunks, default=1) > 1:
            self._check_chunks()
        if self.intra_layer:
            self._check_divided()
        for count in self.micro_batches:
            if self.batch % count:
                raise InputError(f"{count} micro-batches do not divide the batch of {self.batch} samples")

    def _check_delayed(self) -> None:
        """Refuse what one step of delay excludes."""
        if self.objective is not Objective.PERIOD:
            raise InputError(
                "staleness 1 is about the time from batch to batch in a long run, not about the "
                f"{self.objective.figure} (objective); ask for the objective 'period'"
            )
        for counts, what in ((self.slices, "token slices (slices)"), (self.chunks, "stages of a device (chunks)")):
            if max(counts, default=1) > 1:
                raise InputError(
                    f"{max(counts)} {what} run in lists that end with a batch, and staleness 1 goes on to the next one "
                    "without a flush; drop one"
                )
        if self.level >= SHARDED:
            raise InputError(
                f"level {self.level} of ZeRO (zero) shares out the weights of every pass, and staleness 1 keeps two "
                "versions of them whole; ask for levels 0 and 1"
            )

    def _check_sharded(self) -> None:
        """Refuse what the levels of ZeRO that share out gradients exclude."""
        if not self.objective.simulated:
            raise InputError(
                f"level {self.level} of ZeRO (zero) is planned for the time of steps; ask for level 1, or for the "
                "objective 'step'"
            )

    def _check_parts(self, many: str, instead: str, beside: bool = False) -> None:
        """Refuse what token slices, and several stages of a device, exclude; little ``beside`` plans without them."""
        if not self.objective.simulated:
            raise InputError(f"{many} shorten steps; ask for the objective 'step' or 'period', or for {instead}")
        if beside:
            return
        if "any" in self.schedules:
            raise InputError(f"{many} run in the orders of families, not schedules 'any'; drop one")
        if min(self.zero, default=0) >= SHARDED:
            raise InputError(f"{many} are planned at levels 0 and 1 of ZeRO (zero), not {min(self.zero)}; drop one")

    def _check_chunks(self) -> None:
        """Refuse what several stages of a device exclude."""
        many = f"{max(self.chunks)} stages of a device (chunks)"
        self._check_parts(many, "one stage", beside=1 in self.chunks)
        if 1 not in self.chunks and min(self.slices, default=1) > 1:
            raise InputError(f"{many} run whole sequences, not {min(self.slices)} token slices (slices); drop one")

    def _check_regular(self) -> None:
        """Require equal replicas, and refuse what contradicts regular plans."""
        self._set("equal_replicas", True)
        if self.unlike_teams:
            raise InputError("regular plans have teams of one size, and unlike_teams of several; drop one")
        if not self.objective.simulated:
            raise InputError(
                "regular plans are planned for the time of steps; ask for the objective 'step' or 'period'"
            )

    def _check_divided(self) -> None:
        """Refuse what keeps layers whole, or splits them between other devices than stages."""
        team = max(self.teams, default=1)
        for asked, why in (
            (self.level >= SHARDED, f"level {self.level} of ZeRO (zero) keeps layers whole"),
            (self.regular, "regular plans have whole layers"),
            (team > 1, f"teams of {team} split layers between their devices"),
            (max(self.slices, default=1) > 1, "token slices (slices) have whole layers"),
            (max(self.chunks, default=1) > 1, "devices with several stages (chunks) have whole layers"),
        ):
            if asked:
                raise InputError(f"{why}, and intra_layer divides them between stages; drop one")

    def of(self, model: Model) -> "Job":
        """Return the job with an optimiser: where it names none, Adam if the model has attention, SGD elsewhere."""
        return self if self.optimizer else replace(self, optimizer="adam" if model.has_attention else "sgd")

    @property
    def level(self) -> int:
        """The level of ZeRO of plans in a space; of several, the one that needs least memory; 0 where none is named."""
        return max(self.zero, default=0)

    @property
    def minimised(self) -> Literal["step", "period", "bottleneck", "delayed"]:
        """What problems of contiguous layers minimise."""
        return "delayed" if self.staleness else self.objective.value

    def usable(self, memory: int | None) -> int | None:
        """Return the bytes of a device's memory that are not left free; None if it has no limit."""
        if memory is None:
            return None
        free = ceil(self.reserve * memory) if isinstance(self.reserve, float) else self.reserve
        return max(memory - free, 0)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
