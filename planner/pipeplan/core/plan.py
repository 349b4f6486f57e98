"""`Plan`: stages on devices, their schedule, times and memory, and the proven bound."""

from dataclasses import dataclass
from pathlib import Path

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes of a stage's device at the peak, by what holds them."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    workspace: int = 0
    runtime: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.workspace + self.runtime


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
        Most micro-batches whose activations the stage holds at a time.
    memory : MemoryParts
    recompute : tuple of str
        Layers whose activations are recomputed in the backward.
    shares : tuple of (str, float)
        Layers that neighbours divide, and the part of each that lies here; every other layer lies here whole.
    """

    layers: tuple[str, ...]
    devices: tuple[int, ...]
    forward: int
    backward: int
    in_flight: int
    memory: MemoryParts
    recompute: tuple[str, ...] = ()
    shares: tuple[tuple[str, float], ...] = ()

    @property
    def replicas(self) -> int:
        """How many devices share this stage's micro-batches."""
        return len(self.devices)


@dataclass(frozen=True)
class Plan:
    """Everything the executor needs, and what was promised.

    Attributes
    ----------
    model, fingerprint : str
        The model's name and the hash of its layers (see `pipeplan.Model.fingerprint`).
    cluster : str
    device_kinds : tuple of str
        Kind of every device of the cluster, by index.
    micro_batch, micro_batches : int
    optimizer : str
    stages : tuple of PlanStage
    schedule : Schedule
        ``schedule.orders[r]`` is the order of rank r; rank r runs on device ``ranks[r]``.
    ranks : tuple of int
        Index of each rank's device in the cluster.
    step_time, bound : int
        Nanoseconds: simulated, and proven to be beaten by no plan of the searched space.
    pipeline : Pipeline
        Times, memory and transfers from which ``step_time`` was simulated.
    zero1 : bool
        Whether the replicas of a stage share out the optimiser's state (ZeRO stage 1).
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
    zero1: bool = False

    @property
    def batch(self) -> int:
        """Samples in one step."""
        return self.micro_batch * self.micro_batches

    @property
    def boundaries(self) -> tuple[int, ...]:
        """``(0, …, n)``: where the stages begin and end in the row of all layers; a divided one counts on its left."""
        edges, seen = [0], set[str]()
        for stage in self.stages:
            seen.update(stage.layers)
            edges.append(len(seen))
        return tuple(edges)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, whole or not at all."""
        from pipeplan.io.plan_file import write_plan

        write_plan(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Read what `save` writes.

        Raises
        ------
        InputError
            Naming every field that is wrong, or every claim that the file's own tables contradict.
        """
        from pipeplan.io.plan_file import load_plan

        return load_plan(Path(path))
