"""Memory rows: the memory limit in the linear model, for stages with recomputed layers or copies of tied weights.

For other stages the windows imply the memory limit. Layers with equal numbers are interchangeable, so one variable
counts how many layers of each sort a stage recomputes, at most as many as lie on it. A 0-1 variable is 1 if there are
any, because then the stage needs the sort's peak.
"""

import numpy as np

from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.mip.model import Expression
from pipeplan_formulations.common.scaling import scale_for
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.link_positions import Membership
from pipeplan_formulations.partition.model import PartitionModel, RecomputedLayers
from pipeplan_formulations.partition.parts import Tie
from pipeplan_formulations.partition.windows import Windows


class TieFlags:
    """Flags for a tie and a stage: the stage has a copy; the stage is the home of weights that another one copies."""

    def __init__(self, model: PartitionModel, on: Membership) -> None:
        self._model, self._on = model, on
        self._has_copy: dict[tuple[Tie, int], Expression] = {}
        self._left: dict[tuple[Tie, int], Expression] = {}

    def has_copy(self, tie: Tie, stage: int) -> Expression:
        """A flag, 1 if the stage holds others of the tied layers but not the first; its layers are contiguous."""
        key = tie, stage
        if key not in self._has_copy:
            first = self._on(stage, tie.layers[0])
            others = [self._on(stage, layer) - first for layer in tie.layers[1:]]
            self._has_copy[key] = self._model.largest(others)
        return self._has_copy[key]

    def is_home(self, tie: Tie, stage: int) -> Expression:
        """A flag, 1 if the stage holds the first of the tied layers but not the last."""
        key = tie, stage
        if key not in self._left:
            difference = self._on(stage, tie.layers[0]) - self._on(stage, tie.layers[-1])
            self._left[key] = self._model.largest([difference])
        return self._left[key]


def add_memory_rows(
    model: PartitionModel, problem: ChainPartition, room: Windows, on: Membership, tie_flags: TieFlags
) -> None:
    """Add the limit of every stage that could exceed it, on some span within the windows, with nothing recomputed."""
    for s in range(problem.stages):
        if _may_exceed_limit(problem, room, s):
            again = _recompute(model, problem, s, on) if problem.in_flight[s] else []
            model.again += again
            _memory_row(model, problem, s, again, on, tie_flags)


def _recompute(model: PartitionModel, problem: ChainPartition, s: int, on: Membership) -> list[RecomputedLayers]:
    """Add the numbers of layers of each sort that stage s recomputes, at most as many as lie on it."""
    sorts: dict[tuple[int, int, int], list[int]] = {}
    tables = zip(problem.forward[s], problem.bytes.savings[s], problem.bytes.again[s], strict=True)
    for layer, (forward, savings, again) in enumerate(tables):
        allowed = problem.where is None or problem.where[s, layer]
        if problem.bytes.useful[s, layer] and allowed and model.most(on(s, layer)) > 0:
            sorts.setdefault((int(forward), int(savings), int(again)), []).append(layer)
    found = []
    for layers in sorts.values():
        is_one = np.isin(np.arange(problem.layers), layers)
        number = model.integer(0, len(layers))
        some = model.boolean()
        there = model.over_stage(s, np.insert(np.cumsum(is_one), 0, 0))
        model.at_least(there - Expression({number: 1}))
        model.at_least(Expression({some: len(layers), number: -1}))
        found.append(RecomputedLayers(s, tuple(layers), number, some))
    return found


def _may_exceed_limit(problem: ChainPartition, room: Windows, s: int) -> bool:
    """True if some longest span of stage s does not fit with nothing recomputed."""
    starts = np.arange(problem.layers)
    ends = room.last[s]
    some = ends > starts
    need = problem.room.plain(np.array(s), starts[some], ends[some])
    return bool((need > problem.limit[s]).any())


def _memory_row(
    model: PartitionModel,
    problem: ChainPartition,
    s: int,
    recomputed: list[RecomputedLayers],
    on: Membership,
    tie_flags: TieFlags,
) -> None:
    """Add P_s + k_s (A_s − savings + r_s) + the largest workspace ≤ L_s, in units that keep sums small."""
    # Bytes that stay, and bytes held per micro-batch in flight.
    in_flight = int(problem.in_flight[s])
    savings = problem.bytes.savings[s].tolist()
    held = model.over_stage(s, problem.prefix["saved"][s])
    held -= Expression({again.number: savings[again.layers[0]] for again in recomputed})
    if s > 0:
        held += model.chosen(s - 1, problem.bytes.received[s, 1:])
    stays = model.over_stage(s, problem.prefix["resident"][s]) + in_flight * held
    for tie in problem.ties:
        if tie.resident[s]:
            stays += tie.resident[s] * tie_flags.has_copy(tie, s)
    # Scaled rows: bytes beyond the limit, plus the largest workspace or recomputed peak, plus that of a second lane.
    need = stays - int(problem.limit[s])
    unit = scale_for(sum(abs(c) for c in need.terms.values()) + abs(need.constant)).unit
    peaks = _peaks(problem.bytes.workspace[s], s, on) if problem.workspace.any() else []
    whole = problem.bytes.again[s].tolist()
    peaks += [Expression({again.some: whole[again.layers[0]]}) for again in recomputed]
    largest = model.largest([peak.down(unit) for peak in peaks] or [Expression({})])
    beside = _peaks(problem.bytes.beside[s], s, on)
    if beside:
        largest += model.largest([peak.down(unit) for peak in beside])
    model.at_least(-(need.down(unit) + largest))


def _peaks(workspace: Array, s: int, on: Membership) -> list[Expression]:
    """The workspace of each layer if it lies on stage s, else 0."""
    return [int(size) * on(s, layer) for layer, size in enumerate(workspace) if size]
