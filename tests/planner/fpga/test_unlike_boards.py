"""Lines of unlike boards and of slow links, where balanced partitions are not the best."""

from dataclasses import replace

from pipeplan import load_cluster, load_model
from pipeplan.baselines.partitioners import PARTITIONERS
from pipeplan.baselines.partitioners.partitioner import stage_loads
from pipeplan.core.cluster import Cluster, Link, Node
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.fpga.evaluate import evaluate
from pipeplan.fpga.line import Line
from pipeplan.fpga.shares import balanced
from pipeplan.fpga.space import lines
from pipeplan.solve import solve

JOB = Job(64, micro_batches=(64,), schedules=("1f1b-as",), depths=(4,), replicas=(1,))


def _orders(model: Model, cluster: Cluster, job: Job = JOB) -> dict[str, Line]:
    """The lines of all orders of device kinds."""
    return {" ".join(device.kind.name for device in line.chain.devices): line for line in lines(model, cluster, job)}


def _whole(line: Line, boundaries: tuple[int, ...]) -> int:
    """Step time of whole layers, with weights on chip where they fit."""
    return evaluate(line, tuple(map(float, boundaries))).value


def test_the_order_of_best_balance_is_not_the_best_order() -> None:
    """ResNet-50 on two boards of either kind: another order is better, with whole and with divided layers.

    The order whose best cut has the least largest load puts the small boards first; another one has a shorter step with
    its own best cut, and a third with divided layers: the last layers wait for their weights, for which a small board's
    memory is as fast as a large one's.
    """
    every = _orders(load_model("resnet-50"), load_cluster("2-vcu118-2-vcu129"))
    assert len(every) == 6
    cuts = {name: PARTITIONERS["chain-minmax"].balance(line.chain, line.micro_batches) for name, line in every.items()}
    balance = min(every, key=lambda name: max(stage_loads(every[name].chain, cuts[name])))
    steps = {name: _whole(line, cuts[name]) for name, line in every.items()}
    assert min(steps.values()) < steps[balance]
    divided = {name: evaluate(line, balanced(line)).value for name, line in every.items()}
    assert min(divided.values()) < 0.95 * divided[balance]


def test_divided_layers_beat_the_greedys_best_order() -> None:
    """On two boards of either kind, over all orders and micro-batch sizes that the greedy may choose."""
    model, cluster = load_model("resnet-50"), load_cluster("2-vcu118-2-vcu129")
    greedy = min(
        _whole(line, PARTITIONERS["bapipe"].balance(line.chain, line.micro_batches))
        for line in lines(model, cluster, replace(JOB, micro_batches=(16, 32, 64)))
    )
    found = solve(model, cluster, job=replace(JOB, intra_layer=True), gap=0.02, time_limit=60)
    assert found.value < 0.95 * greedy
    assert found.plan.ranks != (0, 1, 2, 3)


def test_cuts_that_links_cannot_carry_are_avoided() -> None:
    """At 0.5 Gbit/s the balanced partition of VGG-16 sends longer than it computes; the plan does not, and is faster.

    BaPipe merges layers into coarse blocks until every cut can be sent in time. Here that follows from the bound alone.
    """
    model, boards = load_model("vgg-16"), load_cluster("4-vcu118")
    cluster = replace(boards, nodes=(Node(boards.nodes[0].kinds, Link(62_500_000, 1000)),))
    line = next(iter(_orders(model, cluster).values()))
    plain = PARTITIONERS["chain-minmax"].balance(line.chain, 64)
    loads = stage_loads(line.chain, plain)
    assert max(int(line.chain.send[s, b - 1]) for s, b in enumerate(plain[1:-1])) > 1.5 * max(loads)

    found = solve(model, cluster, job=replace(JOB, intra_layer=True), gap=0.02, time_limit=60)
    pipeline = found.plan.pipeline
    period = max(stage.forward + stage.backward for stage in pipeline.stages)
    assert all(way.occupancy <= period for own in pipeline.transfers for way in own)
    assert found.value < 0.8 * _whole(line, plain)
