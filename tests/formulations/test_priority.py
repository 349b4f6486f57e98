"""Sums front layers first: closed form, programme and event simulation; chunks by CP-SAT and by trying all orders."""

from collections.abc import Iterator
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from helpers.quick import QUICK
from pipeplan_formulations.common.report import BeyondIntegersError, Limits, Status, Stop
from pipeplan_formulations.priority import Chunks, Losses, Sums, order, solve
from pipeplan_formulations.priority.front_first import front_first

INSTANCES, CHUNKED = (24, 12) if QUICK else (2000, 500)
LIMITS = Limits(time=20, workers=1)


def rows(random: Random, layers: int) -> tuple[list[int], list[int], list[int]]:
    """Ready times, times and tails of layers of any sort, with zeros and ties."""
    largest = random.choice([2, 9, 1000, 10**9])
    ready = [0] * layers
    for layer in reversed(range(layers - 1)):
        ready[layer] = ready[layer + 1] + random.randint(0, largest)
    tails = [0] * (layers + 1)
    for layer in reversed(range(layers)):
        tails[layer] = tails[layer + 1] + random.randint(0, largest)
    times = [random.choice([0, random.randint(0, 3 * largest)]) for _ in range(layers)]
    return ready, times, tails[:-1]


def sums_of(random: Random, budget: Fraction = Fraction(0)) -> Sums:
    """Sums of up to eleven layers, of which some bytes may be lost."""
    ready, times, tails = rows(random, random.randint(1, 11))
    saved = [random.randint(0, time) for time in times]
    sizes = [random.choice([0, 1, random.randint(1, 10**6)]) for _ in times]
    return Sums(*map(np.array, (ready, times, tails, saved, sizes)), budget=budget)


def simulated(problem: Sums) -> int:
    """The end of the forward on a link that always works on the front layer that is ready, event by event."""
    left, forward = problem.times.tolist(), (problem.tails - np.append(problem.tails[1:], 0)).tolist()
    ready, done, now = problem.ready.tolist(), [0] * problem.layers, 0
    while any(left):
        open_ = [layer for layer, rest in enumerate(left) if rest and ready[layer] <= now]
        later = min((time for time, rest in zip(ready, left, strict=True) if rest and time > now), default=None)
        if not open_:
            assert later is not None
            now = later
            continue
        front = open_[0]
        runs = left[front] if later is None else min(left[front], later - now)
        left[front], now = left[front] - runs, now + runs
        done[front] = now
    clock = ready[0]
    for end, takes in zip(done, forward, strict=True):
        clock = max(clock, end) + takes
    return clock


def least_by_greedy(problem: Sums) -> Fraction:
    """Least T to a nanosecond, by bisection: is what each prefix must save affordable, cheapest bytes first?"""
    assert problem.saved is not None and problem.sizes is not None
    paths, saved, sizes = (each.tolist() for each in (problem.paths(problem.times), problem.saved, problem.sizes))

    def costs(end: Fraction) -> Fraction | None:
        given = [Fraction(0)] * problem.layers
        for j, path in enumerate(paths):
            lacks = path - end - sum(share * each for share, each in zip(given, saved, strict=True))
            for layer in sorted(range(j + 1), key=lambda i: Fraction(sizes[i], saved[i]) if saved[i] else Fraction(0)):
                if lacks > 0 and saved[layer]:
                    more = min(problem.most - given[layer], lacks / saved[layer])
                    given[layer], lacks = given[layer] + more, lacks - more * saved[layer]
            if lacks > 0:
                return None
        return sum((share * size for share, size in zip(given, sizes, strict=True)), Fraction(0))

    low, high = Fraction(0), Fraction(max(paths))
    while high - low > Fraction(1, 10):
        middle = (low + high) / 2
        cost = costs(middle)
        low, high = (low, middle) if cost is not None and cost <= problem.may_lose else (middle, high)
    return high


def test_an_example_by_hand() -> None:
    """Layer 0 binds: its gradients come last, and its sum is long; a nanosecond of layer 1 costs nothing."""
    problem = Sums(*map(np.array, ([30, 20], [40, 10], [12, 7])))
    report = solve(problem, LIMITS, backend="closed")
    assert (report.objective, report.status) == (82, Status.OPTIMAL)
    assert report.solution is not None and report.solution.prices == (1.0, 0.0)


def test_closed_form_is_programme_and_simulation() -> None:
    """Without a budget all three are equal to the nanosecond."""
    random = Random("closed")
    for _ in range(INSTANCES):
        problem = sums_of(random)
        closed = solve(problem, LIMITS, backend="closed")
        programme = solve(problem, LIMITS, backend="linear")
        assert closed.objective == closed.bound == programme.objective == simulated(problem)
        assert programme.bound > closed.bound - max(1, closed.bound // 10**6)
        if closed.objective:
            assert programme.solution is not None and programme.solution.prices[0] == pytest.approx(1)


def test_the_programme_loses_what_is_cheapest() -> None:
    """With a budget it is the least T by bisection, up to what times are rounded by, and its bound is not above it."""
    random = Random("budget")
    for _ in range(INSTANCES // 4):
        problem = sums_of(random, Fraction(random.randint(1, 49), 100))
        report, least = solve(problem, LIMITS), least_by_greedy(problem)
        assert report.objective is not None and report.solution is not None
        assert problem.evaluate(report.solution) == report.objective
        slack = problem.layers + problem.end(problem.times) / 10**6
        assert report.bound <= -(-least.numerator // least.denominator) + 1
        assert report.objective <= float(least) + slack and report.bound >= float(least) - slack
        assert report.stop in (Stop.OPTIMALITY, Stop.EXHAUSTED)


def test_prices_say_what_a_longer_sum_costs() -> None:
    """Of a layer that is not at a kink, T grows by the price of each nanosecond that its sum takes longer."""
    problem = Sums(*map(np.array, ([300, 200, 100], [400, 700, 10], [120, 70, 30])))
    report = solve(problem, LIMITS)
    assert report.solution is not None and report.objective is not None
    for layer, price in enumerate(report.solution.prices):
        longer = problem.times.copy()
        longer[layer] += 5
        assert problem.end(longer) - report.objective == pytest.approx(5 * price)


def test_what_a_budget_is_worth() -> None:
    """A byte more saves what the price of the budget says."""
    layers = tuple(map(np.array, ([300, 0], [400_000, 900_000], [120, 70], [200_000, 450_000], [400, 900])))
    less, more = (solve(Sums(*layers, budget=Fraction(part, 1300)), LIMITS) for part in (13, 14))
    assert less.objective is not None and more.objective is not None and less.solution is not None
    assert less.objective - more.objective == pytest.approx(less.solution.worth, abs=2)


def every_order(counts: list[int]) -> Iterator[tuple[int, ...]]:
    """All orders of chunks, those of a layer in turn."""
    if not any(counts):
        yield ()
    for layer, left in enumerate(counts):
        if left:
            rest = [count - (i == layer) for i, count in enumerate(counts)]
            yield from ((layer, *others) for others in every_order(rest))


def chunks_of(random: Random) -> Chunks:
    """Up to seven chunks of up to four layers."""
    layers = random.randint(1, 4)
    ready, times, tails = rows(random, layers)
    most = max(times)
    counts = [random.randint(0, 3) for _ in range(layers)]
    while sum(counts) > 7:
        counts[counts.index(max(counts))] -= 1
    own = tuple(tuple(random.randint(0, most) for _ in range(count)) for count in counts)
    return Chunks(np.array(ready), np.array(tails), own)


def test_cpsat_is_the_best_of_all_orders() -> None:
    """Within the closed form and one chunk behind it, where the front-first order is too."""
    random = Random("chunks")
    for _ in range(CHUNKED):
        problem = chunks_of(random)
        best = min(map(_end(problem), every_order([len(own) for own in problem.times])))
        report = order(problem, LIMITS)
        assert (report.objective, report.bound) == (best, best)
        assert report.solution is not None and problem.evaluate(report.solution) == best
        longest = max((time for own in problem.times for time in own), default=0)
        simple = order(problem, LIMITS, backend="front-first")
        assert simple.objective is not None
        assert problem.lower_bound() <= best <= simple.objective <= problem.lower_bound() + longest


def _end(problem: Chunks):  # type: ignore[no-untyped-def]
    def end(order: tuple[int, ...]) -> int:
        found = problem.evaluate(order)
        assert found is not None
        return found

    return end


def test_cpsat_begins_with_the_front_first_order() -> None:
    """With no time at all the answer is that order, or the hint."""
    problem = Chunks(np.array([10, 0]), np.array([1, 1]), ((5,), (9, 9)))
    assert front_first(problem) == (1, 1, 0)  # the second chunk of 1 begins at 9, ahead of what is ready at 10
    assert front_first(Chunks(np.array([10, 0]), np.array([99, 0]), ((5,), (4,) * 5))) == (1, 1, 1, 0, 1, 1)
    report = order(problem, Limits(time=0.0))
    assert report.solution is not None and report.objective == problem.evaluate(report.solution)
    assert order(problem, LIMITS, hint=(1, 0, 1)).objective == 24


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"budget": Fraction(1, 2)}, "below 0.5"),
        ({"budget": Fraction(-1, 5)}, "at least 0"),
        ({"budget": Fraction(1, 5)}, "what that saves"),
        ({"ready": np.array([1, 2])}, "never grow"),
        ({"tails": np.array([1, 2])}, "never grow"),
        ({"times": np.array([-1, 2])}, "not negative"),
        ({"times": np.array([1])}, "at least one layer each"),
        ({"saved": np.array([1, 9])}, "no more than its sum"),
    ],
)
def test_wrong_instances_are_refused(change: dict[str, object], why: str) -> None:
    """Each with its reason."""
    fields = {"ready": np.array([2, 1]), "times": np.array([3, 3]), "tails": np.array([2, 1])} | change
    with pytest.raises(ValueError, match=why):
        Sums(**fields)  # type: ignore[arg-type]


def test_what_no_back_end_takes_is_refused() -> None:
    """A budget by the closed form, times beyond integers; and losses or orders that are no solutions have no value."""
    layers = tuple(map(np.array, ([2, 1], [3, 3], [2, 1], [1, 1], [8, 8])))
    with pytest.raises(ValueError, match="use 'linear'"):
        solve(Sums(*layers, budget=Fraction(1, 10)), LIMITS, backend="closed")
    with pytest.raises(BeyondIntegersError):
        Sums(np.array([2**62, 0]), np.array([2**62, 1]), np.array([1, 1]))
    assert Sums(*layers, budget=Fraction(1, 10)).evaluate(Losses((Fraction(1, 5), Fraction(1, 5)), (1, 0))) is None
    assert Sums(*layers, budget=Fraction(1, 10)).evaluate(Losses((Fraction(1, 2), Fraction(0)), (1, 0))) is None
    assert Chunks(np.array([2, 1]), np.array([2, 1]), ((1,), (1,))).evaluate((0, 0)) is None
