"""Back end for steps of many micro-batches: list schedules, also of a short step whose middle is repeated.

Of the rules (`by_rules`) those that are best on a shorter step come first if the step is long.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.common.solvers import cpsat_version
from pipeplan_formulations.schedule.bounds import lower_bound
from pipeplan_formulations.schedule.constructive import constructive
from pipeplan_formulations.schedule.constructive.dispatch import Rule, dispatch, to_orders
from pipeplan_formulations.schedule.constructive.portfolio import dispatched
from pipeplan_formulations.schedule.instance import Orders, PipelineSchedule
from pipeplan_formulations.schedule.long_steps.drain import drain_bound
from pipeplan_formulations.schedule.long_steps.holding import step_bound
from pipeplan_formulations.schedule.long_steps.repeat import stretched
from pipeplan_formulations.schedule.long_steps.stride import stride_bound
from pipeplan_formulations.schedule.objective import feasible
from pipeplan_formulations.schedule.start import open_bracket

NAME = "lists"
RANKING, RULES = 0.15, 0.5
"""Shares of the time for ranking the rules on shorter steps, and for rules before a short step is tried."""
STRIDE = 0.5
"""Share of the time for the bound by CP-SAT (`stride_bound`)."""
SMALL = 10_000
"""Largest number of forwards of a step for which the bound over all operations (`lower_bound`) is computed."""
MULTIPLE = 12
"""The short step and the long one differ by a multiple of this; all units of a repeated segment divide it."""
ROUNDS = (4, 8)
"""Micro-batches per stage of the two short steps on which rules are ranked."""
LONG = 2
"""A step is long if it has at least this multiple of the micro-batches of the longer one."""


def by_rules(problem: PipelineSchedule, ranking: Clock) -> Iterator[Orders | None]:
    """Orders of a possible problem by each dispatching rule, or None if an earlier rule was as good.

    ``ranking`` limits the time for ranking the rules; the rest has no limit.
    """
    least: int | None = None
    for rule in _ranked(problem, ranking):
        value, numbered = dispatch(problem, rule)
        if least is None or value < least:
            least = value
            yield to_orders(problem, numbered)
        else:
            yield None


def _ranked(problem: PipelineSchedule, clock: Clock) -> Iterator[Rule]:
    """Rules in the order of the portfolio, or for a long step ranked by their results on shorter ones.

    The makespan of the long step is extrapolated from two short steps, since its middle matters more than its ends.
    """
    few, some = (rounds * problem.stages for rounds in ROUNDS)
    if problem.micro_batches < LONG * some:
        yield from dispatched(problem)
        return
    short, longer = replace(problem, micro_batches=few), replace(problem, micro_batches=some)
    times = Fraction(problem.micro_batches - some, some - few)
    estimates: list[tuple[Fraction, int]] = []
    for place, (rule, same) in enumerate(zip(dispatched(short), dispatched(longer), strict=True)):
        value = dispatch(longer, same)[0]
        estimates.append((value + times * (value - dispatch(short, rule)[0]), place))
        if clock.left <= 0:
            break
    rules = list(dispatched(problem))
    yield from (rules[place] for _, place in sorted(estimates))


def solve(
    problem: PipelineSchedule, limits: Limits, hint: Orders | None = None, on_progress: Progress | None = None
) -> Report[Orders]:
    """Minimise the step time heuristically for any number of micro-batches, with lower bounds that are cheap for many.

    The bounds are `step_bound` and `drain_bound`, and `lower_bound` for small steps. If memory limits the period there
    is also `stride_bound`, which takes a share of the time. The rest of the time is for list schedules. ``hint`` is
    returned if nothing better is found, and ignored if it is not feasible.

    The cheap bounds do not model link resources: they are those of the problem without contention
    (`PipelineSchedule.unshared`). They do not model a second lane either: for devices with two lanes there is
    `lower_bound` for any size.
    """
    bracket = open_bracket(problem, limits, on_progress)
    if bracket.impossible:
        return bracket.report(Stop.OPTIMALITY, NAME, cpsat_version())
    easier = problem.unshared
    if easier.plain:
        bracket.low = max(step_bound(easier), drain_bound(easier))
    if problem.micro_batches * problem.stages <= SMALL or not easier.plain:
        bracket.low = max(bracket.low, lower_bound(problem))
    try:
        if hint is not None and feasible(problem, hint):
            bracket.offer(hint)
        _search(problem, bracket)
    except KeyboardInterrupt:
        return bracket.report(Stop.GAP if bracket.closed else Stop.INTERRUPT, NAME, cpsat_version())
    if bracket.closed:
        return bracket.report(Stop.GAP, NAME, cpsat_version())
    late = bracket.clock.left <= 0 or bracket.best is None
    return bracket.report(Stop.TIME if late else Stop.EXHAUSTED, NAME, cpsat_version())


def _search(problem: PipelineSchedule, bracket: Bracket[Orders]) -> None:
    """Offer list schedules until time is over; after the first one there is the stride bound."""
    easier, limits, clock = problem.unshared, bracket.limits, bracket.clock
    asked = not easier.plain
    for orders in _candidates(problem, limits, clock, bracket.best is None):
        bracket.offer(orders)
        if clock.left <= 0 or bracket.closed:
            return
        if not asked:
            asked = True
            bracket.raise_low(stride_bound(easier, replace(limits, time=STRIDE * clock.left, gap=0.0)))


def _candidates(problem: PipelineSchedule, limits: Limits, clock: Clock, must: bool) -> Iterator[Orders]:
    """Orders by the first rules, by the repeated middle of a short list schedule, and by the other rules.

    If there ``must`` be one, the first comes whatever the time: also where bounds took all of it.
    """
    rules = by_rules(problem, Clock(replace(limits, time=RANKING * clock.left)))
    if must:
        yield next(orders for orders in rules if orders is not None)
    yield from _until(Clock(replace(limits, time=RULES * clock.left)), rules)
    small = _short(problem)
    found = constructive(small, clock.left / 2)
    long = None if found is None else stretched(small, found[1], problem.micro_batches, clock)
    if long is not None:
        yield long
    yield from _until(clock, rules)


def _until(clock: Clock, candidates: Iterator[Orders | None]) -> Iterator[Orders]:
    """Candidates that are not None, until the clock runs out."""
    while clock.left > 0:
        try:
            orders = next(candidates)
        except StopIteration:
            return
        if orders is not None:
            yield orders


def _short(problem: PipelineSchedule) -> PipelineSchedule:
    """Short step with two micro-batches per stage and some more, differing from the whole by a multiple of all units.

    It is the step itself if that has fewer than twice as many: greedy schedules do not always have a segment to repeat.
    """
    ends = 2 * problem.stages
    few = ends + 2 * MULTIPLE + (problem.micro_batches - ends) % MULTIPLE
    return problem if problem.micro_batches < 2 * few else replace(problem, micro_batches=few)
