"""`solve` on small graphs with the bottleneck objective, against all sequences of stages."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from math import ceil, lcm
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job, Order, Recompute
from pipeplan.core.model import Model
from pipeplan.core.validate import validate_plan
from pipeplan.search.graph.loads import graph_problem
from pipeplan.search.graph.reach import common_link, widths
from pipeplan.search.space.space import Space
from pipeplan.solve import solve
from pipeplan_formulations.common.report import Status
from pipeplan_formulations.graph.instance import GraphStage

Question = tuple[Model, Cluster, Job]
Row = tuple[tuple[frozenset[int], str, int], ...]
"""For each stage its layers, its kind of device, its replicas."""


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Up to five layers with skips, branches and workspaces, up to three devices, memory that may exclude all."""
    n = draw(st.integers(2, 5))

    def numbers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    output = numbers(0, 6)
    saved = [size + extra for size, extra in zip(output, numbers(0, 6), strict=True)]
    parameters = [4 * value for value in numbers(0, 2)]
    workspace = draw(st.sampled_from([[0] * n, numbers(0, 9)]))
    chain = model_of(numbers(0, 9), numbers(0, 9), saved=saved, output=output, parameters=parameters)
    costs = (replace(cost, workspace=size) for cost, size in zip(chain.profiles[0].costs, workspace, strict=True))
    profiles = (replace(chain.profiles[0], costs=tuple(costs)),)
    layers = list(chain.layers)
    for i in range(1, n):
        sources = draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True))
        layers[i] = replace(layers[i], inputs=tuple(layers[j].name for j in sorted(sources)))
    model = replace(chain, layers=tuple(layers), profiles=profiles)
    memory = draw(st.sampled_from([None, None, 20, 30, 45]))
    kinds = {
        "unit": DeviceKind("unit", memory=memory),
        "slow": DeviceKind("slow", memory=draw(st.sampled_from([memory, 40])), timed_as="unit", speed=0.5),
    }
    names = draw(st.sampled_from([("unit",) * 2, ("unit",) * 3, ("slow", "unit"), ("unit", "slow", "unit")]))
    link = Link(draw(st.sampled_from([None, 10**9, 3 * 10**8])), draw(st.sampled_from([0, 0, 2])))
    cluster = Cluster("small", kinds, (Node(names, link),), overlap=draw(st.sampled_from(list(Overlap))))
    recompute = draw(st.sampled_from(list(Recompute)))
    replicas = draw(st.sampled_from([(1,), ()]))
    batch, order = draw(st.integers(1, 4)), draw(st.sampled_from(["search", "search", "given"]))
    return model, cluster, Job(batch, objective="bottleneck", recompute=recompute, replicas=replicas, order=order)


def rows(model: Model, cluster: Cluster, job: Job, micro_batches: int) -> Iterator[Row]:
    """Yield all sequences of stages whose layers read from no later stage.

    Where unlike devices have a given order, stages take them as listed, and layers in their own order.
    """
    index = {name: i for i, name in enumerate(model.names)}
    needs = [{index[source] for source in layer.inputs} for layer in model.layers]
    listed = [device.kind.name for device in cluster.devices]
    given = job.order is Order.GIVEN and len(set(listed)) > 1

    def extend(row: Row, left: frozenset[int], free: dict[str, int]) -> Iterator[Row]:
        if not left:
            yield row
            return
        for size in range(1, len(left) + 1):
            for own in map(frozenset, combinations(sorted(left), size)):
                if any(needs[i] & (left - own) for i in own) or (
                    given and max(own) > min(left - own, default=len(needs))
                ):
                    continue
                for kind, count in free.items():
                    for r in range(1, min(count, micro_batches) + 1):
                        used = len(listed) - sum(free.values())
                        if given and listed[used : used + r] != [kind] * r:
                            continue
                        if not job.replicas or r in job.replicas:
                            yield from extend((*row, (own, kind, r)), left - own, free | {kind: count - r})

    yield from extend((), frozenset(range(len(model.names))), {k: _count(cluster, k) for k in cluster.kinds})


def _count(cluster: Cluster, kind: str) -> int:
    return sum(device.kind.name == kind for device in cluster.devices)


def value(question: Question, row: Row, micro_batches: int) -> int | None:
    """The largest load under the best recomputation; None if memory does not suffice."""
    model, cluster, job = question
    index = {name: i for i, name in enumerate(model.names)}
    costs, place = model.profiles[0].costs, {i: s for s, (own, _, _) in enumerate(row) for i in own}
    crossing = []  # bytes over the border behind each stage
    for s in range(len(row)):
        over = {
            source
            for i, layer in enumerate(model.layers)
            for source in (index[name] for name in layer.inputs)
            if place[source] <= s < place[i]
        }
        crossing.append(sum(costs[i].output for i in over))
    link = cluster.nodes[0].link
    busy = [0 if link.bandwidth is None else ceil(size * 10**9 / link.bandwidth) for size in crossing]
    worst = 0
    for s, (own, kind, r) in enumerate(row):
        slower = round(1 / cluster.kinds[kind].speed)
        flying = ceil(sum(width for _, _, width in row[s:]) / r)
        received = crossing[s - 1] if s else 0
        waits = cluster.overlap is Overlap.NONE
        sent = (busy[s] + (busy[s - 1] if s else 0)) if waits else 0
        fixed = 2 * sum(model.layers[i].parameters for i in own)
        loads = []
        for again in _choices(own, job.recompute):
            held = sum(costs[i].output if i in again else costs[i].saved for i in own) + received
            need = fixed + flying * held + max(costs[i].workspace + costs[i].saved * (i in again) for i in own)
            limit = cluster.kinds[kind].memory
            if limit is None or need <= limit:
                times = [costs[i].forward + costs[i].backward for i in own] + [costs[i].forward for i in again]
                step = ceil(micro_batches / r) * (slower * sum(times) + sent) + _reduction(model, own, r, link)
                loads.append(ceil(step / micro_batches))
        if not loads:
            return None
        worst = max(worst, min(loads))
        if not waits and s < len(row) - 1:
            turns = ceil(micro_batches / lcm(r, row[s + 1][2]))
            worst = max(worst, turns * busy[s] // micro_batches)
    return worst


def _choices(own: frozenset[int], recompute: Recompute) -> Iterator[tuple[int, ...]]:
    every = tuple(sorted(own))
    sizes = {Recompute.NONE: [0], Recompute.CHOOSE: range(len(every) + 1), Recompute.FULL: [len(every)]}[recompute]
    return (chosen for size in sizes for chosen in combinations(every, size))


def _reduction(model: Model, own: frozenset[int], r: int, link: Link) -> int:
    """2 (r − 1) rounds of the ring for every layer's gradients, and their latency."""
    total = 0
    for i in own:
        size = model.layers[i].parameters
        if r > 1 and size:
            round_ = 0 if link.bandwidth is None else ceil(ceil(size / r) * 10**9 / link.bandwidth)
            total += max(2 * (r - 1) * round_, 1)
    return total + (2 * (r - 1) * link.latency if total else 0)


@given(questions())
@settings(max_examples=150, deadline=None)
def test_the_bottleneck_of_a_graph_is_the_best_of_all_rows_of_stages(question: Question) -> None:
    """Value and bound equal the best of all sequences of stages."""
    model, cluster, job = question
    micro_batches = job.batch
    found = (value(question, row, micro_batches) for row in rows(model, cluster, job, micro_batches))
    best = min((each for each in found if each is not None), default=None)
    try:
        result = solve(model, cluster, job=job, time_limit=30)
    except InfeasibleError:
        assert best is None
        return
    assert best is not None
    validate_plan(result.plan, model, cluster)
    assert (result.bound, result.value, result.status) == (best, best, Status.OPTIMAL)


def with_memory(cluster: Cluster, random: Random) -> Cluster:
    """The cluster with limits about which many stages fit if some layers run again, and not if none do."""
    kinds = {name: replace(kind, memory=random.randint(10, 50)) for name, kind in cluster.kinds.items()}
    return replace(cluster, kinds=kinds)


@given(questions(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_stages_of_a_graph_cost_what_the_formulation_says(question: Question, random: Random) -> None:
    """Load of drawn rows of stages under the best recomputation, or that memory does not suffice."""
    model, cluster, job = question[0], with_memory(question[1], random), replace(question[2], recompute="choose")
    space = Space(model, cluster, job)
    link, widths_there = common_link(cluster), widths(space, 1)
    assert link is not None
    problem, chosen = graph_problem(space, 1, space.families[0], link, widths_there)
    kinds = [space.classes[width.device_class].kind.name for width in chosen]
    every = list(rows(model, cluster, job, job.batch))
    for row in random.sample(every, min(len(every), 9)):
        modes = [[m for m, width in enumerate(chosen) if (kinds[m], width.replicas) == stage[1:]] for stage in row]
        options = (
            [
                GraphStage(m, tuple(sorted(own)), again)
                for m in m_of
                for again in product(range(problem.variants), repeat=len(own))
            ]
            for m_of, (own, _, _) in zip(modes, row, strict=True)
        )
        loads = (problem.evaluate(stages) for stages in product(*options) if problem.feasible(stages))
        assert min(loads, default=None) == value((model, cluster, job), row, job.batch)


def test_stages_need_not_be_contiguous() -> None:
    """Two branches of one source: the best stages take a layer from each."""
    chain = model_of([0, 3, 8, 6, 1, 0], [0] * 6, output=[1] * 6)
    inputs = [(), ("l0",), ("l1",), ("l0",), ("l3",), ("l2", "l4")]
    layers = tuple(replace(layer, inputs=own) for layer, own in zip(chain.layers, inputs, strict=True))
    model = replace(chain, layers=layers)
    result = solve(model, Cluster.uniform(2, DeviceKind("unit")), objective="bottleneck")
    assert (result.status, result.value) == (Status.OPTIMAL, 9)
    orders = [[model.names.index(name) for name in stage.layers] for stage in result.plan.stages]
    assert [order == list(range(order[0], order[0] + len(order))) for order in orders] != [True, True]
    assert all(order == sorted(order) for order in orders)


def test_product_of_kinds_is_searched() -> None:
    """The slow device takes the light end of a graph, wherever it stands in the cluster's list."""
    chain = model_of([9, 1, 1, 2], [0] * 4)
    layers = tuple(replace(layer, inputs=(("l0",) if i else ())) for i, layer in enumerate(chain.layers))
    kinds = {"slow": DeviceKind("slow", timed_as="unit", speed=0.5), "unit": DeviceKind("unit")}
    cluster = Cluster("two", kinds, (Node(("slow", "unit")),))
    result = solve(replace(chain, layers=layers), cluster, objective="bottleneck")
    assert (result.status, result.value) == (Status.OPTIMAL, 9)
    assert [len(stage.layers) for stage in result.plan.stages] == [1, 3]
