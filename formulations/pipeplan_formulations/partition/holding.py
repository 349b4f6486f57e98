"""What stages hold: rows for (1) where windows alone do not say it, because layers are recomputed or weights are tied.

A flag v[s, i] says that layer i is recomputed on stage s, so that it must lie there; which layers are recomputed at all
are the choices x[i] = Σ_s v[s, i].
"""

from itertools import pairwise

import numpy as np

from pipeplan_formulations.partition.expression import Expression, Row
from pipeplan_formulations.partition.model import LinearModel, Unit
from pipeplan_formulations.partition.placing import Membership
from pipeplan_formulations.partition.problem import Array, ChainPartition
from pipeplan_formulations.partition.tie import Tie
from pipeplan_formulations.partition.windows import Windows
from pipeplan_formulations.scaling import scale_for


class Splits:
    """For a tie and a stage: a flag that is 1 where the stage holds exactly one of the two layers."""

    def __init__(self, model: LinearModel, on: Membership) -> None:
        self._model, self._on = model, on
        self._known: dict[tuple[Tie, int], Expression] = {}

    def __call__(self, tie: Tie, stage: int) -> Expression:
        key = tie, stage
        if key not in self._known:
            difference = self._on(stage, tie.first) - self._on(stage, tie.last)
            self._known[key] = self._model.largest((difference, -difference), Unit.FLAG)
        return self._known[key]


def hold(model: LinearModel, problem: ChainPartition, room: Windows, on: Membership, splits: Splits) -> None:
    """(1) for every stage that some span the windows allow would overfill as it stands."""
    short = [s for s in range(problem.stages) if _falls_short(problem, room, s)]
    useful = np.flatnonzero(problem.useful).tolist()
    for s in short:
        for layer in useful:
            lies = on(s, layer)
            if problem.in_flight[s] and model.most(lies) > 0 and (problem.where is None or problem.where[s, layer]):
                model.again[s, layer] = flag = model.variable(0, 1, Unit.FLAG)
                model.rows.append(Row(lies - Expression({flag: 1})))
    for layer in useful:
        flags = [model.again[s, layer] for s in short if (s, layer) in model.again]
        if flags:
            model.define(Expression(dict.fromkeys(flags, 1)), Unit.CHOICE)
    for s in short:
        _fill(model, problem, s, on, splits)


def _falls_short(problem: ChainPartition, room: Windows, s: int) -> bool:
    """Whether the longest span of some piece does not fit where nothing is recomputed."""
    starts = np.arange(problem.layers)
    for low, high in pairwise(room.pieces):
        ends = np.minimum(high, room.farthest[s])
        some = ends > np.maximum(starts, low)
        need = problem.room.plain(np.array(s), starts[some], ends[some])
        if (need > problem.limit[s]).any():
            return True
    return False


def _fill(model: LinearModel, problem: ChainPartition, s: int, on: Membership, splits: Splits) -> None:
    """(1): P_s + k_s (A_s − savings + r_s) + the largest workspace ≤ L_s, in units in which sums stay small."""
    flight = int(problem.in_flight[s])
    again = {layer: flag for (stage, layer), flag in model.again.items() if stage == s}
    savings = (problem.saved - problem.output_bytes).tolist()
    held = model.over_stage(s, problem.prefix["saved"])
    held -= Expression({flag: savings[layer] for layer, flag in again.items()})
    if s > 0:
        held += model.chosen(s - 1, problem.received)
    stays = model.over_stage(s, problem.prefix["resident"][s]) + flight * held
    for tie in problem.ties:
        if tie.resident:
            stays += tie.resident * splits(tie, s)
    need = stays - int(problem.limit[s])
    unit = scale_for(sum(abs(c) for c in need.terms.values()) + abs(need.constant)).unit
    peaks = _peaks(problem.workspace, s, on) if problem.workspace.any() else []
    peaks += [int(problem.saved[i] + problem.workspace[i]) * Expression({flag: 1}) for i, flag in again.items()]
    largest = model.largest([peak.down(unit) for peak in peaks] or [Expression({})], Unit.BYTES)
    model.rows.append(Row(-(need.down(unit) + largest)))


def _peaks(workspace: Array, s: int, on: Membership) -> list[Expression]:
    return [int(size) * on(s, layer) for layer, size in enumerate(workspace) if size]
