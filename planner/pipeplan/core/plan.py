"""`Plan`: stages on devices, their schedule, times and memory, and the proven bound."""

from dataclasses import dataclass, field
from pathlib import Path

from pipeplan.core.cluster import Link
from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.job import SHARDED
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.plan_files import plan_files
from pipeplan.core.priority import Priority
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.strategies import LayerStrategies
from pipeplan.core.tabular import Table, Tabular, Unit
from pipeplan.core.throughput import Yardstick
from pipeplan.core.units import format_time
from pipeplan.core.wording import counted, device_names, stages_of, team_suffix, zero_suffix


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes of a stage's device at the peak, by purpose; ``weights`` are the trainable ones."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    workspace: int = 0
    runtime: int = 0
    frozen: int = 0

    @property
    def static(self) -> int:
        """Bytes that stay for the whole step: weights, frozen or not, gradients and optimiser state."""
        return self.weights + self.gradients + self.optimizer + self.frozen

    @property
    def total(self) -> int:
        """Sum of all parts, in bytes."""
        return self.static + self.activations + self.workspace + self.runtime


@dataclass(frozen=True, slots=True)
class PlanStage:
    """One stage of a plan.

    Attributes
    ----------
    layers : tuple of str
        Names, in order.
    devices : tuple of int
        Indices into the cluster's devices: one for each replica.
    forward, backward : int
        Nanoseconds for one micro-batch.
    in_flight : int
        Largest number of micro-batches whose activations the stage holds at a time.
    memory : MemoryParts
    recompute : tuple of str
        Layers whose activations are recomputed in the backward.
    shares : tuple of (str, float)
        Layers divided between neighbouring stages, and the fraction of each on this stage; other layers are whole.
    team : int
        Devices that share every layer of the stage. Of more than one, what the plan calls a device is a team of them.
    mesh : tuple of int
        Devices of a team along each axis of their mesh.
    links : tuple of Link
        Between neighbours along each axis, at the bandwidth of collectives: they decide how tensors are redistributed.
    sharing : tuple of int
        Devices along each axis that send over one card at once where each sends every other one its part; as links.
    """

    layers: tuple[str, ...]
    devices: tuple[int, ...]
    forward: int
    backward: int
    in_flight: int
    memory: MemoryParts
    recompute: tuple[str, ...] = ()
    shares: tuple[tuple[str, float], ...] = ()
    team: int = 1
    mesh: tuple[int, ...] = ()
    links: tuple[Link, ...] = ()
    sharing: tuple[int, ...] = ()

    @property
    def replicas(self) -> int:
        """Number of devices that share this stage's micro-batches."""
        return len(self.devices)


@dataclass(frozen=True)
class Context:
    """Products of matrices and attention that teams run on parts of the tokens (context parallelism).

    Attributes
    ----------
    products : tuple of str
        Parameters, whole on every member and by their names in the whole model, whose products each member makes with
        its own tokens.
    attention : tuple of (str, int, str)
        A layer, the number of the attention among all in it, from 0, and ``'keys'`` if members gather keys and values,
        ``'ring'`` if these go round block by block, or ``'heads'`` if members exchange tokens for heads.
    """

    products: tuple[str, ...] = ()
    attention: tuple[tuple[str, int, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.products or self.attention)


@dataclass(frozen=True, repr=False)
class Plan(Tabular):
    """A training plan: everything that the executor needs, the simulated step time and the proven bound.

    Attributes
    ----------
    model, fingerprint : str
        The model's name and the hash of its layers (see `pipeplan.Model.fingerprint`).
    cluster : str
    device_kinds : tuple of str
        Kind of every device of the cluster, by index.
    micro_batch, micro_batches : int
    optimizer : str
    state_bytes, gradient_bytes : int or None
        Bytes of state, and of gradients, that were stated for each parameter; None follows from the rest.
    slices : tuple of int
        Tokens of each slice of a sequence, in order; empty if sequences stay whole. Micro-batch m goes to replica m mod
        r with all its slices.
    stages : tuple of PlanStage
    schedule : Schedule
        ``schedule.orders[r]`` is the order of rank r; rank r runs on device ``ranks[r]``.
    ranks : tuple of int
        Index of each rank's device in the cluster.
    step_time, bound : int
        Nanoseconds: the simulated time, and a proven lower bound over all plans of the searched space: on their step
        time, or on their period if the plan has one.
    pipeline : Pipeline
        Times, memory and transfers from which ``step_time`` was simulated.
    zero : int
        Level of ZeRO: what the replicas of a stage share out (`pipeplan.Job`).
    period : int or None
        Nanoseconds from step to step in a long run, if the plan was made for that.
    staleness : int
        1 if the gradients of a batch are applied while the next one runs; then ``period`` is that of a run without a
        flush (`pipeplan.schedules.stale`), and ``step_time`` that of a batch alone.
    priority : tuple of Priority
        For each stage how its gradients are summed in chunks, front layers first, while the next step begins; empty
        if they are not. Then ``step_time`` is that of a step with all its sums behind it.
    shards : tuple of (str, int or GroupedAxis)
        Parameters that the devices of their stage's team share out, by their names in the whole model, and the axis of
        each.
    sequence : tuple of str
        Layers whose output the devices of a team hold split along axis 1, the tokens; other outputs are whole.
    context : Context
        What runs on parts of the tokens in layers whose input or output is split so, beside what always does.
    vocabulary : str or None
        The last layer, if the devices of its team compute the loss on logits that are split along their classes.
    strategies : tuple of (str, LayerStrategies)
        For each layer on a team of several devices how it runs on their mesh; then there are no ``shards``,
        ``sequence``, ``context`` and ``vocabulary``, which plans of former versions have instead.
    parallelism : tuple of str
        What teams split beside weights, for reports (`pipeplan.core.splits.Split.parallelism`).
    yardstick : Yardstick
        What throughput is measured by, as far as it is known.

    Examples
    --------
    >>> result = pipeplan.solve("vgg-16", "4-v100-nvlink", batch=64, depths=2, replicas=1, schedules="gpipe")
    >>> result.plan.save("plan.json")                           # doctest: +SKIP
    >>> pipeplan.Plan.load("plan.json").headline                # doctest: +SKIP
    >>> sum(len(stage.layers) for stage in result.plan.stages)
    21
    """

    model: str
    fingerprint: str
    cluster: str
    device_kinds: tuple[str, ...]
    micro_batch: int
    micro_batches: int
    optimizer: str
    stages: tuple[PlanStage, ...]
    schedule: Schedule
    ranks: tuple[int, ...]
    step_time: int
    bound: int
    pipeline: Pipeline
    zero: int = 0
    period: int | None = None
    shards: tuple[tuple[str, ShardAxis], ...] = ()
    sequence: tuple[str, ...] = ()
    vocabulary: str | None = None
    strategies: tuple[tuple[str, LayerStrategies], ...] = ()
    parallelism: tuple[str, ...] = ()
    context: Context = Context()
    yardstick: Yardstick = field(default_factory=Yardstick)
    state_bytes: int | None = None
    gradient_bytes: int | None = None
    slices: tuple[int, ...] = ()
    staleness: int = 0
    priority: tuple[Priority, ...] = ()

    @property
    def shape(self) -> str:
        """Its stages and their replicas: ``'4 stages of 2 replicas'``, ``'8 stages (2 on each device)'``."""
        each = max(len(own) for own in self.pipeline.stages_on)
        several = f" ({each} on each {'device' if self.team == 1 else 'team'})" if each > 1 else ""
        return stages_of([stage.replicas for stage in self.stages]) + several

    @property
    def headline(self) -> str:
        """Model, cluster, stages, micro-batches and schedule, in one line."""
        many = counted(self.micro_batches, "micro-batch")
        teams = team_suffix(self.teams, self.parallelism, mesh=self.mesh)
        return (
            f"{self.model} on {self.cluster}: {self.shape}, {many} of {self.micro_batch}{self.cut}, "
            f"schedule {self.schedule.family}{self._splits}{zero_suffix(self.zero)}{teams}"
            + ", gradients one step late" * self.staleness
            + ", sums front layers first" * bool(self.priority)
        )

    @property
    def cut(self) -> str:
        """How sequences are cut, as a suffix: ``' in 32 slices of 256 tokens'``."""
        if not self.slices:
            return ""
        least, most = min(self.slices), max(self.slices)
        return f" in {len(self.slices)} slices of {least if least == most else f'{least} to {most}'} tokens"

    @property
    def _splits(self) -> str:
        """The stages whose backwards are split into input and weight gradients, as a suffix."""
        split = sorted(self.schedule.stages_with(Kind.WEIGHT_GRADIENT))
        if not split:
            return ""
        if len(split) == len(self.stages):
            return ", backwards split"
        return f", backwards of {'stage' if len(split) == 1 else 'stages'} {', '.join(map(str, split))} split"

    def table(self) -> Table:
        """A row per stage."""
        columns: dict[str, Unit] = {"stage": "", "devices": "", "kind": "", "layers": "", "first": "", "last": ""}
        columns |= {"forward": "ns", "backward": "ns", "memory": "bytes", "in flight": "", "recomputed": ""}
        rows = (
            (
                number,
                device_names(stage.devices, self.letter).replace(",", ""),
                self.kind_of(stage),
                len(stage.layers),
                stage.layers[0],
                stage.layers[-1],
                stage.forward,
                stage.backward,
                stage.memory.total,
                stage.in_flight,
                len(stage.recompute),
            )
            for number, stage in enumerate(self.stages)
        )
        return Table(columns, tuple(rows))

    @property
    def value(self) -> int:
        """The time that ``bound`` bounds: the period, or without one the step time."""
        return self.step_time if self.period is None else self.period

    @property
    def predicted(self) -> int:
        """The predicted time of a step as it is run: the period where no step waits for the end of its sums."""
        return self.period or self.step_time if self.staleness or self.priority else self.step_time

    @property
    def proof(self) -> str:
        """What was proved of that time, in words; of a hand-written plan that no search has it is nothing."""
        if not self.bound and self.value:  # no time at all needs no proof
            return "no bound was proved for it"
        return f"proven bound {format_time(self.bound)}, gap {1 - self.bound / self.value if self.value else 0.0:.2%}"

    @property
    def teams(self) -> tuple[int, ...]:
        """Devices of a team, for each stage."""
        return tuple(stage.team for stage in self.stages)

    @property
    def mesh(self) -> tuple[int, ...]:
        """Devices of a team along each axis of the first stage's mesh; those of several axes are alike in stages."""
        return self.stages[0].mesh if self.stages else ()

    @property
    def team(self) -> int:
        """Devices of the largest team."""
        return max(self.teams, default=1)

    @property
    def letter(self) -> str:
        """What numbers of devices begin with: ``'d'``, or ``'t'`` if devices are teams."""
        return "d" if self.team == 1 else "t"

    def kind_of(self, stage: PlanStage) -> str:
        """Return the kind of a stage's devices, all of one: ``'v100'``, or ``'8 x v100'`` for teams."""
        kind, several = self.device_kinds[stage.devices[0]], f"{stage.team} x "
        return kind if stage.team == 1 or kind.startswith(several) else several + kind

    @property
    def sharded(self) -> bool:
        """Whether replicas hold gradients, or parameters too, in shards."""
        return self.zero >= SHARDED and any(stage.replicas > 1 for stage in self.stages)

    @property
    def batch(self) -> int:
        """Samples in one step."""
        return self.micro_batch * self.micro_batches

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Stage boundaries ``(0, …, n)`` in the sequence of all layers; a divided layer counts for its first stage."""
        edges, seen = [0], set[str]()
        for stage in self.stages:
            seen.update(stage.layers)
            edges.append(len(seen))
        return tuple(edges)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically."""
        if not isinstance(path, str | Path) or not str(path):
            raise InputError(f"no path of a plan: {shown(path)}; name a file to write")
        plan_files().write(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Read a plan that `save` wrote.

        Raises
        ------
        InputError
            Naming every invalid field, or every claim that the file's own tables contradict.
        """
        if not isinstance(path, str | Path):
            raise InputError(f"no path of a plan: {shown(path)}; name a file that `save` or solve -o wrote")
        plan: Plan = plan_files().read(Path(path))
        return plan
