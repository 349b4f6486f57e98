"""The schema of plan files: what each entry has, in nanoseconds and bytes."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pipeplan.core.cluster import Overlap
from pipeplan.core.grouped_axis import GroupedAxis, ShardAxis
from pipeplan.core.job import WHOLLY_SHARDED
from pipeplan.core.pipeline import Bucket, Pipeline, Stage
from pipeplan.core.plan import Context, Plan, PlanStage
from pipeplan.core.priority import Priority, Send
from pipeplan.core.strategies import AttentionMethod
from pipeplan.io.schema import Count, Items, Strict, Whole
from pipeplan.io.strategies_entry import LayerStrategiesEntry


class MemoryEntry(Strict):
    """Bytes at the peak; see `pipeplan.core.plan.MemoryParts`."""

    weights: Whole
    gradients: Whole
    optimizer: Whole
    activations: Whole
    workspace: Whole
    runtime: Whole
    frozen: Whole = 0


class ShareEntry(Strict):
    """The fraction of a divided layer on a stage."""

    layer: str
    share: Annotated[float, Field(gt=0, lt=1)]


class AxisLinkEntry(Strict):
    """The link between neighbours along an axis of a mesh, in bytes per second and nanoseconds."""

    bandwidth: Count | None = None
    latency: Whole = 0


class PlanStageEntry(Strict):
    """One stage; see `pipeplan.core.plan.PlanStage`."""

    describes = PlanStage

    layers: Items[str]
    devices: Items[Whole]
    forward: Whole
    backward: Whole
    in_flight: Whole
    memory: MemoryEntry
    recompute: Items[str] = ()
    shares: Items[ShareEntry] = ()
    team: Count = 1
    mesh: Items[Annotated[int, Field(ge=2)]] = ()
    links: Items[AxisLinkEntry] = ()
    sharing: Items[Count] = ()


class ShardEntry(Strict):
    """A parameter that the devices of a team share out, the axis along which they do, and the groups of that axis."""

    parameter: str
    axis: Whole
    groups: Items[Count] = ()

    @model_validator(mode="after")
    def _several(self) -> Self:
        if len(self.groups) == 1:
            raise ValueError("one group is the whole axis; give the relative lengths of several groups, or none")
        return self

    @property
    def shard_axis(self) -> ShardAxis:
        """How the parameter is split."""
        return GroupedAxis(self.axis, self.groups) if self.groups else self.axis


class AttentionEntry(Strict):
    """An attention on parts of the tokens; see `pipeplan.core.plan.Context`."""

    layer: str
    number: Whole = 0
    by: AttentionMethod


class ContextEntry(Strict):
    """What teams run on parts of the tokens; see `pipeplan.core.plan.Context`."""

    describes = Context

    products: Items[str] = ()
    attention: Items[AttentionEntry] = ()


class YardstickEntry(Strict):
    """What throughput is measured by; see `pipeplan.core.throughput.Yardstick`."""

    tokens: Count | None = None
    """Of a sample."""
    flops: Count | None = None
    """Operations of a sample's forward and backward."""
    peak: Annotated[int, Field(ge=1)] | None = None  # of many devices: it may exceed the most of one figure
    """Operations per second of all devices together."""
    uncounted: bool = False
    """Whether the model has operations that ``flops`` leaves out."""


class ScheduleEntry(Strict):
    """Order of actions on each rank; see `pipeplan.Schedule`."""

    family: str
    """Name of the schedule family."""
    two_lanes: bool = False
    """Whether devices run a forward beside a backward."""
    orders: Items[str]
    """The actions of each rank in order, like 0F0 0F1 0B0: stage, kind, micro-batch."""


class BucketEntry(Strict):
    """Gradients that are summed together; see `pipeplan.core.pipeline.Bucket`."""

    describes = Bucket

    layers: Whole
    ready: Whole
    time: Whole


class StageEntry(Strict):
    """Times in nanoseconds, sizes in bytes; see `pipeplan.core.pipeline.Stage`."""

    describes = Stage

    forward: Whole | Items[Whole]
    """One number, or one for each token slice; likewise the next three."""
    backward: Whole | Items[Whole]
    input_gradient: Whole | Items[Whole] = 0
    weight_gradient: Whole | Items[Whole] = 0
    update: Whole = 0
    reduce: Whole = 0
    gather: Whole = 0
    resident: Whole = 0
    held: Whole = 0
    held_after_input_gradient: Whole | None = None
    workspace: Whole = 0
    forward_workspace: Whole | None = None
    buckets: Items[BucketEntry] = ()
    gather_buckets: Items[BucketEntry] = ()


class TransferEntry(Strict):
    """One boundary's transfer; see `pipeplan.core.pipeline.Transfer`."""

    size: Whole = 0
    occupancy: Whole = 0
    latency: Whole = 0
    resources: Items[str] = ()


class PipelineEntry(Strict):
    """Times, memory and transfers used to simulate the plan; see `pipeplan.core.pipeline.Pipeline`."""

    describes = Pipeline

    stages: Items[StageEntry]
    placement: Items[Items[Whole]]
    transfers: Items[Items[TransferEntry]]
    returns: Items[Items[TransferEntry]]
    overlap: Annotated[Overlap, BeforeValidator(lambda value: Overlap(value))]
    runtime: Items[Whole]
    limits: Items[Whole]
    tied: Items[Items[Whole]] = ()


class SendEntry(Strict):
    """Chunks of one layer's gradients; see `pipeplan.core.priority.Send`."""

    describes = Send

    layer: str
    chunks: Count
    ready: Whole
    time: Whole
    needed: Whole


class LostEntry(Strict):
    """What of a layer's gradients need not arrive where they are added."""

    layer: str
    share: Annotated[float, Field(gt=0, lt=1)]


class PriceEntry(Strict):
    """What a megabyte more of a layer's gradients costs a step, in nanoseconds."""

    layer: str
    time: Annotated[float, Field(gt=0)]


class PriorityEntry(Strict):
    """The order of a stage's sums; see `pipeplan.core.priority.Priority`."""

    describes = Priority

    chunk: Whole = 0
    sends: Items[SendEntry] = ()
    lost: Items[LostEntry] = ()
    prices: Items[PriceEntry] = ()


class PlanFile(Strict):
    """Schema of a plan file."""

    describes = Plan

    format: Literal["pipeplan-plan/5", "pipeplan-plan/4", "pipeplan-plan/3", "pipeplan-plan/2"]
    """Version of the format."""
    model: str
    """Name of the model."""
    fingerprint: str
    """Hash of its layers."""
    cluster: str
    """Name of the cluster."""
    device_kinds: Items[str]
    micro_batch: Count
    """Samples in a micro-batch."""
    micro_batches: Count
    """Micro-batches in a step."""
    optimizer: str
    """sgd, momentum or adam."""
    state_bytes: Whole | None = None
    """Bytes of optimiser state for each parameter, where they were stated."""
    gradient_bytes: Whole | None = None
    """Bytes of gradients for each parameter, where they were stated."""
    step_time: Whole
    """Simulated time of a step, in nanoseconds."""
    bound: Whole
    """Proved lower bound, in nanoseconds."""
    gap: float | None = None  # follows from the value and bound, so that none of the three can be altered alone
    """(value - bound) / value."""
    ranks: Items[Whole]
    stages: Items[PlanStageEntry]
    """Stages in order."""
    schedule: ScheduleEntry
    """Order of actions on each rank."""
    pipeline: PipelineEntry
    zero: Annotated[int, Field(ge=0, le=WHOLLY_SHARDED)] = 0
    zero1: bool = False  # in files from before other levels were known
    """Level 1 of ZeRO, in older files."""
    period: Whole | None = None
    staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """1 if the gradients of a batch are applied while the next one runs."""
    priority: Items[PriorityEntry] = ()
    team: Count = 1  # in files from before stages had teams of their own
    """Devices of every team, in older files."""
    shards: Items[ShardEntry] = ()
    sequence: Items[str] = ()
    vocabulary: str | None = None
    strategies: Items[LayerStrategiesEntry] = ()
    """How layers run on the meshes of their teams."""
    context: ContextEntry | None = None
    parallelism: Items[Literal["sequence", "context", "loss"]] = ()
    yardstick: YardstickEntry | None = None
    """What throughput is measured by."""
    slices: Items[Count] = ()
    """Tokens of each slice of a sequence."""
