"""Small models and lines of streaming devices with on-chip memory, for tests of divided layers."""

from collections.abc import Sequence

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.job import Job
from pipeplan.core.model import Layer, Model, Work
from pipeplan.fpga.line import Line
from pipeplan.fpga.space import lines


def model_of(flops: Sequence[int], output: Sequence[int] | int = 1000, parameters: Sequence[int] | int = 1000) -> Model:
    """Chain of layers with ``flops`` operations forward and for either gradient; bytes are for one sample."""
    count = len(flops)
    outputs = [output] * count if isinstance(output, int) else list(output)
    sizes = [parameters] * count if isinstance(parameters, int) else list(parameters)
    layers = [
        Layer(f"layer{i}", size, (f"layer{i - 1}",) if i else (), Work(work, work, work, made, made))
        for i, (work, made, size) in enumerate(zip(flops, outputs, sizes, strict=True))
    ]
    return Model("chain", tuple(layers))


def board(name: str = "board", speed: int = 10**9, on_chip: int | None = 10**9, memory: int = 2**40) -> DeviceKind:
    """Device of ``speed`` operations per second, with a memory bandwidth of a tenth as many bytes per second."""
    return DeviceKind(
        name, memory=memory, peak={"float32": speed}, bandwidth=speed // 10, efficiency=1.0, on_chip=on_chip
    )


def line_cluster(kinds: Sequence[DeviceKind], bandwidth: int | None = None, latency: int = 0) -> Cluster:
    """Cluster of these boards in one node, with separate links between any two."""
    node = Node(tuple(kind.name for kind in kinds), Link(bandwidth, latency))
    return Cluster("line", {kind.name: kind for kind in kinds}, (node,), overlap=Overlap.STREAM)


def one_line(model: Model, cluster: Cluster, job: Job) -> Line:
    """The line of the greatest depth, devices as listed; the job must allow one size and one family."""
    count = len(cluster.devices)
    names = tuple(device.kind.name for device in cluster.devices)
    return next(
        line
        for line in lines(model, cluster, job)
        if line.chain.stages == count and tuple(device.kind.name for device in line.chain.devices) == names
    )
