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
"""Micro-batches for each stage of the two steps on which rules are ranked."""
LONG = 2
"""A step is long if it has so many times the micro-batches of the longer one."""


def by_rules(problem: PipelineSchedule, ranking: Clock) -> Iterator[Orders | None]:
    """For each rule its orders of a possible problem, or None where a rule before was as good.

    ``ranking`` limits the time in which rules are ranked; there is no limit to the rest.
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
    """As the portfolio orders them, or where a step is long, by what they make of a shorter one.

    From two short steps it is foreseen what the long one takes: good ends are soon made good for by a good middle.
    """
    few, some = (rounds * problem.stages for rounds in ROUNDS)
    if problem.micro_batches < LONG * some:
        yield from _rules(problem)
        return
    short, longer = replace(problem, micro_batches=few), replace(problem, micro_batches=some)
    times = Fraction(problem.micro_batches - some, some - few)
    foreseen: list[tuple[Fraction, int]] = []
    for place, (rule, same) in enumerate(zip(_rules(short), _rules(longer), strict=True)):
        value = dispatch(longer, same)[0]
        foreseen.append((value + times * (value - dispatch(short, rule)[0]), place))
        if clock.left <= 0:
            break
    rules = list(_rules(problem))
    yield from (rules[place] for _, place in sorted(foreseen))


def _rules(problem: PipelineSchedule) -> Iterator[Rule]:
    return chain(automatic(problem), dispatched(problem))


NAME = "cyclic"
UNITS = (1, 2, 3, 4)
"""Micro-batches of a period that are tried."""
WORTH_MORE = 0.003
"""A larger unit is tried while the period is so much, in parts of it, above what any unit can reach."""
RULES = 0.3
"""Part of the time for list schedules of the whole step before patterns are looked for."""
TAILS = 0.3
"""Part of what is left then for other tails of the best of them."""
FINALISTS = 2
"""So many are given other tails: what is best as a whole need not be it up to its tail."""
ROUND_TRIPS = 1.5
"""Length of a tail, in round trips of the longest."""
PATTERNS = 0.6
"""Part of what is left then for patterns."""
STRIDE = 0.5
"""Part of the time for the bound that asks CP-SAT."""
SETTLE = 3.0
"""Most seconds to shorten a pattern's latency."""
SMALL = 10_000
"""Forwards of a step up to which the bound that looks at each operation is worth its time."""
MULTIPLE = 12
"""The short schedule and the long one differ by a multiple of this, which all units of a stretch divide."""


def solve(
    problem: PipelineSchedule, limits: Limits, hint: Orders | None = None, progress: Progress | None = None
) -> Report[Orders]:
    """Orders for any number of micro-batches, and the best of the bounds that cost little for many.

    They are `step_bound` and `drain_bound`, of small steps `lower_bound` too; of those that memory keeps
    `stride_bound`, which costs a part of the time. The rest is shared between list schedules of the whole step,
    patterns of one, two, … micro-batches, heads and tails of a short step around the best of them, and a list schedule
    of a short one. ``hint`` is returned if nothing better is found, and ignored if it is not feasible.

    Patterns and their bounds know no wires: they are those of the problem with wires for everybody
    (`PipelineSchedule.unshared`), and what comes of them is timed with the wires there are. They know no second lane
    either: where devices have two there are list schedules, and `lower_bound` whatever the size.
    """
    bracket = open_bracket(problem, limits, progress)
    if bracket.impossible:
        return bracket.report(Stop.OPTIMALITY, NAME, cpsat_version())
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
    """`solve`'s orders; None if the problem is impossible or time too short."""
    return solve(problem, limits or Limits(time=30.0)).solution


def patterns(problem: PipelineSchedule, limits: Limits, clock: Clock) -> list[Pattern]:
    """Patterns of one, two, … micro-batches, the least period for each micro-batch first."""
    found: list[Pattern] = []
    for unit in UNITS:
        if found and found[0].period / found[0].unit <= (1 + WORTH_MORE) * period_bound(problem, unit) / unit:
            break
        if clock.left <= 0:
            break
        ahead = next((p for p in found if unit % p.unit == 0), None)
        hint = None if ahead is None else repeated(ahead, unit // ahead.unit)
        below = None if not found else found[0].period * unit // found[0].unit
        part = Limits(clock.left if unit == UNITS[-1] else clock.left / 2, WORTH_MORE / 2, limits.workers, limits.seed)
        least = least_period(problem, unit, part, hint, below=below).pattern
        if least is not None and (not found or least.period * found[0].unit < found[0].period * unit):
            shorter = Limits(min(SETTLE, max(0.1, clock.left / 4)), 0.0, limits.workers, limits.seed)
            found.insert(0, refined(problem, least, shorter, "latency"))
    return found


def repeated(pattern: Pattern, times: int) -> Pattern:
    """The same pattern, told as one of so many periods."""
    starts = {
        Op(op.kind, op.stage, op.micro_batch + n * pattern.unit): start + n * pattern.period
        for op, start in pattern.starts.items()
        for n in range(times)
    }
    return Pattern(pattern.unit * times, pattern.period * times, starts)


def _candidates(problem: PipelineSchedule, limits: Limits, clock: Clock) -> Iterator[Orders]:
    """Orders for the problem: by rules, around each pattern, around what the middle of a list schedule happens to be.

    Rules come first, as with memory enough they are hard to beat, and again when patterns have had their share.
    """

    def part(share: float) -> Clock:
        return Clock(replace(limits, time=share * clock.left))

    rules, listed = by_rules(problem, part(RULES / 2)), []
    for orders in _until(part(RULES), rules):
        listed.append(orders)
        yield orders
    easier = problem.unshared
    if not easier.plain:
        yield from _until(part(1 / 2), rules)
        yield from _short_list(problem, 2 * problem.stages, clock)
        return
    if problem.sent:  # as if they were plain, then as they are again
        yield from _candidates(easier, replace(limits, time=clock.left), part(PATTERNS))
        yield from _short_list(problem, 2 * problem.stages, clock)
        return
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
    """A list schedule of a short step, stretched."""
    small = _short(problem, ends)
    found = constructive(small, clock.left / 2)
    if found is not None:
        long = stretched(small, found[1], problem.micro_batches, clock)
        if long is not None:
            yield long


def _until(clock: Clock, candidates: Iterator[Orders | None]) -> Iterator[Orders]:
    """Those that are not None, until the clock runs out."""
    while clock.left > 0:
        try:
            orders = next(candidates)
        except StopIteration:
            return
        if orders is not None:
            yield orders


def _around(problem: PipelineSchedule, pattern: Pattern, clock: Clock) -> Iterator[Orders]:
    """The pattern alone, and with other ends around a middle long enough to stretch."""
    yield pattern.orders(problem)
    latency = pattern.latency(problem)
    small = _short(problem, 2 * pattern.unit * (latency // pattern.period + 2))
    short = with_ends(small, pattern.orders(small), latency, clock)
    long = stretched(small, short, problem.micro_batches, Clock(Limits(time=max(1.0, clock.left))))
    if long is not None:
        yield long


def _short(problem: PipelineSchedule, ends: int) -> PipelineSchedule:
    """The step with some micro-batches more than ``ends``, and fewer than the whole by a multiple of all units.

    The step itself, if it has not even twice as many: greedy schedules do not always have a stretch to repeat.
    """
    few = ends + 2 * MULTIPLE + (problem.micro_batches - ends) % MULTIPLE
    return problem if problem.micro_batches < 2 * few else replace(problem, micro_batches=few)
