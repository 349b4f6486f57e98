"""The allocation problem's value against the simulator: it bounds every schedule on every layout of the units."""

from dataclasses import replace
from itertools import islice, pairwise
from math import lcm

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.allocations import brute_force, chain_allocations, every_allocation, gathers, sums
from helpers.many_micro_batches import many_micro_batches
from helpers.partitions import ROLES, without_roles
from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.schedule import Schedule
from pipeplan.core.shared_weights import with_reductions
from pipeplan.schedules import FAMILIES, first_deadlock, one_forward_one_backward
from pipeplan.simulate import period, simulate
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import Allocation, ChainAllocation, FurthestEnd
from pipeplan_formulations.allocation.joined import joined, together
from pipeplan_formulations.allocation.place import Place
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits

FLIGHTS = {"sno": "1f1b-sno", "so": "1f1b-so", "fbp": "fbp-as", "full": "gpipe"}
"""The family that holds as many micro-batches as each rule for k allows."""


def with_real_links(problem: ChainAllocation) -> ChainAllocation:
    """Hops that leave a node are the slower ones, and a stage of one device has nothing to reduce."""
    alone = np.array([width * problem.unit == 1 for width in problem.widths])
    return replace(
        problem,
        reduce=np.where(alone[None, :, None], 0, problem.reduce),
        send=np.maximum.accumulate(problem.send, axis=2),
        send_back=np.maximum.accumulate(problem.send_back, axis=2),
        latency=np.maximum.accumulate(problem.latency, axis=2),
    )


def laid_out(problem: ChainAllocation, stages: Allocation, shared: bool) -> Pipeline:
    """The units of a pool in a row from the last stage back, nodes filled one after the other.

    Replicas of several units are where the first of these is; hops between kinds leave a node.

    ::

        units of a pool, from the end   0   1 │ 2   3 │ 4        nodes of two units
                                       last   │ middle│ first    stages of one, two and two units: the middle one
                                                                 has a unit in either node
    """
    nodes: list[list[tuple[int, int]]] = []  # for each stage, the node of each replica
    used = [0] * len(problem.units)
    for place in reversed(stages):
        pool, takes = int(problem.pool[place.kind]), int(problem.takes[place.kind])
        units = range(used[pool], used[pool] + place.width * takes, takes)
        used[pool] = units.stop
        nodes.append([(pool, u // int(problem.node[pool])) for u in reversed(units) for _ in range(problem.unit)])
    nodes.reverse()
    first = np.cumsum([0, *map(len, nodes)])

    def ways(table: np.ndarray, back: bool) -> tuple[tuple[Transfer, ...], ...]:
        found = []
        for s, (a, b) in enumerate(pairwise(nodes)):
            kinds, cut = (stages[s].kind, stages[s + 1].kind), stages[s].end - 1
            hops = []
            for m in range(lcm(len(a), len(b))):
                x, y = m % len(a), m % len(b)
                leaves = int(kinds[0] != kinds[1] or a[x] != b[y])
                resources: tuple[str, ...] = (f"{s} {x} {y} {back}",)
                if shared and leaves:
                    source, target = (b[y], a[x]) if back else (a[x], b[y])
                    resources = (f"{source} out", f"{target} in")
                hops.append(Transfer(1, int(table[kinds][leaves][cut]), int(problem.latency[kinds][leaves]), resources))
            found.append(tuple(hops))
        return tuple(found)

    return Pipeline(
        stages=tuple(_stage(problem, stages, s) for s in range(len(stages))),
        placement=tuple(tuple(range(int(first[s]), int(first[s + 1]))) for s in range(len(stages))),
        transfers=ways(problem.send, False),
        returns=ways(problem.send_back, True),
        overlap=Overlap(problem.overlap),
        tied=((0, len(stages) - 1),) if problem.joint.any() else (),
        runtime=(0,) * int(first[-1]),
        limits=(2**62,) * int(first[-1]),
    )


def _stage(problem: ChainAllocation, stages: Allocation, s: int) -> Stage:
    place = stages[s]
    span, w = slice(place.start, place.end), problem.widths.index(place.width)
    again = problem.recompute(stages)[s]
    assert again is not None
    return Stage(
        forward=int(problem.forward[place.kind, span].sum()),
        backward=int(problem.backward[place.kind, span].sum() + sum(problem.forward[place.kind, i] for i in again)),
        update=int(problem.update[place.kind, w, span].sum()),
        reduce=sums(problem, place) + int(problem.joint[place.kind, w]) * (place.end == problem.layers),
        gather=gathers(problem, place),
    )


@given(chain_allocations(), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=100, deadline=None)
def test_no_schedule_ends_before_the_value(problem: ChainAllocation, seed: int, shared: bool) -> None:
    """Every family, with the problem's k and warm-up, on separate links or shared cards; also in a long run."""
    problem = played(problem)
    stages = drawn(problem, seed)
    schedule, pipeline = as_run(problem, stages, shared)
    assert problem.evaluate(stages) <= simulate(schedule, pipeline).makespan
    assert replace(problem, objective="period").evaluate(stages) <= period(schedule, pipeline)


@given(many_micro_batches(), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_schedule_of_many_micro_batches_ends_before_the_value(problem, seed: int, shared: bool) -> None:
    """Cycles between stages, where few of many micro-batches are in flight."""
    problem = played(problem)
    stages = drawn(problem, seed)
    assert problem.evaluate(stages) <= makespan(problem, stages, shared)


@given(chain_allocations(), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=100, deadline=None)
def test_gpipe_does_not_end_before_the_value_of_sno(problem: ChainAllocation, seed: int, shared: bool) -> None:
    """On stages of any widths GPipe takes at least the value of SNO, with no more recomputation."""
    problem = played(replace(problem, in_flight_rule="sno", alternating=True, two_trips=False, phases=False))
    stages = drawn(problem, seed)
    pipeline = laid_out(problem, stages, shared)
    schedule = with_reductions(FAMILIES["gpipe"].write(pipeline.replicas, problem.micro_batches), pipeline.tied)
    assert problem.evaluate(stages) <= simulate(schedule, pipeline).makespan


def test_a_slow_first_stage_waits_for_two_trips() -> None:
    """With few micro-batches in flight the step is exactly two round trips and the alternation between them."""
    times = np.array([[6, 5, 5, 5]])
    problem = ChainAllocation(
        forward=times,
        backward=times,
        saved=np.zeros(4, np.int64),
        output=np.zeros(4, np.int64),
        recomputable=np.zeros(4, np.bool_),
        limit=np.array([2**40]),
        units=np.array([4]),
        node=np.array([4]),
        micro_batches=12,
        two_trips=True,
    )
    stages = tuple(Place(s, s + 1, 0, 1) for s in range(4))
    assert replace(problem, two_trips=False).evaluate(stages) == 156
    assert problem.evaluate(stages) == makespan(problem, stages, shared=False) == 168


def test_unlike_replicas_wait_for_each_other() -> None:
    """Balanced stages on 2, 3 and 1 devices: the first two hold 6 micro-batches each, so a cycle of 10 advances by 3.

    The step is a first trip, 17 such cycles, one alternation, and a last trip.
    """
    times = np.array([[2, 3, 1]])
    problem = ChainAllocation(
        forward=times,
        backward=times,
        limit=np.array([2**40]),
        units=np.array([6]),
        node=np.array([6]),
        micro_batches=60,
        widths=(1, 2, 3),
        two_trips=True,
    )
    stages = Place(0, 1, 0, 2), Place(1, 2, 0, 3), Place(2, 3, 0, 1)
    assert problem.in_flight_counts(stages) == [3, 2, 1]
    assert problem.evaluate(stages) == 12 + 17 * 10 + 4 + 12 <= makespan(problem, stages, shared=False) < 205


def test_a_later_stage_waits_for_its_gathers() -> None:
    """It begins behind them or behind the stages before, whichever is later; so says every programme."""
    problem = ChainAllocation(
        forward=np.array([[6, 2]]),
        backward=np.array([[6, 3]]),
        gather=np.array([[[0, 20]]]),
        reduce=np.array([[[0, 20]]]),
        saved=np.zeros(2, np.int64),
        output=np.zeros(2, np.int64),
        recomputable=np.zeros(2, np.bool_),
        limit=np.array([2**40]),
        units=np.array([2]),
        node=np.array([2]),
        micro_batches=4,
        unit=2,
    )
    stages = Place(0, 1, 0, 1), Place(1, 2, 0, 1)
    assert problem.evaluate(stages) == makespan(problem, stages, shared=False) == 20 + 2 * 5 + 20
    assert replace(problem, gather=0 * problem.gather).evaluate(stages) == 6 + 2 * 5 + 20
    assert allocation.solve(problem, Limits(60)).bound == 50
    assert FurthestEnd(problem, Clock(Limits(60))).lower_bound(0, problem.largest) == 50


def test_the_last_update_waits_for_the_first_stage_where_both_hold_the_same_weights() -> None:
    """The last stage's sums and update end the step, behind the first stage's last backward; not so in a long run."""
    problem = ChainAllocation(
        forward=np.array([[2, 2]]),
        backward=np.array([[3, 3]]),
        update=np.array([[[1, 7]]]),
        limit=np.array([2**40]),
        units=np.array([2]),
        node=np.array([2]),
        micro_batches=2,
        joint=np.array([[4]]),
    )
    stages = (Place(0, 1, 0, 1), Place(1, 2, 0, 1))
    assert problem.evaluate(stages) == makespan(problem, stages, shared=False) == 15 + 4 + 7
    assert brute_force(problem) == allocation.solve(problem, Limits(time=30)).objective
    assert replace(problem, objective="period").evaluate(stages) < 15 + 4 + 7


def played(problem: ChainAllocation) -> ChainAllocation:
    """The problem in a form that some family can run."""
    two_lanes = problem.in_flight_rule == "fbp"
    assume(not (two_lanes and problem.overlap == "none"))
    return replace(
        with_real_links(without_roles(problem)),
        objective="step",
        alternating=problem.alternating and not two_lanes,
        phases=problem.phases and problem.in_flight_rule == "full",
        first=(),
        last=(),
    )


def drawn(problem: ChainAllocation, seed: int) -> Allocation:
    """A drawn allocation that fits."""
    every = list(islice(every_allocation(problem), 500))
    assume(every)
    stages = every[seed % len(every)]
    assume(problem.feasible(stages) and not (problem.joint.any() and len(stages) == 1))
    return stages


def makespan(problem: ChainAllocation, stages: Allocation, shared: bool) -> int:
    """Makespan of the family with the problem's in-flight counts."""
    return simulate(*as_run(problem, stages, shared)).makespan


def as_run(problem: ChainAllocation, stages: Allocation, shared: bool) -> tuple[Schedule, Pipeline]:
    """The family with the problem's in-flight counts, and the pipeline."""
    pipeline = laid_out(problem, stages, shared)
    held = tuple(problem.in_flight_counts(stages))
    if problem.in_flight_rule == "non_increasing":
        assert first_deadlock(pipeline.replicas, held) is None
        schedule = one_forward_one_backward(pipeline.replicas, problem.micro_batches, held)
    else:
        family = FAMILIES[FLIGHTS[problem.in_flight_rule]]
        schedule = family.write(pipeline.replicas, problem.micro_batches)
        assert held == family.in_flight(pipeline.replicas, problem.micro_batches)
    return with_reductions(schedule, pipeline.tied), pipeline


@given(chain_allocations(), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_a_bottleneck_is_reached_by_no_long_step(problem: ChainAllocation, seed: int) -> None:
    """A step of very many micro-batches takes at least the bottleneck for each of them."""
    roomy = np.full_like(problem.limit, 2**40)
    problem = replace(
        with_real_links(without_roles(problem)),
        objective="bottleneck",
        in_flight_rule="full",
        first=(),
        last=(),
        limit=roomy,
    )
    stages = drawn(problem, seed)
    replicas = [place.width * problem.unit for place in stages]
    many = 12 * lcm(*replicas)
    problem = replace(problem, micro_batches=many, samples=None)
    pipeline = laid_out(problem, stages, shared=False)
    schedule = with_reductions(FAMILIES["1f1b-so"].write(pipeline.replicas, many), pipeline.tied)
    assert (problem.evaluate(stages) - 1) * many < simulate(schedule, pipeline).makespan  # it is rounded up


@given(chain_allocations(layers=4))
@settings(max_examples=50, deadline=None)
def test_joined_kinds_bound_each_of_them(problem: ChainAllocation) -> None:
    """Nothing takes longer or fits less where all kinds of a pool are one that has the least of all."""
    problem = replace(with_real_links(problem), takes=np.ones_like(problem.takes), first=(), last=())
    pools = range(len(problem.units))
    groups = [tuple(np.flatnonzero(problem.pool == pool).tolist()) for pool in pools]
    every = joined(problem, groups)
    for again, group in zip(every.again, groups, strict=True):
        assert (again <= problem.again[list(group)]).all()
    best = brute_force(problem)
    assume(best is not None and len(groups) < problem.kinds)
    report = allocation.solve(every, Limits(time=30))
    assert report.objective is not None
    assert report.objective <= best


@given(chain_allocations(layers=4), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_problems_together_bound_each_of_them(problem: ChainAllocation, seed: int) -> None:
    """Nothing takes longer or fits less in one problem that has the least of the costs of two."""
    problem, draw = replace(with_real_links(problem), first=(), last=()), np.random.default_rng(seed)
    rows = ("forward", "backward", "update", "reduce", "reduce_base", "resident", "saved", "workspace", "send")
    drawn = {name: getattr(problem, name) * draw.integers(0, 3, getattr(problem, name).shape) for name in rows}
    drawn |= {"backward": np.maximum(drawn["backward"], problem.hides), "send": 2 * problem.send}
    drawn |= {"forward": np.maximum(drawn["forward"], problem.gather_hides)}
    for role in ROLES if problem.apart else ():
        for name in ("forward", "backward"):
            table = getattr(problem, f"{role}_{name}")
            drawn[f"{role}_{name}"] = None if table is None else np.minimum(table, drawn[name])
    other = replace(problem, **drawn)
    values = [best for best in map(brute_force, (problem, other)) if best is not None]
    assume(values)
    report = allocation.solve(together((problem, other)), Limits(time=30))
    assert report.objective is not None
    assert report.objective <= min(values)
