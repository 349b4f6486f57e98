"""Pipeline scheduling problem: validation, evaluation, bounds by hand, and results of the back ends."""

from dataclasses import replace

import pytest

from helpers import exhaustive_orders
from helpers.lines import line
from helpers.pipeline_schedules import every_order, random_schedule
from pipeplan_formulations.common.report import Limits, Status, Stop
from pipeplan_formulations.schedule import BACKENDS, Op, cpsat, evaluate, feasible, lower_bound, solve
from pipeplan_formulations.schedule.bounds import jackson, packed, windows
from pipeplan_formulations.schedule.objective import makespan, orders_of, peaks, starts
from pipeplan_formulations.schedule.precedence import Admission, heads, tails
from pipeplan_formulations.schedule.start import scaled, serial

TWO = line(2, 2, 2)
"""Two devices, two micro-batches, room for both."""
F, B, W = ([[Op(kind, s, i) for i in range(2)] for s in range(2)] for kind in "FIW")


def test_a_schedule_timed_by_hand() -> None:
    """Every operation starts as early as its device and its inputs allow."""
    orders = (
        (F[0][0], F[0][1], B[0][0], W[0][0], B[0][1], W[0][1]),
        (F[1][0], B[1][0], F[1][1], B[1][1], W[1][0], W[1][1]),
    )
    begun = starts(TWO, orders)
    assert begun is not None
    assert begun[F[1][0]] == 1100
    assert begun[B[0][0]] == 3200
    assert begun[B[0][1]] == 5200
    assert evaluate(TWO, orders) == 5200 + 1000 + 700
    assert peaks(TWO, orders) == (200, 140)
    assert evaluate(replace(TWO, ending=(10, 300)), orders) == 6910
    assert evaluate(replace(TWO, ending=(10, 800)), orders) == 6500 + 800


def test_memory_is_what_is_held_when_a_forward_starts() -> None:
    """I frees its part at its end and W the rest, so a limit one byte below the peak rejects the order."""
    orders = serial(replace(TWO, limit=(100, 100)))
    assert peaks(TWO, orders) == (100, 100)
    assert feasible(replace(TWO, limit=(100, 100)), orders)
    assert not feasible(replace(TWO, limit=(99, 100)), orders)
    late_weight = ((F[0][0], B[0][0], F[0][1], B[0][1], W[0][0], W[0][1]), orders[1])
    assert peaks(TWO, late_weight) == (140, 100)


def test_a_circle_is_no_schedule() -> None:
    """Orders of two devices that wait for each other are infeasible."""
    first_device = (F[0][0], B[0][0], F[0][1], W[0][0], B[0][1], W[0][1])
    second_device = (F[1][0], F[1][1], B[1][0], B[1][1], W[1][0], W[1][1])
    assert starts(TWO, (first_device, second_device)) is None
    assert evaluate(TWO, (first_device, second_device)) is None


def test_lists_must_be_complete() -> None:
    """A missing, unknown or duplicate operation is an error, not an infeasible schedule."""
    orders = serial(TWO)
    for wrong in (orders[0][:-1], orders[1], (*orders[0][:-1], orders[0][0]), (*orders[0], orders[0][0])):
        with pytest.raises(ValueError, match="device 0 must run"):
            evaluate(TWO, (wrong, orders[1]))
        assert not feasible(TWO, (wrong, orders[1]))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("lag", (1, 2), "lag has 2 entries; 1 are needed"),
        ("forward", (1, -1), "forward has a negative entry"),
        ("device", (0, 2), "devices 0 to 1"),
        ("taken", (100, 90), "stage 1 takes 90 bytes"),
        ("split", (True, False), "stage 1 has a joined backward"),
        ("micro_batches", 0, "at least one"),
    ],
)
def test_wrong_problems_are_refused(field: str, value: object, message: str) -> None:
    """The error names each fault with its numbers."""
    with pytest.raises(ValueError, match=message):
        replace(TWO, **{field: value})


def test_orders_of_starts_are_the_orders() -> None:
    """Orders are recovered from their starts, even if operations of time 0 share a start."""
    for seed in range(60):
        problem = random_schedule(seed)
        if not problem.possible:
            continue
        orders = serial(problem)
        begun = starts(problem, orders)
        assert begun is not None
        again = starts(problem, orders_of(problem, begun))
        assert again is not None
        assert makespan(problem, again) <= makespan(problem, begun)


def test_a_device_that_hosts_two_stages_holds_both() -> None:
    """A micro-batch between F and I of the later stage is also between those of the earlier one."""
    problem = replace(line(2, 4, 4), device=(0, 0), base=(0, 0), limit=(500, 0))
    assert Admission(problem, 0).most == 4
    assert Admission(problem, 1).most == 2


def test_how_many_weight_gradients_a_forward_waits_for() -> None:
    """With room for four and 40 bytes left by each I, F(8) needs one W, and one more for every 100 / 40 … 60 / 40."""
    admission = Admission(line(8, 32, 4), 0)
    assert [admission.weights(i, i) for i in (7, 8, 9, 31)] == [0, 1, 2, 24]
    assert admission.choices(3) == [(0, 0)]
    assert admission.choices(5) == [(2, 2), (3, 1), (4, 0)]


def test_packing_by_hand() -> None:
    """Packed items start after their releases; Jackson's rule serves the longest tail first."""
    assert packed([(5, 2), (0, 3)]) == 7
    assert packed([]) == 0
    assert jackson([(0, 4, 0), (1, 2, 9)]) == 12
    assert jackson([(0, 4, 10), (1, 2, 9)]) == 15


def test_with_room_for_all_the_bound_is_met() -> None:
    """With eight equal devices and room for twelve the last one gives the bound: busy from its first input on."""
    assert lower_bound(line(8, 32, 12)) == 7 * 1100 + 32 * 2700


def test_windows_hold_the_chain() -> None:
    """The first forward's tail is the rest of the step for a single micro-batch."""
    problem = line(4, 1, 1)
    known = windows(problem)
    assert known.tail["F"][0][0] == 3 * 1100 + 1000 + 3 * 1100 + 700
    assert lower_bound(problem) == evaluate(problem, serial(problem)) == 1000 + 3 * 1100 + 1000 + 3 * 1100 + 700


def test_operations_that_take_no_time() -> None:
    """Scaling gives every operation time, and rounding restores the makespan."""
    problem = replace(TWO, forward=(0, 3), backward=(2, 0), weight=(1, 1), lag=(0,), lag_back=(0,))
    form = scaled(problem)
    assert form.factor == 13
    assert min(form.problem.forward + form.problem.backward + form.problem.weight) == 1
    value, long = evaluate(problem, serial(problem)), evaluate(form.problem, serial(problem))
    assert value is not None
    assert long is not None
    assert long // form.factor == value
    assert form.bound(long) == value
    assert form.unit == 1
    assert (scaled(TWO).factor, scaled(TWO).unit) == (1, 100)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_on_a_known_optimum(backend: str) -> None:
    """Two micro-batches on two devices: the optimum equals that of all permutations."""
    problem = replace(TWO, weight=(0, 0), split=(False, False), freed=(100, 100), freed_by_weight=(0, 0))
    report = solve(problem, Limits(time=20), backend=backend)
    assert report.status is Status.OPTIMAL
    assert report.objective == every_order(problem)
    assert report.solution is not None
    assert evaluate(problem, report.solution) == report.objective


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_knows_that_nothing_fits(backend: str) -> None:
    """A device that cannot hold one micro-batch makes the problem infeasible."""
    report = solve(replace(TWO, limit=(99, 200)), Limits(time=20), backend=backend)
    assert report.status is Status.INFEASIBLE
    assert report.stop is Stop.OPTIMALITY
    assert report.solution is None


def test_unknown_backends_are_named() -> None:
    """The error lists the available back ends."""
    with pytest.raises(ValueError, match=", ".join(BACKENDS)):
        solve(TWO, Limits(), backend="magic")


def test_a_hint_is_never_lost() -> None:
    """Without time the result is at least as good as the hint, and its bound holds."""
    problem = line(3, 4, 2)
    best = exhaustive_orders.solve(problem, Limits(time=20))
    report = solve(problem, Limits(time=0.01), hint=best.solution)
    assert report.objective == best.objective
    assert report.bound <= best.bound


def test_progress_tells_ends_that_approach_each_other() -> None:
    """Incumbents fall, bounds rise, and the last ones are the report's."""
    told: list[tuple[int | None, int]] = []
    report = solve(line(4, 6, 3), Limits(time=20), on_progress=lambda value, bound: told.append((value, bound)))
    values = [value for value, _ in told if value is not None]
    bounds = [bound for _, bound in told]
    assert values == sorted(values, reverse=True)
    assert bounds == sorted(bounds)
    assert (values[-1], bounds[-1]) == (report.objective, report.bound)


def test_a_model_that_is_too_large_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the best list schedule with the bounds that need no solver, and stop reason 'exhausted'."""
    monkeypatch.setattr(cpsat, "PAIRS", 100)
    problem = line(4, 8, 2)
    report = solve(problem, Limits(time=2), backend="cpsat")
    assert report.stop is Stop.EXHAUSTED
    assert report.status is Status.FEASIBLE
    assert report.bound == lower_bound(problem)


def test_the_last_micro_batches_raise_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a search of the whole step, proofs for few micro-batches raise the bound above that of the windows."""
    problem = line(4, 32, 2, 0.3)
    monkeypatch.setattr(cpsat, "PAIRS", 4000)
    report = solve(problem, Limits(time=15), backend="cpsat")
    assert report.stop is Stop.EXHAUSTED
    assert report.bound > lower_bound(problem)


@pytest.mark.parametrize("seed", range(20))
def test_heads_and_tails_are_the_longest_paths_of_a_micro_batch(seed: int) -> None:
    """Alone on its devices it starts each operation at its head, and behind one that takes ages there is its tail."""
    drawn = random_schedule(seed)
    whole = replace(
        drawn,
        device=tuple(range(drawn.stages)),
        micro_batches=1,
        base=(0,) * drawn.stages,
        limit=(10**9,) * drawn.stages,
        two_lanes=(),
        split=(True,) * drawn.stages,
        overlap="copy",
        occupancy=tuple(range(3, 2 + drawn.stages)),
        occupancy_back=tuple(range(5, 4 + drawn.stages)),
        resources=tuple((2 * s,) for s in range(drawn.stages - 1)),
        resources_back=tuple((2 * s + 1,) for s in range(drawn.stages - 1)),
    )
    orders = tuple(tuple(Op(kind, s, 0) for kind in "FIW") for s in range(whole.stages))
    begun, first, last = starts(whole, orders), heads(whole), tails(whole)
    assert begun is not None
    for s, own in enumerate(orders):
        for op, name in zip(own, ("forward", "backward", "weight"), strict=True):
            assert begun[op] == first[op.kind][s]
            times = list(getattr(whole, name))
            times[s] = ages = 10**6
            assert (
                evaluate(replace(whole, **{name: tuple(times)}), orders) == first[op.kind][s] + ages + last[op.kind][s]
            )
    for kind, name in (("A", "occupancy"), ("G", "occupancy_back")):
        for boundary, time in enumerate(getattr(whole, name)):
            times = list(getattr(whole, name))
            times[boundary] = ages = 10**6 + time
            s = boundary + (kind == "G")
            end = evaluate(replace(whole, **{name: tuple(times)}), orders)
            assert end == first[kind][s] + ages + last[kind][s]
