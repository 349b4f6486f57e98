"""Back ends of the graph partition problem against an exhaustive search that shares no code with them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import exhaustive, graph_partitions, judge
from helpers.happening import happens
from pipeplan_formulations import graph
from pipeplan_formulations.common.clock import no_limit
from pipeplan_formulations.common.mip.cbc import CBC
from pipeplan_formulations.common.mip.cpsat import CPSAT
from pipeplan_formulations.common.mip.model import MipSolver
from pipeplan_formulations.common.report import Limits, Report, Status
from pipeplan_formulations.common.scaling import Scale
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.graph import GraphPartition
from pipeplan_formulations.graph.bounds import lower_bound
from pipeplan_formulations.graph.by_places import Multipliers, Relaxation, relaxed
from pipeplan_formulations.graph.by_rows import search
from pipeplan_formulations.graph.downsets import all_downsets
from pipeplan_formulations.graph.first import first_plans
from pipeplan_formulations.graph.fractions import divisible
from pipeplan_formulations.graph.prefix import prefix_model
from pipeplan_formulations.graph.relayed import Relayed
from pipeplan_formulations.graph.warm import open_bracket, solve_divided

LIMITS = Limits(time=60, workers=1)


def cbc_gap(problem: GraphPartition) -> float:
    """Tolerance of CBC's bound: its accuracy, and more if bytes are rounded to whole time units."""
    rounded = any(line.divisor > 1 for mode in problem.modes for line in mode.lines)
    return 1e-4 if rounded else 1e-6


def check(report: Report[graph.Stages], problem: GraphPartition, best: int | None, gap: float = 0.0) -> None:
    """Check that the report agrees with exhaustive search, and its value with its solution."""
    if best is None:
        assert (report.status, report.solution) == (Status.INFEASIBLE, None)
        return
    assert report.solution is not None
    assert report.objective == best == judge(problem, report.solution) == problem.evaluate(report.solution)
    assert problem.feasible(report.solution)
    assert best * (1 - gap) <= report.bound <= best


@given(graph_partitions())
@settings(max_examples=80, deadline=None)
def test_dynamic_programme_and_cpsat_equal_exhaustive_search(problem: GraphPartition) -> None:
    """The dynamic programme over downsets and CP-SAT both find and prove the optimum; the free bound is below it."""
    best = exhaustive(problem)
    check(graph.solve(problem, LIMITS, backend="exact"), problem, best)
    check(graph.solve(problem, LIMITS, backend="cpsat"), problem, best)
    check(cold(CPSAT, problem), problem, best)
    if best is not None:
        assert lower_bound(problem) <= best


@given(graph_partitions())
@settings(max_examples=60, deadline=None)
def test_cbc_equals_exhaustive_search(problem: GraphPartition) -> None:
    """CBC without a start finds the optimum and proves it up to its accuracy."""
    check(cold(CBC, problem), problem, exhaustive(problem), cbc_gap(problem))


@given(graph_partitions())
@settings(max_examples=80, deadline=None)
def test_the_programme_admits_every_optimum(problem: GraphPartition) -> None:
    """An optimum satisfies all rows and clauses of the model that excludes anything worse, and of that of its modes."""
    known = graph.solve(problem, LIMITS, backend="exact")
    if known.solution is None or known.objective is None:
        return
    for shape in ((), [stage.mode for stage in known.solution]):
        model = prefix_model(problem, Scale(), 0, known.objective, known.objective, shape)
        point, rows = model.point(known.solution, known.objective), model.rows
        assert all(low <= value <= high for low, value, high in zip(rows.lows, point, rows.highs, strict=True))
        assert all(any(point[v] if v >= 0 else not point[~v] for v in clause) for clause in rows.clauses)
        for row in rows.rows:
            if all(point[v] if v >= 0 else not point[~v] for v in row.when):
                value = row.expression.value(point)
                assert value == 0 if row.equal else value >= 0
        assert model.read([float(x) for x in point]) == known.solution


@pytest.mark.happens(0.3)
@given(graph_partitions(), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_first_plans_are_solutions(problem: GraphPartition, seed: int) -> None:
    """Every solution along orders is feasible; without memory limits and depths, equal modes have one."""
    bracket = open_bracket(problem, replace(LIMITS, seed=seed))
    first_plans(problem, bracket)
    best = exhaustive(problem)
    if happens(bracket.best is not None):
        assert best is not None
        assert best <= judge(problem, bracket.best) == bracket.value
    elif all(mode.limit >= UNLIMITED for mode in problem.modes):
        assert best is None or len(problem.modes) > 1 or problem.depths, "one stage of all groups is a solution"


def relaying(problem: GraphPartition) -> GraphPartition:
    """The problem with relayed stars, of those that lead forward."""
    kept = np.array([problem.forward(star) for star in problem.stars], np.bool_)
    stars = tuple(star for star, forward in zip(problem.stars, kept, strict=True) if forward)
    modes = tuple(
        replace(
            mode,
            received=mode.received[kept],
            lines=tuple(replace(line, leave=line.leave[kept], enter=line.enter[kept]) for line in mode.lines),
        )
        for mode in problem.modes
    )
    return replace(problem, route="relay", stars=stars, modes=modes)


def bare(problem: GraphPartition) -> GraphPartition:
    """The problem without memory, depths, borders of pairs, bases, and groups that a mode cannot run."""
    modes = tuple(
        replace(
            mode,
            limit=UNLIMITED,
            possible=np.ones_like(mode.possible),
            lines=tuple(replace(line, base=0) for line in mode.lines),
        )
        for mode in problem.modes
    )
    return replace(problem, modes=modes, depths=(), borders=(), pairs=None)


@pytest.mark.happens(0.3)
@given(graph_partitions(groups=6))
@settings(max_examples=100, deadline=None)
def test_borders_of_all_downsets_exclude_no_optimum(problem: GraphPartition) -> None:
    """The optimum is a target that is reached; where nothing is left out, no smaller one is."""
    problem = problem if problem.route == "relay" else relaying(problem)
    for own in (problem, bare(problem)):
        best, programme = exhaustive(own), Relayed(own, all_downsets(own, 10**6), no_limit())
        if happens(best is not None):
            assert programme.reach(best) is not None
    if happens(len(problem.pools) == 1 and problem.variants == 1):
        assert judge(own, programme.reach(best)) == best
        assert programme.reach(best - 1) is None


def with_leaner_variants(problem: GraphPartition, seed: int) -> GraphPartition:
    """The problem with one line in each mode and two variants, of which the slower one mostly holds fewer bytes."""
    draw, modes = np.random.default_rng(seed), []
    for mode in problem.modes:
        line, held = mode.lines[0], mode.held[0]
        time = np.stack([line.time[0], line.time[0] + draw.integers(0, 10, problem.groups)])
        modes.append(
            replace(
                mode,
                lines=(replace(line, time=time),),
                fixed=np.stack([mode.fixed[0]] * 2),
                held=np.stack([held, np.maximum(held - draw.integers(-1, 6, problem.groups), 0)]),
                peak=np.stack([mode.peak[0], mode.peak[0] + draw.integers(0, 9, problem.groups)]),
                possible=np.stack([mode.possible[0], draw.random(problem.groups) < 0.8]),
            )
        )
    return replace(problem, modes=tuple(modes))


@given(graph_partitions(groups=5), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=100, deadline=None)
def test_variants_in_fractions_end_at_the_optimum(problem: GraphPartition, seed: int, known: bool) -> None:
    """Without a solution and from the best one on, the bound is the optimum of exhaustive search, and a plan has it."""
    problem = with_leaner_variants(problem, seed)
    assert divisible(problem)
    best = exhaustive(problem)
    if best is None:
        return
    hint = graph.solve(problem, LIMITS, backend="exact").solution if known else None
    bracket = open_bracket(problem, LIMITS, hint=hint)
    solve_divided(problem, bracket, all_downsets(problem, 1000) or [], 60.0)
    assert bracket.best is not None
    assert bracket.low == best == judge(problem, bracket.best) == bracket.value


@given(graph_partitions(), st.floats(1.0, 2.0), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_relaxation_by_places_is_a_bound(problem: GraphPartition, factor: float, seed: int) -> None:
    """No solution of at most the ceiling is below the bound, whatever the multipliers."""
    best = exhaustive(problem)
    if best is None:
        return
    ceiling = int(best * factor) + 1
    assert relaxed(problem, ceiling, 10.0) <= best
    relaxation, draw = Relaxation(problem, best), np.random.default_rng(seed)
    shapes = relaxation.places, relaxation.places, (len(problem.edges), relaxation.places - 1)
    for _ in range(20):
        rows = (draw.random(shape) * (draw.random(shape) < 0.5) * 10.0 ** draw.integers(-2, 3) for shape in shapes)
        assert relaxation.bound(Multipliers(*rows)) <= best


@pytest.mark.slow
@given(graph_partitions())
@settings(max_examples=500, deadline=None)
def test_all_backends_equal_exhaustive_search_on_many_instances(problem: GraphPartition) -> None:
    """The dynamic programme, CP-SAT and CBC agree with exhaustive search, with and without a warm start."""
    best = exhaustive(problem)
    for backend in graph.BACKENDS:
        check(
            graph.solve(problem, LIMITS, backend=backend), problem, best, cbc_gap(problem) if backend == "cbc" else 0.0
        )
    check(cold(CPSAT, problem), problem, best)
    check(cold(CBC, problem), problem, best, cbc_gap(problem))


@given(graph_partitions())
@settings(max_examples=60, deadline=None)
def test_a_hint_is_never_made_worse(problem: GraphPartition) -> None:
    """Without time the result is the hint with a bound of at most the optimum."""
    known = graph.solve(problem, LIMITS, backend="exact")
    if known.solution is None or known.objective is None:
        return
    report = graph.solve(problem, Limits(time=0.0), hint=known.solution)
    assert report.objective == known.objective
    assert report.bound <= known.objective


def cold(solver: MipSolver, problem: GraphPartition) -> Report[graph.Stages]:
    """A solver's own result without start and bound is correct: a start can hide a wrong row or a wrong proof."""
    bracket = open_bracket(problem, LIMITS)
    bracket.low = 0
    return bracket.report(search(problem, bracket, solver), "cold", "")


@given(graph_partitions(groups=16, stages=6))
@settings(max_examples=15, deadline=None)
def test_the_dynamic_programme_and_cpsat_agree_on_larger_graphs(problem: GraphPartition) -> None:
    """On instances too large to enumerate, two back ends that share no model prove the same value."""
    one, other = (graph.solve(problem, LIMITS, backend=backend) for backend in ("exact", "cpsat"))
    assert {one.status, other.status} <= {Status.OPTIMAL, Status.INFEASIBLE}
    assert (one.status, one.objective) == (other.status, other.objective)
    if one.solution is not None and other.solution is not None:
        assert judge(problem, one.solution) == judge(problem, other.solution) == one.objective
