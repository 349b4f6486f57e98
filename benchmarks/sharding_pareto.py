"""Teams of one axis against meshes of one axis: exact Pareto sets of one middle layer of shipped transformers.

For each model and size of team, with whole tensors between layers and with tokens split between them: the points of
`TeamProblem` in time of a micro-batch, sums once per step, parameters and saved bytes, the points of `MeshProblem` for
the same layer, how many of the former the latter dominate or equal, and the worst excess: the least factor by which all
coordinates of some point would have to grow so that it were covered. Seconds are processor seconds.

Words behind ``--`` name models.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.words import WHOLE
from pipeplan.costs.sharding.layouts import stream
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.teams.problem import COMPARED, TeamProblem
from pipeplan.costs.teams.signatures import token_axis
from pipeplan.costs.teams.splits import TeamSplits
from pipeplan.io.load import load_cluster, load_model
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import Sharding, frontier

MODELS = ("gpt3-175b", "llama3-8b", "llama3-70b", "llama3-8b-32k")
CLUSTER = "64-h100"
SIZES = (2, 4, 8)


class Compared(NamedTuple):
    """The Pareto sets of one layer.

    Attributes
    ----------
    team, mesh : int
        Numbers of points.
    covered : int
        Points of the team that some point of the mesh is at least as good as.
    excess : float
        Worst of the others: the largest relative excess of a coordinate, at the nearest point of the mesh.
    team_time, mesh_time : float
        Processor seconds, tables included.
    """

    team: int
    mesh: int
    covered: int
    excess: float
    team_time: float
    mesh_time: float


def main() -> None:
    """Print the table."""
    models = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else MODELS
    rows = 0
    covered = 0
    print(f"{'model':14} {'team':>4} {'between':8} {'points':>7} {'of mesh':>7} {'covered':>7} {'excess':>7} "
          f"{'team s':>7} {'mesh s':>7}")  # fmt: skip
    for name in models:
        for team in SIZES:
            for between, own in zip(("whole", "tokens"), problems(name, team), strict=True):
                found = compared(*own)
                rows, covered = rows + 1, covered + (found.covered == found.team)
                print(f"{name:14} {team:4} {between:8} {found.team:7} {found.mesh:7} {found.covered:7} "
                      f"{found.excess:7.2%} {found.team_time:7.2f} {found.mesh_time:7.2f}", flush=True)  # fmt: skip
    print(f"{covered} of {rows} sets are covered")


def problems(name: str, team: int) -> Iterator[tuple[TeamProblem, MeshProblem]]:
    """Yield a middle layer as both problems: with whole tensors before and behind it, and with split tokens."""
    teams = TeamSplits(load_model(name), load_cluster(CLUSTER), team, (1,), "adam", False)
    (kind,) = (kind for kind in teams.cluster.kinds.values() if kind.name in teams.places)
    place = teams.places[kind.name]
    mesh = Mesh((team,), (place.link,), (place.sharing(team),))
    middle = len(teams.model.layers) // 2
    for sequence in ((), teams.sequence):
        own = teams.problem(middle, kind, 1, sequence)
        ends = (
            (_tokens(own, tuple(own.graph.inputs)),) if own.ends.input else (),
            (_tokens(own, own.graph.outputs),) if own.ends.output else (),
        )
        yield own, MeshProblem(own.rooflines, mesh, *ends, gathers=False)


def _tokens(problem: TeamProblem, names: Sequence[str]) -> int:
    """The axis of the tokens of what passes between layers."""
    axis = token_axis(problem.graph, stream(problem.graph, names))
    assert axis != WHOLE, "it is split along tokens"
    return axis


def compared(team: TeamProblem, mesh: MeshProblem) -> Compared:
    """Return both Pareto sets, compared."""
    began = time.process_time()
    wanted = _points(team.sharding({}))
    between = time.process_time()
    found = _points(mesh.sharding)
    ended = time.process_time()
    excess = [excess_of(point, found) for point in wanted]
    return Compared(
        len(wanted), len(found), sum(not each for each in excess), max(excess), between - began, ended - between
    )


def _points(problem: Sharding) -> NDArray[np.int64]:
    return frontier(problem.project(COMPARED), Clock(Limits())).points


def excess_of(point: NDArray[np.int64], points: NDArray[np.int64]) -> float:
    """Return by how much the nearest of ``points`` exceeds a point in its worst coordinate; 0 if one covers it."""
    return float(np.maximum((points / np.maximum(point, 1) - 1).max(1), 0).min())


if __name__ == "__main__":
    main()
