"""`solve` against an exhaustive search that uses no formulation."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain as joined
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.device_groups import all_device_groups, every_device_group
from helpers.instances import model_of
from helpers.quick import examples, rarely
from pipeplan.core.cluster import Cluster, Device, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import SHARDED, Job
from pipeplan.core.model import Model, Tie
from pipeplan.core.schedule import Schedule
from pipeplan.costs.assembly import assemble
from pipeplan.costs.chain import Chain
from pipeplan.costs.pricing import price
from pipeplan.schedules import FAMILIES
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan.search.space import space
from pipeplan.search.space.spaces import Spaces
from pipeplan.simulate import simulate
from pipeplan.solve import solve
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.report import Status

Question = tuple[Model, Cluster, Job]
Shapes = Callable[[Cluster, Job, int, int], Iterator[tuple[tuple[Device, ...], ...]]]


@st.composite
def questions(draw: st.DrawFn, tied: str | None = None) -> Question:
    """Up to four layers, up to three devices of one or two speeds, links, memory that sometimes excludes everything.

    Some models' first and last layers share weights; with ``tied='any'`` two or three layers of every model do.
    """
    n = draw(st.integers(2, 4))
    kind = draw(st.sampled_from(["none", "none", "ends"])) if tied is None else tied

    def numbers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    output = numbers(0, 6)
    model = model_of(
        numbers(0, 9),
        numbers(0, 9),
        saved=[size + extra for size, extra in zip(output, numbers(0, 6), strict=True)],
        output=output,
        parameters=[
            4 * (value + ((i == 0 and kind == "ends") or kind == "any")) for i, value in enumerate(numbers(0, 2))
        ],
        update=numbers(0, 3),
        sizes=draw(st.sampled_from([(1,), (1, 2), (2, 4)])),
    )
    if kind != "none":
        places = [0, n - 1] if kind == "ends" else sorted(draw(st.sets(st.integers(0, n - 1), min_size=2, max_size=3)))
        size = 4 * draw(st.integers(1, model.layers[places[0]].parameters // 4))
        model = replace(model, ties=(Tie(tuple(model.names[i] for i in places), size),))
    memory = draw(st.sampled_from([None, 20, 30, 40, 80]))
    kinds = {
        "unit": DeviceKind("unit", memory=memory),
        "other": DeviceKind("other", memory=draw(st.sampled_from([memory, 60])), timed_as="unit", speed=0.5),
    }
    names = draw(
        st.sampled_from([("unit",), ("unit", "unit"), ("other", "unit"), ("unit",) * 3, ("other", "unit", "unit")])
    )
    link = Link(draw(st.sampled_from([None, 10**9, 5 * 10**8])), draw(st.integers(0, 3)))
    overlap = Overlap(draw(st.sampled_from(["none", "copy", "stream"])))
    cluster = Cluster("small", kinds, (Node(names, link),), overlap=overlap)
    options = draw(
        st.sampled_from(
            [
                {},
                {},
                {},
                {"replicas": (1,)},
                {"recompute": "none"},
                {"recompute": "full"},
                {"zero": (0,)},
                {"zero": (1,)},
            ]
        )
    )
    return model, cluster, Job(batch=4, optimizer=draw(st.sampled_from(["sgd", "adam"])), **options)


def shapes(cluster: Cluster, job: Job, layers: int, micro_batches: int) -> Iterator[tuple[tuple[Device, ...], ...]]:
    """Yield all device groups of like devices, taken in order per kind, with at most one replica per micro-batch."""
    names = sorted({device.kind.name for device in cluster.devices})
    stage = [(name, width) for name in names for width in range(1, micro_batches + 1)]
    for depth in range(1, min(layers, len(cluster.devices)) + 1):
        for modes in product(stage, repeat=depth):
            rows = {name: [device for device in cluster.devices if device.kind.name == name] for name in names}
            groups = []
            for name, width in modes:
                groups.append(tuple(rows[name][:width]))
                del rows[name][:width]
            widths = [width for _, width in modes]
            if [len(group) for group in groups] == widths and (not job.replicas or set(widths) <= set(job.replicas)):
                yield tuple(groups)


def orders(
    overlap: Overlap, replicas: tuple[int, ...], micro_batches: int
) -> Iterator[tuple[Schedule, tuple[int, ...]]]:
    """Yield all schedules of the space, with the micro-batches that a replica of each stage holds."""
    for family in FAMILIES.values():
        if overlap in family.suits:
            yield family.write(replicas, micro_batches), family.in_flight(replicas, micro_batches)
    if overlap is Overlap.COPY:
        least = FAMILIES["1f1b-sno"].in_flight(replicas, micro_batches)
        most = [min(-(-(r + 3 * sum(replicas[s + 1 :])) // r), -(-micro_batches // r)) for s, r in enumerate(replicas)]
        for counts in product(*(range(a, b + 1) for a, b in zip(least, most, strict=True))):
            excess = [k * r - sum(replicas[s:]) for s, (k, r) in enumerate(zip(counts, replicas, strict=True))]
            if all(
                counts[t] == least[t] or excess[s] >= excess[t] or counts[s] * replicas[s] >= micro_batches
                for s, t in combinations(range(len(replicas)), 2)
            ):
                yield one_forward_one_backward(replicas, micro_batches, counts), counts


def recomputed(chain: Chain, s: int, a: int, b: int, flight: int, lanes: int) -> tuple[int, ...] | None:
    """The layers of least forward time whose recomputation lets the stage fit, over all subsets; None if none does."""
    best = None
    copies = sum(int(w.resident[s]) for w in chain.shared if has_copy(w.layers, range(a, b)))
    subsets = joined.from_iterable(combinations(range(a, b), size) for size in range(b - a + 1))
    for again in subsets if chain.recomputable.any() else [()]:
        held = sum(int(chain.output[s, i] if i in again else chain.saved[s, i]) for i in range(a, b))
        received = int(chain.boundary[s - 1, a - 1]) if a else 0
        peak = max(int((chain.again if i in again else chain.workspace)[s, i]) for i in range(a, b))
        peak += (lanes - 1) * max(int(chain.forward_workspace[s, i]) for i in range(a, b))
        need = int(chain.resident[s, a:b].sum()) + copies + flight * (held + received) + peak + int(chain.runtime[s])
        cost = sum(int(chain.forward[s, i]) for i in again)
        if need <= chain.limit[s] and (best is None or cost < best[0]):
            best = cost, again
    return None if best is None else best[1]


def has_copy(layers: tuple[int, ...], span: range) -> bool:
    """Return True if a stage holds some of the layers that share weights, but not the first."""
    return layers[0] not in span and any(layer in span for layer in layers)


def apart(layers: tuple[int, ...], spans: list[range]) -> set[int]:
    """The stages that hold some of the layers, if these are several."""
    found = {s for s, span in enumerate(spans) if any(layer in span for layer in layers)}
    return found if len(found) > 1 else set()


def summing(schedule: Schedule, stages: set[int]) -> Schedule:
    """The schedule with a reduction before these stages' updates."""
    lines = []
    for line in schedule.as_text():
        words = line.split()
        for s in stages:
            if f"{s}U" in words and f"{s}R" not in words:
                words.insert(words.index(f"{s}U"), f"{s}R")
        lines.append(" ".join(words))
    return Schedule.from_text(schedule.family, lines, schedule.two_lanes)


def exhaustive(model: Model, cluster: Cluster, job: Job, every: Shapes = shapes) -> int | None:
    """The least simulated step time over all device groups, sizes, orders and partitions that fit; None if none."""
    values = [exhaustive_at(level, model, cluster, job, every) for level in Spaces(model, cluster, job).levels]
    return min((value for value in values if value is not None), default=None)


def exhaustive_at(level: int, model: Model, cluster: Cluster, job: Job, every: Shapes) -> int | None:
    """The same at one level of ZeRO; from level 2 on, all stages have equally many replicas, which take equal turns.

    Layers that share weights are on one stage then.
    """
    n, best, at_level = len(model.layers), None, replace(job, zero=(level,))
    for size in sorted({profile.micro_batch for profile in model.profiles}):
        count = job.batch // size
        for groups in every(cluster, job, n, count):
            widths = {len(group) for group in groups}
            alike = len(widths) == 1 and not count % len(groups[0]) and not (model.ties and len(groups) > 1)
            if level >= SHARDED and not alike:
                continue
            chain = price(model, cluster, groups, size, at_level)
            for schedule, flights in orders(cluster.overlap, chain.replicas, count):
                if level >= SHARDED and schedule.two_lanes:
                    continue
                lanes = 2 if schedule.two_lanes else 1
                for inner in combinations(range(1, n), len(groups) - 1):
                    spans = list(enumerate(pairwise((0, *inner, n))))
                    again = [recomputed(chain, s, a, b, flights[s], lanes) for s, (a, b) in spans]
                    if None in again:
                        continue
                    pipeline = assemble(chain, cluster, (0, *inner, n), again)
                    sums = {s for w in chain.shared for s in apart(w.layers, [range(a, b) for _, (a, b) in spans])}
                    makespan = simulate(summing(schedule, sums), pipeline).makespan
                    best = makespan if best is None else min(best, makespan)
    return best


def agrees(question: Question, backend: str = "cpsat", few: int = space.FEW) -> None:
    """Check that value and bound equal the exhaustive optimum, or that both find no plan.

    More device groups than ``few`` are bounded together.
    """
    model, cluster, job = question
    optimum = exhaustive(model, cluster, job)
    with pytest.MonkeyPatch.context() as patch:
        if few < space.FEW:
            patch.setattr(space, "FEW", few)
            patch.setattr(space, "PAIRS", 0)
        if optimum is None:
            with pytest.raises(InfeasibleError, match=r"What (would fit|it takes)"):
                solve(model, cluster, job=job, backend=backend)
            return
        result = solve(model, cluster, job=job, backend=backend)
    assert (result.value, result.bound, result.status) == (optimum, optimum, Status.OPTIMAL)
    limits = np.array(result.plan.pipeline.limits)
    assert (np.array(result.timeline.peaks) <= limits).all()


def brackets(question: Question, few: int, every: Shapes = shapes) -> None:
    """Check that the exhaustive optimum lies between bound and value, or that both find no plan."""
    model, cluster, job = question
    optimum = exhaustive(model, cluster, job, every)
    with pytest.MonkeyPatch.context() as patch:
        if few < space.FEW:
            patch.setattr(space, "FEW", few)
            patch.setattr(space, "PAIRS", 0)
        if optimum is None:
            with pytest.raises(InfeasibleError):
                solve(model, cluster, job=job)
            return
        result = solve(model, cluster, job=job)
    assert result.bound <= optimum
    if result.value < optimum:  # a heuristic's plan, on a placement that is not searched
        listed = every(cluster, job, len(model.layers), result.plan.micro_batches)
        devices = tuple(stage.devices for stage in result.plan.stages)
        assert all(tuple(tuple(device.index for device in group) for group in groups) != devices for groups in listed)


@given(questions())
@examples(40, 500)
@pytest.mark.parametrize("backend", SOLVERS)
def test_solve_finds_and_proves_the_best_plan(backend: str, question: Question) -> None:
    """The answer is the best over replicas, device groups and orders, micro-batches, schedules, cuts, recomputation."""
    agrees(question, backend)


@given(questions())
@settings(max_examples=40, deadline=None)
def test_a_tree_of_device_groups_misses_none(question: Question) -> None:
    """Device groups that are bounded together by the allocation programme give the same answer and proof."""
    agrees(question, few=0)


@given(questions())
@settings(max_examples=30, deadline=None)
def test_no_heuristic_beats_the_answer_and_bounds_are_bounds(question: Question) -> None:
    """Stopped early, the answer is no worse than any heuristic's plan in the space; its bound holds."""
    model, cluster, job = question
    optimum = exhaustive(model, cluster, job)
    if optimum is None:
        return
    result = solve(model, cluster, job=job, backend="exact", gap=0.2)
    assert result.bound <= optimum <= result.value
    inside = [row for row in result.baselines.values() if not row.outside]
    assert all(row.value is None or row.value >= result.value for row in inside)


@given(questions(tied="ends"))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("few", [space.FEW, rarely(0)])
def test_tied_ends_are_decided_and_proved(few: int, question: Question) -> None:
    """Where first and last layer share weights, together or split, the answer is the best and is proved to be."""
    agrees(question, few=few)


@given(questions(tied="any"))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("few", [rarely(space.FEW), 0])
def test_any_ties_are_bounded(few: int, question: Question) -> None:
    """Whichever two or three layers share weights, no bound exceeds the best plan, and no answer is better than it."""
    brackets(question, few)


@st.composite
def questions_of_sharded_stages(draw: st.DrawFn) -> Question:
    """Four devices, pairs of which share stages, gradients or parameters; layer by layer over slow links."""
    model, cluster, job = draw(questions(tied="none"))
    names = ("unit",) * 4
    link = replace(cluster.nodes[0].link, unit_overhead=draw(st.integers(0, 4)))
    memory = draw(st.sampled_from([None, None, 40, 60, 90]))
    kinds = {"unit": DeviceKind("unit", memory=memory)}
    cluster = replace(cluster, kinds=kinds, nodes=(Node(names, link),))
    return model, cluster, replace(job, replicas=(2,), zero=(draw(st.sampled_from([2, 3])),))


@given(questions_of_sharded_stages())
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("few", [space.FEW, rarely(0)])
def test_sharded_stages_are_decided_and_proved(few: int, question: Question) -> None:
    """One stage or two of two replicas each, whatever they wait for: the answer is the best and is proved to be."""
    agrees(question, few=few)


@st.composite
def questions_on_nodes(draw: st.DrawFn) -> Question:
    """Up to three devices in two nodes, with a network that is slower than the links inside."""
    model, cluster, job = draw(questions())
    names = tuple(device.kind.name for device in cluster.devices)
    assume(len(names) > 1)
    link = cluster.nodes[0].link
    slow = Link(draw(st.sampled_from([2 * 10**8, 4 * 10**8])), link.latency + draw(st.integers(0, 3)))
    first = draw(st.integers(1, len(names) - 1))
    nodes = (Node(names[:first], link), Node(names[first:], link))
    assume(cluster.overlap is not Overlap.STREAM or len(set(names)) == 1)
    return model, replace(cluster, nodes=nodes, network=slow), job


@given(questions_on_nodes())
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("few", [rarely(space.FEW), 0])
def test_bounds_of_nodes_are_bounds(few: int, question: Question) -> None:
    """Whatever lies in which node, no bound exceeds the best plan, and no answer is better than it.

    Where device groups are many, which device takes which stage is the planner's own rule.
    """
    brackets(question, few, every=every_device_group if few else all_device_groups)
