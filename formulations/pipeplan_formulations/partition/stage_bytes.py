"""Bytes of every layer on every stage: what (1) of the chain partition problem is made of."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pipeplan_formulations.partition.instance import ChainPartition

Array = NDArray[np.int64]


@dataclass(frozen=True)
class StageBytes:
    """Arrays of shape (S, n); stages with equal rows are of one sort.

    Attributes
    ----------
    saved, output : array of int
        Held for each micro-batch in flight, saved whole or recomputed.
    workspace, again, beside : array of int
        Needed while a layer computes: as it stands, where it is recomputed, and by a second lane.
    useful : array of bool
        Layers that may be recomputed and hold less then.
    received : array of int
        Held for each micro-batch by a stage that begins with the layer.
    sort : array of int, shape (S,)
        Number of the first stage with the same rows.
    """

    saved: Array
    output: Array
    workspace: Array
    again: Array
    beside: Array
    useful: NDArray[np.bool_]
    received: Array
    sort: NDArray[np.intp]

    @staticmethod
    def of(problem: "ChainPartition") -> "StageBytes":
        """The arrays of a problem, which may have one row for all stages."""
        shape = problem.forward.shape
        saved, workspace = (np.broadcast_to(table, shape) for table in (problem.saved, problem.workspace))
        output = saved if problem.output is None else np.broadcast_to(problem.output, shape)
        beside = np.broadcast_to(0 if problem.beside is None else problem.beside, shape)
        recomputable = np.zeros(shape[1], np.bool_) if problem.recomputable is None else problem.recomputable
        received = np.zeros(shape, np.int64)
        received[1:, 1:] = problem.received
        return StageBytes(
            saved=saved,
            output=output,
            workspace=workspace,
            again=saved + workspace,
            beside=beside,
            useful=recomputable & (output < saved),
            received=received,
            sort=_sorts(problem, [saved, output, workspace, beside]),
        )

    @property
    def savings(self) -> Array:
        """What recomputation of a layer saves for each micro-batch in flight."""
        less: Array = self.saved - self.output
        return less


def _sorts(problem: "ChainPartition", tables: list[Array]) -> NDArray[np.intp]:
    given = (problem.saved, problem.output, problem.workspace, problem.beside)
    if all(table is None or table.ndim == 1 for table in given):
        return np.zeros(problem.stages, np.intp)
    first: dict[bytes, int] = {}
    rows = np.concatenate(tables, axis=1)
    return np.array([first.setdefault(row.tobytes(), s) for s, row in enumerate(rows)], np.intp)
