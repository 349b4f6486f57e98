"""Cyclic back end for many micro-batches: a short schedule whose middle is a pattern, stretched to the whole step.

It also tries list schedules of the whole step, rule by rule (`by_rules`); for a long step the rules that are best on a
shorter one come first.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import chain

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.common.solvers import cpsat_version
from pipeplan_formulations.schedule.bounds import lower_bound
from pipeplan_formulations.schedule.constructive import constructive
from pipeplan_formulations.schedule.constructive.dispatch import Rule, dispatch, to_orders
from pipeplan_formulations.schedule.constructive.portfolio import automatic, dispatched
from pipeplan_formulations.schedule.cyclic.drain import drain_bound
from pipeplan_formulations.schedule.cyclic.ends import with_ends, with_tail
from pipeplan_formulations.schedule.cyclic.holding import period_bound, reach, step_bound
from pipeplan_formulations.schedule.cyclic.pattern import Pattern
from pipeplan_formulations.schedule.cyclic.period import least_period, refined
from pipeplan_formulations.schedule.cyclic.repeat import stretched
from pipeplan_formulations.schedule.cyclic.stride import stride_bound
from pipeplan_formulations.schedule.instance import Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import feasible
from pipeplan_formulations.schedule.start import open_bracket

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
        yield from _rules(problem)
        return
    short, longer = replace(problem, micro_batches=few), replace(problem, micro_batches=some)
    times = Fraction(problem.micro_batches - some, some - few)
    estimates: list[tuple[Fraction, int]] = []
    for place, (rule, same) in enumerate(zip(_rules(short), _rules(longer), strict=True)):
        value = dispatch(longer, same)[0]
        estimates.append((value + times * (value - dispatch(short, rule)[0]), place))
        if clock.left <= 0:
            break
    rules = list(_rules(problem))
    yield from (rules[place] for _, place in sorted(estimates))


def _rules(problem: PipelineSchedule) -> Iterator[Rule]:
    return chain(automatic(problem), dispatched(problem))


NAME = "cyclic"
UNITS = (1, 2, 3, 4)
"""Numbers of micro-batches of a period that are tried."""
WORTH_MORE = 0.003
"""Relative gap of the period to the bound for any unit, above which a larger unit is tried."""
RULES = 0.3
"""Share of the time for list schedules of the whole step before patterns are searched."""
TAILS = 0.3
"""Share of the time left then for other tails of the best of them."""
FINALISTS = 2
"""Number of list schedules that get other tails: the best schedule need not be the best up to its tail."""
ROUND_TRIPS = 1.5
"""Length of a tail, in multiples of the longest round trip."""
PATTERNS = 0.6
"""Share of the time left then for patterns."""
STRIDE = 0.5
"""Share of the time for the bound by CP-SAT (`stride_bound`)."""
REFINE = 3.0
"""Largest number of seconds to shorten a pattern's latency."""
SMALL = 10_000
"""Largest number of forwards of a step for which the bound over all operations (`lower_bound`) is computed."""
MULTIPLE = 12
"""The short schedule and the long one differ by a multiple of this; all units of a repeated segment divide it."""


def solve(
    problem: PipelineSchedule, limits: Limits, hint: Orders | None = None, on_progress: Progress | None = None
) -> Report[Orders]:
    """Minimise the step time heuristically for any number of micro-batches, with lower bounds that are cheap for many.

    The bounds are `step_bound` and `drain_bound`, and `lower_bound` for small steps. If memory limits the period there
    is also `stride_bound`, which takes a share of the time. The rest of the time is shared by list schedules of the
    whole step, patterns of one, two, … micro-batches, heads and tails of a short step around the best of them, and a
    list schedule of a short step. ``hint`` is returned if nothing better is found, and ignored if it is not feasible.

    Patterns and their bounds do not model link resources: they are those of the problem without contention
    (`PipelineSchedule.unshared`), and the resulting orders are evaluated with them. They do not model a second
    lane either: for devices with two lanes there are list schedules, and `lower_bound` for any size.
    """
    bracket = open_bracket(problem, limits, on_progress)
    if bracket.impossible:
        return bracket.report(Stop.OPTIMALITY, NAME, cpsat_version())
    # Bounds that are cheap for many micro-batches; then candidates, with the stride bound after the first of them.
    easier, clock = problem.unshared, bracket.clock
    if easier.plain:
        bracket.low = max(step_bound(easier), drain_bound(easier))
    if problem.micro_batches * problem.stages <= SMALL or not easier.plain:
        bracket.low = max(bracket.low, lower_bound(problem))
    interrupted, asked = False, not easier.plain
    try:
        if hint is not None and feasible(problem, hint):
            bracket.offer(hint)
        for orders in _candidates(problem, limits, clock):
            bracket.offer(orders)
            if clock.left <= 0 or bracket.closed:
                break
            if not asked:
                asked = True
                bracket.raise_low(stride_bound(easier, replace(limits, time=STRIDE * clock.left, gap=0.0)))
    except KeyboardInterrupt:
        interrupted = True
    if bracket.closed:
        stop = Stop.GAP
    elif interrupted:
        stop = Stop.INTERRUPT
    else:
        stop = Stop.TIME if clock.left <= 0 or bracket.best is None else Stop.EXHAUSTED
    return bracket.report(stop, NAME, cpsat_version())


def unrolled(problem: PipelineSchedule, limits: Limits | None = None) -> Orders | None:
    """Orders of `solve`; None if the problem is impossible or time too short."""
    return solve(problem, limits or Limits(time=30.0)).solution


def patterns(problem: PipelineSchedule, limits: Limits, clock: Clock) -> list[Pattern]:
    """Patterns of one, two, … micro-batches, the least period per micro-batch first."""
    found: list[Pattern] = []
    for unit in UNITS:
        if found and found[0].period / found[0].unit <= (1 + WORTH_MORE) * period_bound(problem, unit) / unit:
            break
        if clock.left <= 0:
            break
        # Start from a repeated smaller pattern; search only periods below the best so far, then shorten the latency.
        ahead = next((p for p in found if unit % p.unit == 0), None)
        hint = None if ahead is None else repeated(ahead, unit // ahead.unit)
        below = None if not found else found[0].period * unit // found[0].unit
        part = Limits(clock.left if unit == UNITS[-1] else clock.left / 2, WORTH_MORE / 2, limits.workers, limits.seed)
        least = least_period(problem, unit, part, hint, below=below).pattern
        if least is not None and (not found or least.period * found[0].unit < found[0].period * unit):
            shorter = Limits(min(REFINE, max(0.1, clock.left / 4)), 0.0, limits.workers, limits.seed)
            found.insert(0, refined(problem, least, shorter, "latency"))
    return found


def repeated(pattern: Pattern, times: int) -> Pattern:
    """Same endless schedule as a pattern of ``times`` periods."""
    starts = {
        Op(op.kind, op.stage, op.micro_batch + n * pattern.unit): start + n * pattern.period
        for op, start in pattern.starts.items()
        for n in range(times)
    }
    return Pattern(pattern.unit * times, pattern.period * times, starts)


def _candidates(problem: PipelineSchedule, limits: Limits, clock: Clock) -> Iterator[Orders]:
    """Candidate orders: by rules, around each pattern, and by the repeated middle of a short list schedule.

    Rules come first, since with ample memory they are hard to beat, and again after the share of the patterns.
    """

    def part(share: float) -> Clock:
        return Clock(replace(limits, time=share * clock.left))

    # List schedules of the whole step by the first rules.
    rules, listed = by_rules(problem, part(RULES / 2)), []
    for orders in _until(part(RULES), rules):
        listed.append(orders)
        yield orders
    easier = problem.unshared
    if not easier.plain:
        yield from _until(part(1 / 2), rules)
        yield from _short_list(problem, 2 * problem.stages, clock)
        return
    if problem.sent:  # candidates of the problem without contention, then a list schedule of the problem itself
        yield from _candidates(easier, replace(limits, time=clock.left), part(PATTERNS))
        yield from _short_list(problem, 2 * problem.stages, clock)
        return
    # Other tails of the best list schedules, then patterns, then the remaining rules and a short list schedule.
    tails, latency = part(TAILS), int(ROUND_TRIPS * max(reach(problem).round_trip))
    for n, orders in enumerate(reversed(listed[-FINALISTS:]), 1):
        yield with_tail(problem, orders, latency, Clock(replace(limits, time=tails.left * n / FINALISTS)))
    longest, share = 1, PATTERNS * clock.left
    for pattern in patterns(problem, limits, part(PATTERNS)):
        yield from _around(problem, pattern, Clock(replace(limits, time=min(clock.left, share / 2))))
        longest = max(longest, -(-pattern.latency(problem) // pattern.period) * pattern.unit)
    yield from _until(part(1 / 2), rules)
    yield from _short_list(problem, 2 * longest, clock)


def _short_list(problem: PipelineSchedule, ends: int, clock: Clock) -> Iterator[Orders]:
    """List schedule of a short step, stretched to the whole step."""
    small = _short(problem, ends)
    found = constructive(small, clock.left / 2)
    if found is not None:
        long = stretched(small, found[1], problem.micro_batches, clock)
        if long is not None:
            yield long


def _until(clock: Clock, candidates: Iterator[Orders | None]) -> Iterator[Orders]:
    """Candidates that are not None, until the clock runs out."""
    while clock.left > 0:
        try:
            orders = next(candidates)
        except StopIteration:
            return
        if orders is not None:
            yield orders


def _around(problem: PipelineSchedule, pattern: Pattern, clock: Clock) -> Iterator[Orders]:
    """Orders of the pattern alone, and with other ends around a middle long enough to repeat."""
    yield pattern.orders(problem)
    latency = pattern.latency(problem)
    small = _short(problem, 2 * pattern.unit * (latency // pattern.period + 2))
    short = with_ends(small, pattern.orders(small), latency, clock)
    long = stretched(small, short, problem.micro_batches, Clock(Limits(time=max(1.0, clock.left))))
    if long is not None:
        yield long


def _short(problem: PipelineSchedule, ends: int) -> PipelineSchedule:
    """Short step with somewhat more than ``ends`` micro-batches, differing from the whole by a multiple of all units.

    It is the step itself if that has fewer than twice as many: greedy schedules do not always have a segment to repeat.
    """
    few = ends + 2 * MULTIPLE + (problem.micro_batches - ends) % MULTIPLE
    return problem if problem.micro_batches < 2 * few else replace(problem, micro_batches=few)
