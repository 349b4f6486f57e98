"""Dynamic programme for the objective 'step' without path cuts: bisection, Pareto labels over (stage, boundary).

With a target, the way-back bound is a test of one stage: H_s + M_s w_s ≤ target, where H_s = E_0 + Σ_{t<s} (p_t + q_t).
The label of a prefix of stages has three numbers:

- H, smaller is better;
- the largest delay e so far, smaller is better: services, warm-up and link resources add the largest e to R, known only
  at the end;
- the slack D_s = E_0 + Σ_{t<s} q_t, larger is better: the own-ending bound is H_s − D_s + M_s w_s + E_s ≤ target.

R is H with the last stage, unless a round trip counts other times than the way ahead (`PassTables.trip_apart`). Then R
so far is a fourth number, smaller is better.

Each boundary holds a Pareto set of labels:

::

    e │ ×                       × kept: no label left of and below it has as much slack
      │    ×     ·              · dominated
      │       ×       ·
      └─────────────────── H

A backward pass computes for each boundary the largest H that can still meet the target, the least and the most that R
can still grow, and the least e of the later stages. It reduces the labels in three ways:

- A label is dropped if its H is too large, or its e too large even for the least R.
- An e below that of the later stages counts as that value, and so does an e that meets the target even for the most R.
- Slack beyond what any later stage can use for its ending is cut off. Endings are short, so all labels of a boundary
  usually have the same slack.

Balanced stages have nearly the same e, so few labels per boundary remain.

Where E_{S−1} may take the place of E_0, the relaxation counts the least E_{S−1} of all starts of the last stage. Labels
are made for each E_{S−1} by itself (`_Stages.parts`), with the starts that have it.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.pareto import Indices, minimal, spread, undominated
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.spans import NEVER, Spans, ending_of, spans
from pipeplan_formulations.partition.tables import Boundaries
from pipeplan_formulations.partition.windows import Windows

BEAM = 12
"""Labels per boundary in the quick attempt before each exhaustive one."""


def solve_step(problem: ChainPartition, room: Windows, bracket: Bracket[Boundaries]) -> None:
    """Close the bracket for the problem without path cuts. Some partition must satisfy the memory limit."""
    # Double the target until the backward pass, a relaxation, allows a partition, which becomes an incumbent.
    target = max(1, bracket.low)
    if bracket.horizon < UNLIMITED:
        target = max(target, bracket.horizon - (bracket.horizon == bracket.cutoff))
    while not bracket.beyond:
        stages = _Stages(problem, room, target, bracket.clock)
        view = _backward_pass(stages, target, bracket)
        if view.possible:
            break
        bracket.raise_low(target + 1)
        target *= 2
    if bracket.beyond:
        return
    bracket.offer(view.follow(stages.tables))

    # Bisect for the least target of the relaxation.
    while bracket.low < target and not bracket.closed:
        middle = (bracket.low + target) // 2
        view = _backward_pass(stages, middle, bracket)
        if view.possible:
            bracket.offer(view.follow(stages.tables))
            target = middle
        else:
            bracket.raise_low(middle + 1)
    assert bracket.high is not None
    # Bisect with labels, between that bound and the incumbent.
    stages = _Stages(problem, room, bracket.horizon, bracket.clock)
    target, failures = bracket.low, 0
    while not bracket.closed:
        attempts = (_labels(part, target, bracket, beam) for part in stages.parts() for beam in (BEAM, None))
        found = next(filter(None, attempts), None)
        if found is None:
            bracket.raise_low(target + 1)
            failures += 1
        else:
            bracket.offer(found)
            failures = 0
        # Two failures in a row suggest that nothing is better; one test just below the horizon then proves that.
        target = bracket.horizon - 1 if failures == 2 else (bracket.low + bracket.horizon - 1) // 2


class _Stages:
    """Every stage's spans for a target, and the slack that the own-ending bound can use.

    Attributes
    ----------
    tables : list of Spans
    trip_apart : bool
        True if R is a number of a label beside H.
    slack : array, shape (S + 1, n + 1), or None
        The most slack with which any prefix reaches a boundary; None where own ending adds nothing to way back.
    """

    def __init__(self, problem: ChainPartition, room: Windows, target: int, clock: Clock) -> None:
        self.shape = (problem.stages + 1, problem.layers + 1)
        self.tables: list[Spans] = []
        self.trip_apart = problem.trip_apart
        self._problem, self._room, self._target = problem, room, target
        for s in range(problem.stages):
            clock.check()
            starts = np.flatnonzero(room.open[s, : problem.layers])
            self.tables.append(spans(problem, s, starts, room, room.open[s + 1], target))
        if problem.ends_together:
            self._late = self._last_endings()
            self._begin(int(self._late.min(initial=target + 1)))
        self.slack = self._most_slack()

    def parts(self) -> Iterator["_Stages"]:
        """The stages once for each E_{S−1} that may exceed E_0, with the starts of the last stage that have it."""
        if not self._problem.ends_together:
            yield self
            return
        for least in np.unique(self._late[self._late <= self._target]).tolist():
            part, last, others = copy(self), self.tables[-1], (self._late != least)[:, None]
            names = ("work", "advance", "trip", "delay")
            closed = {name: np.where(others, NEVER, getattr(last, name)) for name in names}
            part.tables = [*self.tables[:-1], replace(last, **closed)]
            part._begin(least)
            part.slack = part._most_slack()
            yield part

    def _begin(self, least: int) -> None:
        """Let E_0 count as ``least`` where it is less."""
        first, room = self.tables[0].starts, self._room
        self.tables[0] = spans(self._problem, 0, first, room, room.open[1], self._target, least)

    def _last_endings(self) -> Array:
        """E_{S−1} for each start of the last stage, or the least E_0 where that is more; `NEVER` in closed spans."""
        endings = []
        for s in (0, len(self.tables) - 1):
            table = self.tables[s]
            closed = table.work >= NEVER
            ending = ending_of(self._problem, s, table.starts[:, None], table.ends, closed)
            endings.append(np.where(closed, NEVER, ending))
        first, last = endings
        late: Array = np.maximum(last[:, 0], first.min(initial=NEVER))
        return late

    def _most_slack(self) -> Array | None:
        """The most slack at each boundary, over all prefixes; None where own ending adds nothing to way back."""
        if not any(np.any(table.ending) for table in self.tables[1:]):
            return None
        slack = np.zeros(self.shape, np.int64)
        for s, table in enumerate(self.tables):
            np.maximum.at(slack[s + 1], table.ends, slack[s, table.starts][:, None] + table.behind)
        return slack


@dataclass(frozen=True)
class _SuffixView:
    """Result of a backward pass for each boundary. Rows are stages 0 … S, columns boundaries 0 … n.

    Attributes
    ----------
    cap : array
        Largest H that may still meet the target.
    least_growth, most_growth : array
        Least and most by which R can still grow.
    least_delay : array
        Least value of the largest e of the later stages.
    useful_slack : array
        Slack beyond this has no use.
    caps : list of array
        For each stage, by span: the largest H before it that may still meet the target through the span.
    """

    cap: Array
    least_growth: Array
    most_growth: Array
    least_delay: Array
    useful_slack: Array
    caps: list[Array]

    @property
    def possible(self) -> bool:
        """True if the relaxation allows a partition within the target."""
        return int(self.cap[0, 0]) >= 0

    def follow(self, tables: list[Spans]) -> Boundaries:
        """The partition that follows the span of the largest cap from each boundary."""
        boundaries = [0]
        for table, caps in zip(tables, self.caps, strict=True):
            row = int(np.searchsorted(table.starts, boundaries[-1]))
            boundaries.append(int(table.ends[row, int(caps[row].argmax())]))
        return tuple(boundaries)


def _backward_pass(
    stages: _Stages, target: int, bracket: Bracket[Boundaries], heads: Array | None = None
) -> _SuffixView:
    """Backward pass: way back exactly, own ending with the most slack, delays from each span on with R's least growth.

    ``heads``: lower bounds on H at each boundary. They exclude spans, and only with them useful slack is computed.
    """
    # Behind the last stage: H up to the target, nothing else.
    cap, least_growth, most_growth, least_delay = (
        np.full(stages.shape, start) for start in (-NEVER, NEVER, -NEVER, NEVER)
    )
    useful_slack = np.zeros(stages.shape, np.int64)
    cap[-1, -1], least_growth[-1, -1], most_growth[-1, -1], least_delay[-1, -1] = target, 0, 0, 0
    every = []
    for s, table in reversed(list(enumerate(stages.tables))):
        bracket.clock.check()
        # Cap on H by the way-back bound, by the caps behind, by the own-ending bound, and by delays.
        following = least_growth[s + 1][table.ends]
        caps = np.minimum(target - table.work, cap[s + 1][table.ends] - table.advance)
        if s == 0:
            np.minimum(caps, target - table.work - table.ending, out=caps)
        elif stages.slack is not None:
            slack = stages.slack[s, table.starts][:, None]
            np.minimum(caps, target - table.work - table.ending + slack, out=caps)
        delay = np.maximum(table.delay, least_delay[s + 1][table.ends])
        np.minimum(caps, target - delay - table.trip - following, out=caps)  # H ≤ R
        cap[s, table.starts] = caps.max(axis=1, initial=-NEVER)  # at least −NEVER, or sums would exceed int64
        # Growth of R and least delay, over the spans that some head may still use.
        alive = caps >= (0 if heads is None else heads[s, table.starts][:, None])
        least_growth[s, table.starts] = np.where(alive, table.trip + following, NEVER).min(axis=1, initial=NEVER)
        least_delay[s, table.starts] = np.where(alive, delay, NEVER).min(axis=1, initial=NEVER)
        grown = table.trip + most_growth[s + 1][table.ends]
        most_growth[s, table.starts] = np.where(alive, grown, -NEVER).max(axis=1, initial=-NEVER)
        if stages.slack is not None and heads is not None:
            required = np.maximum(table.ending, useful_slack[s + 1][table.ends] - table.behind)
            useful_slack[s, table.starts] = np.where(alive, required, 0).max(axis=1, initial=0)
        every.append(caps)
    return _SuffixView(cap, least_growth, most_growth, least_delay, useful_slack, every[::-1])


def _least_heads(stages: _Stages, view: _SuffixView) -> Array:
    """The least H at each boundary, over prefixes that may still meet the target; shape (S + 1, n + 1)."""
    heads = np.full(stages.shape, NEVER)
    heads[0, 0] = 0
    for s, (table, caps) in enumerate(zip(stages.tables, view.caps, strict=True)):
        head = heads[s, table.starts][:, None]
        reached = np.where(caps >= head, head + table.advance, NEVER)
        np.minimum.at(heads[s + 1], table.ends, np.minimum(reached, NEVER))
    return heads


def _labels(stages: _Stages, target: int, bracket: Bracket[Boundaries], beam: int | None = None) -> Boundaries | None:
    """A partition with T ≤ target, or None if there is none (with at most ``beam`` labels per boundary: none found)."""
    view = _backward_pass(stages, target, bracket)
    view = _backward_pass(stages, target, bracket, _least_heads(stages, view))
    boundary, head, trip, delay, slack = (np.zeros(1, np.int64) for _ in range(5))
    history: list[tuple[Array, Array]] = []
    for s, (table, caps) in enumerate(zip(stages.tables, view.caps, strict=True)):
        bracket.clock.check()
        # Pairs of a label and a span that begins at its boundary, within the cap and the own-ending bound.
        row = np.searchsorted(table.starts, boundary)
        reaches = caps[row] >= head[:, None]
        if s and stages.slack is not None:  # own-ending bound
            ends_at = table.work[row] + (table.ending[row] if isinstance(table.ending, np.ndarray) else 0)
            reaches &= (head - slack)[:, None] + ends_at <= target
        # New labels: H, R and e behind the span; dropped if e is too large even for the least R.
        label, column = np.nonzero(reaches)
        row = row[label]
        ends = table.ends[row, column]
        heads = head[label] + table.advance[row, column]
        trips = trip[label] + table.trip[row, column] if stages.trip_apart else heads
        least = view.least_delay[s + 1, ends]
        delays = np.maximum(np.maximum(delay[label], table.delay[row, column]), least)
        fits = trips + view.least_growth[s + 1, ends] + delays <= target
        label, row, column = label[fits], row[fits], column[fits]
        ends, heads, trips, delays, least = ends[fits], heads[fits], trips[fits], delays[fits], least[fits]
        # An e that meets the target even for the most R counts as the least e of the later stages; slack is cut off.
        delays = np.where(trips + view.most_growth[s + 1, ends] + delays <= target, least, delays)
        slacks = None
        if stages.slack is not None:
            slacks = np.minimum(slack[label] + table.behind[row, column], view.useful_slack[s + 1, ends])
        # Keep the Pareto set of each boundary, at most ``beam`` labels, with the index of the label before.
        kept = _undominated(ends, heads, trips if stages.trip_apart else None, delays, slacks)
        if not len(kept):
            return None
        if beam is not None:
            kept = kept[spread(ends[kept], beam)]
        boundary, head, trip, delay = ends[kept], heads[kept], trips[kept], delays[kept]
        slack = np.zeros(len(kept), np.int64) if slacks is None else slacks[kept]
        history.append((boundary, label[kept]))
    index, boundaries = 0, []
    for ends, parents in reversed(history):
        boundaries.append(int(ends[index]))
        index = int(parents[index])
    return (0, *reversed(boundaries))


def _undominated(ends: Array, heads: Array, trips: Array | None, delays: Array, slacks: Array | None) -> Indices:
    """Indices of the labels to keep at each end, sorted by end; ``trips`` is None where R is H."""
    if trips is None:
        return undominated(ends, heads, delays, slacks)
    # Columns in which less is better. Of two labels at different ends neither is less in both of the first columns.
    columns = [ends, -ends, heads, trips, delays, *([] if slacks is None else [-slacks])]
    return minimal(np.stack(columns, axis=1))
