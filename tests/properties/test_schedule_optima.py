"""CP-SAT, CBC, the exact search and all permutations agree; bounds hold; answers are schedules.

A quarter of the instances are plain; the others have devices with two lanes, tensors on wires, or both.
"""

import math
from dataclasses import replace

import pytest

from helpers.pipeline_schedules import every_order, random_ways
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.report import Limits, Status, Stop
from pipeplan_formulations.schedule import Orders, PipelineSchedule, cbc, cpsat, evaluate, exact, lower_bound
from pipeplan_formulations.schedule import russian_dolls as russian_dolls
from pipeplan_formulations.schedule.bounds import Spans, Table, Windows, windows
from pipeplan_formulations.schedule.russian_dolls import decide, without_later_weights
from pipeplan_formulations.schedule.start import scaled, serial

LIMITS = Limits(time=60, workers=1)
WAITING = (141, 194, 439)
"""Instances whose optimum were lower if a device could run something while it waits for a wire: rare ones."""


@pytest.fixture(params=[cpsat.NARROW, 0.0], ids=["narrow", "wide"])
def unaided(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Solvers begin with the worst orders and know no bound, so that what they prove is their own.

    Small instances are solved while CP-SAT looks just above the bound; without that by its search from those orders.
    """
    monkeypatch.setattr(cpsat, "NARROW", request.param)

    def worst(problem: PipelineSchedule, bracket: Bracket[Orders], hint: Orders | None, seconds: float) -> None:
        bracket.offer(serial(problem))

    for module in (cpsat, cbc):
        monkeypatch.setattr(module, "start", worst)
        monkeypatch.setattr(module, "lower_bound", lambda problem, known=None: 0)


def agree(seed: int) -> None:
    """All three say the same of one instance, on the way too, and their orders are worth what they say."""
    problem = random_ways(seed)
    oracle = exact.solve(problem, LIMITS)
    assert oracle.status is (Status.OPTIMAL if problem.possible else Status.INFEASIBLE), seed
    for backend in (cpsat, cbc):
        told: list[tuple[int | None, int]] = []
        report = backend.solve(problem, LIMITS, progress=lambda *now, told=told: told.append(now))
        assert all(bound <= (oracle.objective or 0) <= (value or math.inf) for value, bound in told), seed
        assert (report.status, report.objective) == (oracle.status, oracle.objective), (seed, backend.__name__)
        if report.solution is not None:
            assert evaluate(problem, report.solution) == oracle.objective, (seed, backend.__name__)


def bounded(seed: int) -> None:
    """No bound exceeds the optimum."""
    problem = random_ways(seed)
    oracle = exact.solve(problem, LIMITS)
    if oracle.objective is not None:
        assert lower_bound(problem) <= oracle.objective, seed


@pytest.mark.usefixtures("unaided")
def test_three_solvers_agree() -> None:
    """On 60 random instances, and some rare ones, all backends find the same optimum, or that there is none."""
    for seed in (*range(60), *WAITING):
        agree(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("unaided")
def test_three_solvers_agree_on_many() -> None:
    """On 500 random instances all backends find the same optimum, or that there is none."""
    for seed in range(1000, 1500):
        agree(seed)


@pytest.mark.usefixtures("unaided")
def test_a_gap_may_be_enough() -> None:
    """On 60 random instances CP-SAT stops within the gap it is allowed, on either side of the optimum."""
    early = 0
    for seed in range(200, 260):
        problem = random_ways(seed)
        if problem.possible:
            report = cpsat.solve(problem, replace(LIMITS, gap=0.3))
            assert report.stop in (Stop.GAP, Stop.OPTIMALITY), seed
            assert report.gap is not None and report.gap <= 0.3, seed
            assert report.objective is not None
            assert report.bound <= optimum(problem) <= report.objective, seed
            early += report.stop is Stop.GAP
    assert early >= 10


def test_bounds_hold() -> None:
    """On 200 random instances the bounds are no larger than the optimum."""
    for seed in range(200):
        bounded(seed)


@pytest.mark.slow
def test_bounds_hold_on_many() -> None:
    """On 2,000 random instances the bounds are no larger than the optimum."""
    for seed in range(10_000, 12_000):
        bounded(seed)


def test_the_exact_search_is_as_good_as_all_permutations() -> None:
    """Where all permutations of all lists can be tried, the exact search finds their best, or that there is none."""
    tried = 0
    for seed in range(200):
        problem = random_ways(seed, most_micro_batches=2)
        sizes = [sum(1 for _ in problem.operations(d)) for d in range(problem.devices)]
        sizes.append(sum(1 for _ in problem.transfers()))
        if math.prod(map(math.factorial, sizes)) <= 6000:
            tried += 1
            assert exact.solve(problem, LIMITS).objective == every_order(problem), seed
    assert tried >= 40


def optimum(problem: PipelineSchedule) -> int:
    """By the exact search."""
    value = exact.solve(problem, LIMITS).objective
    assert value is not None
    return value


def test_few_micro_batches_bound_many() -> None:
    """The windows hold whatever the optima of fewer micro-batches, whole and without later W, are told to them."""
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
    """With windows that say nothing, one less than the optimum is refuted and the optimum is not."""
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


def test_questions_are_answered() -> None:
    """Of 150 random instances what CP-SAT refutes is exactly what is less than the optimum."""
    for seed in range(150):
        questioned(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_questions_are_answered_on_many() -> None:
    """Of 2,000 random instances what CP-SAT refutes is exactly what is less than the optimum."""
    for seed in range(10_000, 12_000):
        questioned(seed)


def nested(seed: int) -> bool:
    """Russian dolls of a problem with little memory prove no more than its optimum; whether windows say less."""
    problem = random_ways(seed)
    need = [sum(problem.taken[s] for s in stages) for stages in problem.hosted]
    little = tuple(base + 3 * n // 2 for base, n in zip(problem.base, need, strict=True))
    form = scaled(replace(problem, micro_batches=4 if problem.stages <= 3 else 2, limit=little)).problem
    known = windows(form, russian_dolls.russian_dolls(form, serial(form), LIMITS, cpsat.PAIRS))
    bound = lower_bound(form, known)
    assert bound <= optimum(form), seed
    return bound > lower_bound(form)


def test_dolls_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 120 random instances no doll says more than the optimum, and some say more than windows alone."""
    monkeypatch.setattr(russian_dolls, "STEP", 1)
    assert sum(map(nested, range(120))) >= 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_dolls_hold_on_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 2,000 random instances no doll says more than the optimum, and some say more than windows alone."""
    monkeypatch.setattr(russian_dolls, "STEP", 1)
    assert sum(map(nested, range(10_000, 12_000))) >= 20
