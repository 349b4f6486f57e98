"""Tables of times for every span of layers that a stage can hold, for the dynamic programmes.

::

    row      a = b_s, the start of the stage          table[i, j]: the stage that begins at starts[i]
    column   b − a − 1, its number of layers less 1                and ends at starts[i] + 1 + j

A backward includes the least recomputation that lets the span fit.
"""

from dataclasses import dataclass

import numpy as np

from pipeplan_formulations.common.layer_tables import Array, Flags
from pipeplan_formulations.common.pass_times import Times
from pipeplan_formulations.common.report import BeyondIntegersError
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.objective import (
    Hop,
    copies_update,
    delays_of_resources,
    link_per_sample,
    reductions,
    stage_per_sample,
)
from pipeplan_formulations.partition.terms import ahead, behind, delays, in_all, load
from pipeplan_formulations.partition.windows import Windows

NEVER = 2**61
"""A time that no partition reaches. Two of them still fit into int64."""


def require_countable(problem: ChainPartition) -> None:
    """Refuse times whose sums a programme cannot tell from `NEVER`.

    Raises
    ------
    BeyondIntegersError
    """
    if problem.largest >= NEVER // 2:
        raise BeyondIntegersError(f"times add up to {problem.largest}, beyond {NEVER // 2}; scale them")


@dataclass(frozen=True)
class Spans:
    """Spans of stage s whose time may stay within some target; entries of closed spans are `NEVER`.

    Attributes
    ----------
    starts : array, shape (A,)
        Open starts.
    ends : array, shape (A, W)
        b of each entry (clipped to n in closed ones).
    work : array, shape (A, W)
        M_s w_s, or the way through of slices; the loads for 'bottleneck'.
    advance : array, shape (A, W)
        Increase of H: p_s + q_s. For stage 0 it includes E_0.
    trip : array, shape (A, W)
        Increase of R; that of H, unless a round trip counts other times.
    behind : array, shape (A, W)
        q_s, which is `advance` less p_s; for 'period' p_s + q_s. For stage 0 it includes E_0; 0 in closed spans.
    delay : array, shape (A, W)
        Largest e of the services, warm-up and link-resource bounds of the stage.
    ending : array, shape (A, W), or int
        E_s of the own-ending bound; 0 in closed spans.
    """

    starts: Array
    ends: Array
    work: Array
    advance: Array
    trip: Array
    behind: Array
    delay: Array
    ending: Array | int


def spans(
    problem: ChainPartition, s: int, starts: Array, room: Windows, allowed: Flags, target: int, least: int = 0
) -> Spans:
    """Spans of stage s from ``starts`` to ends that are ``allowed`` (bool, shape (n + 1,)) and fit the memory limit.

    Spans whose compute time alone exceeds ``target`` are closed. E_0 counts as ``least`` where it is less.
    """
    n, final = problem.layers, s == problem.stages - 1
    count, begins = problem.through[s], starts[:, None]
    ends, closed = _reached(problem, s, starts, room, allowed, target)
    # F and B of each span, recomputation included; sends at its end, busy time of the link, and sends at its start.
    f, b = (table[ends] - table[begins] for table in (problem.prefix["forward"][s], problem.prefix["backward"][s]))
    b += problem.recomputing.lower_bounds(s, begins, ends, ~closed)
    nothing = np.zeros(n + 1, np.int64)
    sent, returned, busy = (
        _at_boundary(table[s]) if not final else nothing for table in (problem.send, problem.send_back, problem.link)
    )
    passed_back = _at_boundary(problem.send_back[s - 1])[begins] if s else 0
    # w_s; with 'bottleneck' that is all.
    per_batch = load(problem.overlap, f, b, sent[ends], passed_back)
    if problem.endless:
        once = reductions(problem, np.array(s), begins, ends)
        work: Array = np.zeros_like(once)
        if problem.objective == "delayed":  # sums run beside the next batch
            update = problem.prefix["update"][s]
            work, once = once, update[ends] - update[begins] + copies_update(problem, np.array(s), begins, ends)
        work = np.maximum(work, stage_per_sample(problem, count.stage, per_batch, once))
        if problem.overlap != "none":
            work = np.maximum(work, link_per_sample(problem, count.out, busy[ends]))
        return Spans(starts, ends, np.where(closed, NEVER, work), nothing, nothing, nothing, nothing, 0)
    # V_s, E_s with its delayed weight gradients, and q_s.
    weight = problem.prefix["weight"][s]
    own_weight = np.where(closed, 0, weight[ends] - weight[begins])
    own = ending_of(problem, s, begins, ends, closed)
    if not s and least:
        own = np.where(closed, 0, np.maximum(own, least))
    # What is done up to the last backward, and what then remains of the step: E_s with those V that follow.
    through = None if problem.late_behind is None else problem.late_behind[ends]
    every_way = [*in_all(count.stage, per_batch, Times(f, b), through)]
    work = np.maximum.reduce(np.broadcast_arrays(*(busy for busy, _ in every_way)))
    ending = own
    if problem.weight is not None:
        ending = np.maximum.reduce([busy + many * own_weight for busy, many in every_way]) - work + own
    latency = 0 if final else int(problem.latency[s])
    behind_all: Array | int = 0
    if not s:
        behind_all = own + np.where(closed, 0, problem.weight_of("ahead", own_weight, s, begins, ends))
    way, trip, service = problem.roles(Times(f, b), s, begins, ends)
    later = behind(problem.overlap, way.backward, latency, passed_back, returned[ends]) + behind_all
    there = ahead(problem.overlap, way.forward, latency, sent[ends])
    advance: Array = np.where(closed, NEVER, there + later)
    passed = advance
    if problem.trip_apart:
        passed = behind(problem.overlap, trip.backward, latency, passed_back, returned[ends]) + behind_all
        passed = np.where(closed, NEVER, passed + ahead(problem.overlap, trip.forward, latency, sent[ends]))
    # Delays of the services and warm-up bounds, then of the link-resource bound.
    late_weight = problem.weight_of("service", own_weight, s, begins, ends)
    longer = problem.longer(Times(f, b), trip)
    every = [*delays(problem.overlap, count, service, trip, longer, sent[ends], passed_back, late_weight)]
    if problem.resources:
        passed_on = _at_boundary(problem.send[s - 1])[begins] if s else 0
        before = Hop(passed_on, passed_back, int(problem.latency[s - 1]) if s else 0)
        beyond = Hop(sent[ends], returned[ends], latency)
        every += delays_of_resources(
            problem, s, trip, before, beyond, lambda link, row: _at_boundary(row)[ends if link == s else begins]
        )
    delay = np.maximum.reduce(np.broadcast_arrays(*every))
    return Spans(
        starts,
        ends,
        np.where(closed, NEVER, work),
        advance,
        passed,
        np.where(closed, 0, later if problem.objective == "step" else there + later),
        np.where(closed, NEVER, delay),
        ending,
    )


def _reached(
    problem: ChainPartition, s: int, starts: Array, room: Windows, allowed: Flags, target: int
) -> tuple[Array, Flags]:
    """Ends of each start in columns, and which spans are closed; the last stage has one end, n, and so one column."""
    n, final = problem.layers, s == problem.stages - 1
    # The furthest end of each start, by compute time and by memory.
    compute = problem.prefix["forward"][s] + problem.prefix["backward"][s]
    most = target * (problem.divisor if problem.endless else 1) // problem.through[s].stage
    reach = np.searchsorted(compute, compute[starts] + most, side="right") - 1
    if final:
        reach = np.where(reach >= n, n, 0)
    reach = np.minimum(reach, room.last[s, starts])
    width = max(1, int((reach - starts).max(initial=1)))
    ends = np.full((len(starts), 1), n) if final else starts[:, None] + 1 + np.arange(width)
    closed = ends > reach[:, None]
    ends = np.minimum(ends, n)
    return ends, closed | ~allowed[ends]


def ending_of(problem: ChainPartition, s: int, begins: Array, ends: Array, closed: Flags) -> Array | int:
    """E_s of the open spans, 0 in closed ones; the number 0 if it is 0 everywhere."""
    update = problem.prefix["update"][s]
    ending = update[ends] - update[begins]
    if problem.reduce.any() or problem.gather.any() or problem.ties:
        stage = np.array(s)
        ending = ending + reductions(problem, stage, begins, ends) + copies_update(problem, stage, begins, ends)
    ending = np.where(closed, 0, ending)
    return ending if ending.any() else 0


def _at_boundary(cuts: Array) -> Array:
    """Times per cut c as times per boundary b = c + 1; 0 at both ends."""
    return np.concatenate([[0], cuts, [0]])
