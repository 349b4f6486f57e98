"""Optima of CP-SAT, the exact search and all permutations agree; bounds are valid; results are schedules.

A quarter of the instances are plain; the others have devices with two lanes, tensors on link resources, or both.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest

from helpers import exhaustive_orders
from helpers.pipeline_schedules import every_order, random_ways
from helpers.quick import part, rarely
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.report import Limits, Report, Status, Stop
from pipeplan_formulations.schedule import Orders, PipelineSchedule, cpsat, evaluate, lower_bound
from pipeplan_formulations.schedule import russian_dolls as russian_dolls
from pipeplan_formulations.schedule.bounds import Spans, Table, Windows, windows
from pipeplan_formulations.schedule.russian_dolls import decide, without_later_weights
from pipeplan_formulations.schedule.start import scaled, serial

LIMITS = Limits(time=60, workers=1)
WAITING = (141, 194, 439)
"""Rare instances whose optimum would be lower if a device could run operations while it waits for a link."""


@pytest.fixture(params=[cpsat.NARROW, 0.0], ids=["narrow", "wide"])
def unaided(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give CP-SAT the worst orders as start and no bound, so that its proofs are its own.

    Small instances are solved by CP-SAT's narrow search just above the bound; without it by its search from the start.
    """
    monkeypatch.setattr(cpsat, "NARROW", request.param)

    def worst(problem: PipelineSchedule, bracket: Bracket[Orders], hint: Orders | None, seconds: float) -> None:
        bracket.offer(serial(problem))

    monkeypatch.setattr(cpsat, "start", worst)
    monkeypatch.setattr(cpsat, "lower_bound", lambda problem, known=None: 0)


@cache
def exhausted(problem: PipelineSchedule) -> Report[Orders]:
    """The exact search's report, which several tests here ask for."""
    return exhaustive_orders.solve(problem, LIMITS)


def agree(seed: int) -> None:
    """Check that both back ends agree on one instance, on the way too, and that their values are correct."""
    problem = random_ways(seed)
    oracle = exhausted(problem)
    assert oracle.status is (Status.OPTIMAL if problem.possible else Status.INFEASIBLE), seed
    told: list[tuple[int | None, int]] = []
    report = cpsat.solve(problem, LIMITS, on_progress=lambda *now: told.append(now))
    assert all(bound <= (oracle.objective or 0) <= (value or math.inf) for value, bound in told), seed
    assert (report.status, report.objective) == (oracle.status, oracle.objective), seed
    if report.solution is not None:
        assert evaluate(problem, report.solution) == oracle.objective, seed


def bounded(seed: int) -> None:
    """Check that the lower bound of one instance is at most the optimum."""
    problem = random_ways(seed)
    oracle = exhausted(problem)
    if oracle.objective is not None:
        assert lower_bound(problem) <= oracle.objective, seed


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("unaided")
@pytest.mark.parametrize("seeds", [(*part(range(60)), *WAITING), rarely(range(1000, 1500))])
def test_cpsat_and_the_exact_search_agree(seeds: Iterable[int]) -> None:
    """On random instances, and some rare ones, both find the same optimum, or that there is none."""
    for seed in seeds:
        agree(seed)


@pytest.mark.usefixtures("unaided")
def test_a_gap_may_be_enough() -> None:
    """On random instances CP-SAT stops within the gap it is allowed, on either side of the optimum."""
    early = 0
    seeds = part(range(200, 260))
    for seed in seeds:
        problem = random_ways(seed)
        if problem.possible:
            report = cpsat.solve(problem, replace(LIMITS, gap=0.3))
            assert report.stop in (Stop.GAP, Stop.OPTIMALITY), seed
            assert report.gap is not None and report.gap <= 0.3, seed
            assert report.objective is not None
            assert report.bound <= optimum(problem) <= report.objective, seed
            early += report.stop is Stop.GAP
    assert early >= len(seeds) / 6


@pytest.mark.parametrize("seeds", [part(range(200)), rarely(range(10_000, 12_000))])
def test_bounds_hold(seeds: Iterable[int]) -> None:
    """On random instances the bounds are no larger than the optimum."""
    for seed in seeds:
        bounded(seed)


def test_the_exact_search_is_as_good_as_all_permutations() -> None:
    """On instances with few enough permutations the exact search finds the best one, or that there is none."""
    tried, seeds = 0, part(range(200))
    for seed in seeds:
        problem = random_ways(seed, most_micro_batches=2)
        sizes = [sum(1 for _ in problem.operations(d)) for d in range(problem.devices)]
        sizes.append(sum(1 for _ in problem.transfers()))
        if math.prod(map(math.factorial, sizes)) <= 6000:
            tried += 1
            assert exhaustive_orders.solve(problem, LIMITS).objective == every_order(problem), seed
    assert tried >= len(seeds) / 5


def optimum(problem: PipelineSchedule) -> int:
    """Optimum by the exact search."""
    value = exhausted(problem).objective
    assert value is not None
    return value


def test_few_micro_batches_bound_many() -> None:
    """The windows hold with the optima of fewer micro-batches as spans, with and without later W."""
    tried = 0
    for seed in range(120):
        problem = random_ways(seed)
        if not problem.possible:
            continue
        counts = range(1, problem.micro_batches + 1)
        step = {n: optimum(replace(problem, micro_batches=n)) for n in counts}
        first = {n: optimum(replace(without_later_weights(problem), micro_batches=n)) for n in counts}
        assert all(first[n] + problem.ending[0] <= step[n] for n in counts), seed
        told = lower_bound(problem, windows(problem, Spans(step, first)))
        del step[problem.micro_batches], first[problem.micro_batches]
        some = lower_bound(problem, windows(problem, Spans(step, first)))
        assert some <= told == optimum(problem), seed
        tried += 1
    assert tried >= 80


def questioned(seed: int) -> None:
    """With trivial windows, a time one below the optimum is refuted and the optimum is not."""
    problem = scaled(random_ways(seed)).problem
    if not problem.possible:
        return
    least = optimum(problem)
    nothing: Table = {
        "F": [[0] * problem.micro_batches] * problem.stages,
        "I": [[0] * problem.micro_batches] * problem.stages,
        "W": [[0] * problem.micro_batches] * problem.stages,
        "A": [[0] * problem.micro_batches] * problem.stages,
        "G": [[0] * problem.micro_batches] * problem.stages,
    }
    assert decide(problem, Windows(nothing, nothing), least - 1, LIMITS) == least, seed
    assert decide(problem, Windows(nothing, nothing), least, LIMITS) == least, seed


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", [range(150), rarely(range(10_000, 12_000))])
def test_questions_are_answered(seeds: Iterable[int]) -> None:
    """On random instances CP-SAT refutes exactly the times below the optimum."""
    for seed in seeds:
        questioned(seed)


def nested(seed: int) -> bool:
    """Check that russian dolls prove no more than the optimum with little memory; True if windows prove less."""
    problem = random_ways(seed)
    need = [sum(problem.taken[s] for s in stages) for stages in problem.hosted]
    little = tuple(base + 3 * n // 2 for base, n in zip(problem.base, need, strict=True))
    form = scaled(replace(problem, micro_batches=4 if problem.stages <= 3 else 2, limit=little)).problem
    known = windows(form, russian_dolls.russian_dolls(form, serial(form), LIMITS, cpsat.PAIRS))
    bound = lower_bound(form, known)
    assert bound <= optimum(form), seed
    return bound > lower_bound(form)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("seeds", "least"), [(part(range(120)), 3), rarely(range(10_000, 12_000), 20)])
def test_dolls_hold(monkeypatch: pytest.MonkeyPatch, seeds: Iterable[int], least: int) -> None:
    """On random instances no span exceeds the optimum, and some exceed the bound by windows alone."""
    monkeypatch.setattr(russian_dolls, "STEP", 1)
    assert sum(map(nested, seeds)) >= least
