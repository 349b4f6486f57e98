"""The chain partition problem and its backends on named instances: inputs, limits, hints, progress, dispatch."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from helpers.partitions import UNEVEN, chain_partition, nothing_known, random_chain, unequal_chain, uneven
from pipeplan_formulations import partition
from pipeplan_formulations.common import cbc_process
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.mip.model import Expression
from pipeplan_formulations.common.report import Limits, Report, Status, Stop
from pipeplan_formulations.common.scaling import Scale
from pipeplan_formulations.common.solvers import cpsat_solver, pulp
from pipeplan_formulations.partition import BACKENDS, PathCut, Tie, exact, link_positions, listing
from pipeplan_formulations.partition.linear import linear_model
from pipeplan_formulations.partition.spans import NEVER
from pipeplan_formulations.partition.windows import windows


@pytest.mark.parametrize("backend", BACKENDS)
def test_classical_min_max(backend):
    """The bottleneck of eight layers on three equal devices is 11."""
    report = partition.solve(uneven(objective="bottleneck"), Limits(), backend=backend)
    assert (report.status, report.objective, report.bound) == (Status.OPTIMAL, 11, 11)
    assert report.backend == backend
    assert report.version


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_changes_the_answer_or_excludes_all(backend):
    """Room for two layers on the first device raises 11 to 12; room for two on each excludes every partition."""
    problem = replace(uneven(objective="bottleneck"), in_flight=np.ones(3, int))
    tight = partition.solve(replace(problem, limit=np.array([4, 6, 6])), Limits(), backend=backend)
    assert (tight.status, tight.objective, tight.solution) == (Status.OPTIMAL, 12, (0, 2, 5, 8))
    none = partition.solve(replace(problem, limit=np.full(3, 2 * 2)), Limits(), backend=backend)
    assert (none.status, none.solution, none.objective) == (Status.INFEASIBLE, None, None)


@pytest.mark.parametrize(("objective", "most"), [("step", 30 + 4 * 30 + 100 - 20), ("period", 4 * 30 + 100)])
def test_a_long_update_ends_a_step_and_repeats_in_a_long_run(objective, most):
    """Beside the way back of 20 in a step, which ends with it; in a long run the next step of the first stage waits."""
    times = {"forward": np.full((2, 2), 10), "backward": np.full((2, 2), 20), "update": np.array([[0, 0], [0, 100]])}
    problem = chain_partition(**times, objective=objective)
    assert problem.evaluate((0, 1, 2)) == most


@pytest.mark.parametrize(("summed", "value"), [(4, 15 + 4 + 7), (0, 2 + 10 + 7)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_update_waits_for_the_first_stage_where_both_sum_the_same_weights(backend, summed, value):
    """The sums and the update of the last stage end the step, behind the last backward of the first stage."""
    tie = Tie((0, 1), (0, 0), (0, 0), (0, summed), (0, 0))
    times, update = np.full((2, 2), 2), np.tile([1, 7], (2, 1))
    problem = chain_partition(times, times + 1, update=update, ties=(tie,), micro_batches=2)
    report = partition.solve(problem, Limits(time=20), backend=backend)
    assert (report.objective, report.bound) == (value, value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_stage_and_as_many_stages_as_layers(backend):
    """The only partition is found."""
    for stages in (1, 8):
        problem = chain_partition(np.tile(UNEVEN, (stages, 1)), np.ones((stages, 8), int))
        report = partition.solve(problem, Limits(), backend=backend)
        assert report.status is Status.OPTIMAL
        assert report.solution == ((0, 8) if stages == 1 else tuple(range(9)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_time_is_an_answer(backend):
    """Without time there is still a report with a valid bound, and with a hint a partition no worse than it."""
    problem = random_chain(1, 8, 60)
    optimum = exact.solve(problem, Limits()).objective
    for hint in (None, (*range(8), 60)):
        report = partition.solve(problem, Limits(time=0.0), hint, backend=backend)
        assert report.status in (Status.FEASIBLE, Status.UNKNOWN, Status.OPTIMAL)
        assert problem.lower_bound() <= report.bound <= optimum
        if hint is not None:
            assert report.objective <= problem.evaluate(hint)


@pytest.mark.parametrize("solver", [BACKENDS[name] for name in SOLVERS], ids=SOLVERS)
def test_time_limit_returns_incumbent_and_bound(solver):
    """A model too large for its time ends soon, with the start's partition at worst and a bound below it."""
    problem = random_chain(5, 24, 150, links=3_000_000)
    path = PathCut(*[tuple(range(1, 25))] * 2, (0,) * 24, (2,) * 23, (1,) * 23)
    problem = problem.with_paths((path, replace(path, forward=(6,) * 24)))
    start = exact.solve(problem, Limits())
    report = solver.solve(problem, Limits(time=1.0), start=start)
    assert report.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert start.bound <= report.bound <= report.objective <= start.objective
    assert report.wall < 30


@pytest.mark.parametrize("backend", BACKENDS)
def test_gap_ends_the_search(backend):
    """With a gap of one everything found is good enough, and the report does not call it optimal unless it is."""
    problem = random_chain(2, 4, 30)
    report = partition.solve(problem, Limits(gap=1.0), backend=backend)
    assert report.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert report.bound <= exact.solve(problem, Limits()).objective <= report.objective


@pytest.mark.parametrize("backend", BACKENDS)
def test_progress_is_monotone_and_valid(backend):
    """Incumbents only decrease, bounds only increase, and none of them crosses the optimum."""
    problem, heard = random_chain(7, 5, 30, links=4_000_000), []
    report = partition.solve(problem, Limits(), on_progress=lambda *said: heard.append(said), backend=backend)
    incumbents, bounds = [i for i, _ in heard if i is not None], [b for _, b in heard]
    assert heard
    assert incumbents == sorted(incumbents, reverse=True)
    assert bounds == sorted(bounds)
    assert max(bounds) <= report.objective <= min(incumbents)


def test_cpsat_without_a_start_reports_progress():
    """CP-SAT without a start reports the partitions and bounds that it finds."""
    problem, heard = random_chain(7, 6, 40), []
    start = nothing_known(problem)
    report = BACKENDS["cpsat"].solve(problem, Limits(), on_progress=lambda *said: heard.append(said), start=start)
    assert report.status is Status.OPTIMAL
    assert heard[-1][0] == report.objective
    assert max(bound for _, bound in heard) <= report.objective


def test_hint_beyond_memory_is_ignored():
    """A hint that does not fit does not become an incumbent."""
    problem = replace(uneven(), in_flight=np.ones(3, int), limit=np.full(3, 6))
    report = exact.solve(problem, Limits(time=0.0), (0, 1, 2, 8))
    assert report.solution != (0, 1, 2, 8)


@pytest.mark.parametrize("solver", [BACKENDS[name] for name in SOLVERS], ids=SOLVERS)
def test_wrong_starts_are_refused(solver):
    """A start whose value is not its partition's, or whose partition does not fit, is an error of the caller."""
    problem = uneven()
    value = problem.evaluate((0, 1, 2, 8))
    wrong = Report(Status.FEASIBLE, Stop.TIME, value + 1, 0, 0.0, "none", "", 0, (0, 1, 2, 8))
    with pytest.raises(ValueError, match="worth"):
        solver.solve(problem, Limits(), start=wrong)
    with pytest.raises(ValueError, match="fits the memory limit"):
        solver.solve(problem, Limits(), start=replace(wrong, solution=(0, 2, 2, 8)))


@pytest.mark.parametrize("solver", [BACKENDS[name] for name in SOLVERS], ids=SOLVERS)
def test_path_cuts_move_the_answer(solver):
    """A path cut with all weight on stage 0 pulls layers away from it; the bound is above the relaxation's."""
    problem = uneven()
    relaxed = exact.solve(problem, Limits())
    path = PathCut((9, 1, 1), (9, 1, 1), (1, 0, 0), (1, 1), (1, 1), constant=5)
    cut = problem.with_paths((path,))
    report = solver.solve(cut, Limits())
    assert report.status is Status.OPTIMAL
    assert report.objective > relaxed.objective
    assert report.objective <= cut.evaluate(relaxed.solution)
    bound_only = exact.solve(cut, Limits())
    assert bound_only.bound == relaxed.objective
    assert bound_only.status is Status.FEASIBLE


def test_unknown_backend_names_the_known():
    """The error for an unknown backend lists the known ones."""
    with pytest.raises(ValueError, match=rf"'glpk'.*{', '.join(BACKENDS)}"):
        partition.solve(uneven(), Limits(), backend="glpk")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backward": np.zeros((3, 7), int)}, r"backward has shape \(3, 7\), expected \(3, 8\)"),
        ({"latency": np.zeros(3, int)}, "latency has shape"),
        ({"limit": np.zeros(2, int)}, "limit has shape"),
        ({"workspace": np.full(8, -1)}, "workspace holds a negative number: -1"),
        ({"forward": np.zeros((9, 8), int)}, "8 layers do not fill 9 stages"),
        ({"forward": np.zeros(8, int)}, "expected"),
        ({"micro_batches": 0}, "at least 1"),
        ({"overlap": "maybe"}, "overlap is 'maybe'"),
        ({"objective": "speed"}, "objective is 'speed'"),
        ({"objective": "bottleneck", "paths": (PathCut((1,), (1,), (1,), (), ()),)}, "bottleneck"),
        ({"paths": (PathCut((1,), (1,), (1,), (), ()),)}, "path cut"),
        ({"counts": np.array([4, 5, 4])}, "counts holds .*1 to 4"),
        ({"link_counts": np.array([4, 0])}, "link_counts holds .*1 to 4"),
        ({"resident": np.ones((2, 8), int)}, r"resident has shape \(2, 8\), expected \(3, 8\)"),
        ({"reduce": np.full((3, 8), -2)}, "reduce holds a negative number: -2"),
        ({"recomputable": np.ones(8, bool)}, "output .* is required"),
        ({"cuts": np.ones(7, int)}, "cuts holds int64, expected bool"),
        ({"where": np.ones((8, 3), bool)}, "where has shape"),
        ({"ties": (Tie((3, 8), *[(0,) * 3] * 4),)}, r"layers \(3, 8\); there are 8"),
        ({"ties": (Tie((3, 7), *[(0,) * 2] * 4),)}, "2 stages; there are 3"),
    ],
)
def test_invalid_problems_are_refused(change, message):
    """Each wrong field is named, with its value and the expected one."""
    with pytest.raises(ValueError, match=message):
        uneven(**change)


def test_paths_count_actions():
    """A negative coefficient in a path cut is refused: rounding down would no longer keep the bound."""
    with pytest.raises(ValueError, match="backward has a negative"):
        PathCut((1,), (-1,), (1,), (), ())


def test_times_beyond_64_bits_are_refused():
    """Times whose sums leave 64-bit integers are an error, not a wrong answer."""
    with pytest.raises(ValueError, match="scale them"):
        exact.solve(uneven(micro_batches=2**60), Limits())


def test_ill_formed_boundaries_are_not_feasible():
    """Wrong ends, empty stages and wrong lengths do not fit, whatever the memory."""
    problem = uneven()
    assert problem.feasible((0, 3, 5, 8))
    for wrong in [(0, 3, 8), (1, 3, 5, 8), (0, 3, 5, 7), (0, 3, 3, 8), (0, 5, 3, 8)]:
        assert not problem.feasible(wrong)


def test_reach_of_a_stage():
    """The largest end that memory allows counts resident, saved and received bytes and the largest workspace."""
    problem = replace(
        uneven(),
        resident=np.arange(8),
        workspace=np.array([0, 0, 9, 0, 0, 0, 0, 0]),
        received=np.full(7, 2),
        in_flight=np.array([1, 2, 3]),
        limit=np.array([5, 20, 1]),
    )
    room = windows(problem)
    last = room.last
    assert last[0].tolist()[:3] == [2, 2, 2]  # 0 + 1 + two saved, 1 + one saved + two received, and 9 of workspace
    assert last[1, 3] == 5  # 3 + 4 + 2 (2 + 2) = 15, one more makes 22
    assert (last[2] <= np.arange(8)).all()
    assert not room.open.any()
    assert linear_model(problem, Scale(1), 0, 10**6) is None


@pytest.mark.parametrize(
    ("layers", "rows", "message"),
    [
        ((4, 4), ((0,),) * 4, "ascending"),
        ((4,), ((0,),) * 4, "two layers"),
        ((1, 2), ((0,), (-3,), (0,), (0,)), "negative"),
        ((1, 2), ((0,), (0, 0), (0,), (0,)), "rows have 1, 2, 1, 1"),
    ],
)
def test_ties_join_layers_in_order(layers, rows, message):
    """A tie of a layer with itself, one that pays to be split, and one with unequal rows are refused."""
    with pytest.raises(ValueError, match=message):
        Tie(layers, *rows)


def test_ortools_comes_before_pulp():
    """Asking for PuLP loads OR-Tools first."""
    code = (
        "import sys; from pipeplan_formulations.common.solvers import pulp; pulp(); names = list(sys.modules);"
        "print(names.index('ortools') < names.index('pulp'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize(
    ("seed", "overlap"),
    [pytest.param(2, "stream", marks=pytest.mark.slow), (8, "stream"), (10, "copy"), (18, "none")],
)
def test_many_labels_on_unequal_devices(seed, overlap):
    """If R differs between partitions, the dynamic programme closes its bracket, and CP-SAT alone proves the same."""
    problem = unequal_chain(seed, 8, 80, micro_batches=8, overlap=overlap)
    programme = exact.solve(problem, Limits())
    assert programme.status is Status.OPTIMAL
    start = replace(programme, status=Status.FEASIBLE, bound=problem.lower_bound())
    alone = BACKENDS["cpsat"].solve(problem, Limits(workers=1), start=start)
    assert (alone.status, alone.objective) == (Status.OPTIMAL, programme.objective)


@pytest.mark.parametrize("backend", BACKENDS)
def test_interrupt_hands_back_the_incumbent(backend, monkeypatch):
    """Ctrl-C in the dynamic programme (the start of every solver) or in the listing ends with at worst the hint."""
    problem, hint = random_chain(1, 4, 30), (0, 5, 9, 20, 30)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(exact, "solve_step", interrupted)
    monkeypatch.setattr(listing, "values", interrupted)
    report = partition.solve(problem, Limits(), hint, backend=backend)
    assert (report.status, report.stop) == (Status.FEASIBLE, Stop.INTERRUPT)
    assert report.objective == problem.evaluate(hint)
    assert problem.lower_bound() <= report.bound


def test_interrupt_of_cbc_hands_back_the_incumbent(monkeypatch):
    """Ctrl-C while CBC runs ends with the start's partition and bound."""
    problem = uneven().with_paths((PathCut((9, 1, 1), (9, 1, 1), (1, 0, 0), (1, 1), (1, 1)),))
    start = exact.solve(problem, Limits())

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cbc_process.subprocess, "run", interrupted)
    report = BACKENDS["cbc"].solve(problem, Limits(), start=start)
    assert (report.stop, report.objective, report.bound) == (Stop.INTERRUPT, start.objective, start.bound)


class Looks(Clock):
    """A clock that is over at its so manieth look."""

    def __init__(self, most):
        super().__init__(Limits())
        self.count, self.most = 0, most

    def check(self):
        self.count += 1
        if self.count > self.most:
            raise OutOfTimeError


def test_a_listing_looks_at_the_clock_while_it_finds_recomputations():
    """At least once for every `AT_ONCE` spans of each stage, each of which may need a list of its own."""
    again = {"output": np.ones(40, int), "recomputable": np.ones(40, bool)}
    problem = random_chain(1, 3, 40, saved=np.full(40, 3), limit=np.full(3, 90), **again)
    free = Looks(10**9)
    every = listing.PartitionList(problem, free)
    spans = {(s, *edges[s : s + 2]) for edges in every.edges.tolist() for s in range(3)}
    assert free.count >= len(spans) // listing.AT_ONCE > 5
    with pytest.raises(OutOfTimeError):
        listing.PartitionList(problem, Looks(5))
    report = listing.solve(problem, Limits(time=0.0), (0, 10, 20, 40))
    assert (report.stop, report.status) == (Stop.TIME, Status.FEASIBLE)
    assert problem.lower_bound() <= report.bound <= int(every.low.min())


@pytest.mark.parametrize("seed", range(40))
def test_partitions_below_a_horizon_are_those_of_all_with_less(seed):
    """Of sums over stages, with spans that no stage may have; None only where there are more than asked for."""
    random = np.random.default_rng(seed)
    stages, layers, sums = (int(random.integers(1, most)) for most in (5, 9, 4))
    shares = random.integers(0, 30, (sums, stages, layers + 1, layers + 1))
    shares[random.random(shares.shape) < 0.05] = NEVER
    shares[..., np.triu(np.ones((layers + 1, layers + 1), bool))] = NEVER  # [e, a] of no layer
    every = listing.partitions(np.ones(layers - 1, bool), min(stages, layers), layers)
    shares = shares[:, : every.shape[1] - 1]
    lengths = shares[:, np.arange(shares.shape[1]), every[:, 1:], every[:, :-1]]
    horizon = int(random.integers(1, 30 * stages))
    below = (lengths < NEVER).all(axis=(0, 2)) & (lengths.sum(axis=2) < horizon).all(axis=0)
    right = {*map(tuple, every[below].tolist())}
    found = listing.below(shares, horizon, len(every) + 1)
    assert {*map(tuple, found.tolist())} == right
    assert len(found) == len(right)
    if len(right) > 1:
        assert listing.below(shares, horizon, len(right) - 1) is None


@pytest.mark.parametrize("seconds", [20.0, 1e-4])
def test_cbc_calls_nothing_infeasible_once_its_time_is_over(seconds):
    """CBC reports infeasible if its preprocessing runs out of time, so that counts only within its limit."""
    module = pulp()
    lp = module.LpProblem("nothing", module.LpMinimize)
    x, y = (lp.add_variable(name, 0, 9, module.LpInteger) for name in "xy")
    lp.setObjective(module.LpAffineExpression({x: 1}))
    lp += 2 * x + 2 * y == 5
    answer = cbc_process.run_cbc(lp, [x, y], seconds, Limits(workers=1))
    assert (answer.infeasible, answer.late) == ((True, False) if seconds > 1 else (False, True))


def test_cbc_that_overruns_is_killed(monkeypatch):
    """A CBC that ignores its limit is ended, and the start's partition is the answer."""
    problem = uneven().with_paths((PathCut((9, 1, 1), (9, 1, 1), (1, 0, 0), (1, 1), (1, 1)),))
    start = exact.solve(problem, Limits())
    run = subprocess.run

    def endless(_command, **settings):
        return run([sys.executable, "-c", "import time; time.sleep(100)"], **{**settings, "timeout": 0.2})

    monkeypatch.setattr(cbc_process.subprocess, "run", endless)
    report = BACKENDS["cbc"].solve(problem, Limits(), start=start)
    assert (report.stop, report.objective, report.bound) == (Stop.TIME, start.objective, start.bound)


def test_cbc_bound_gives_up_its_inaccuracy():
    """A floating-point bound becomes the integer that it allows even if it is a little too high, never one above."""
    for claim in (0.0, 96.0, 95.0000001, 123456.0, 123455.2):
        assert cbc_process.proven(claim * (1 + 1e-9), 1.0) <= -(-claim // 1)
        assert cbc_process.proven(claim * (1 - 1e-9), 1.0) == -(-(claim - 1e-3) // 1)
    assert 1e12 * (1 - 2e-7) < cbc_process.proven(1e12, 1.0) < 1e12


def test_cpsat_that_contradicts_the_start_is_an_error(monkeypatch):
    """If CP-SAT reports a problem with a known solution as infeasible, the report has an error and a weak bound."""
    problem = uneven()
    start = exact.solve(problem, Limits())

    def too_tight(model, *_):
        model.at_least(Expression({}, -1))

    monkeypatch.setattr(link_positions, "_reach", too_tight)
    for solver in (BACKENDS[name] for name in SOLVERS):
        report = solver.solve(problem, Limits(), start=start)
        assert (report.status, report.stop, report.solution) == (Status.FEASIBLE, Stop.ERROR, start.solution)
        assert report.bound == problem.lower_bound()


def test_cpsat_is_made_without_presolve():
    """Presolve, which proves wrong optima in OR-Tools 9.15, is off, and the number of threads is limited."""
    parameters = cpsat_solver(Limits(time=3, gap=0.25, workers=64, seed=5)).parameters
    assert not parameters.cp_model_presolve
    assert parameters.num_workers == 8
    assert (parameters.max_time_in_seconds, parameters.relative_gap_limit, parameters.random_seed) == (3, 0.25, 5)
