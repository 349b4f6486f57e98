"""Predicted and measured peak memory of teams: a decoder whose tensors outweigh the process.

Two blocks of width 1024 under Adam, so that a process has 0.4 to 1 GiB. Every plan is priced through the product as in
`team_predictions`, and runs in several rounds, each with new processes. A row shows the rank that is farthest off: its
prediction, and the least, median and largest of its measured peaks. Both include the memory of a bare worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from benchmarks.team_predictions import BOTH, PERCEPTRON, machine, priced

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.costs.meshes.splits import MeshTeams
from pipeplan.costs.teams.places import team_cluster
from pipeplan.costs.teams.splits import Teams
from pipeplan.frontend.profile import profile_workload
from pipeplan.frontend.workload import Workload
from pipeplan.search.build_plan import shared_out
from pipeplan.solve import solve
from pipeplan_executor import run
from pipeplan_executor.processes.devices import cores
from pipeplan_executor.train.report import predicted_peak
from pipeplan_executor.zoo import decoder

SOURCE = "benchmarks.team_peaks:large"
BATCH, SIZE = 8, 2
"""Samples of a step and of a micro-batch."""
ROUNDS, STEPS = 3, 3
MESH = "mesh of 2 x 2"


@dataclass
class Case:
    """How a plan splits the model, and the measured peaks of its ranks in each round."""

    name: str
    team: int
    shards: Mapping[str, int]
    replicas: int = 1
    stages: int = 1
    sequence: bool = False
    zero: int = 0
    peaks: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def processes(self) -> int:
        """Their number."""
        return self.team * self.replicas * self.stages

    @property
    def job(self) -> Job:
        """One number of micro-batches, replicas and stages."""
        return Job(
            BATCH,
            optimizer="adam",
            micro_batches=(BATCH // SIZE,),
            replicas=(self.replicas,),
            depths=(self.stages,),
            zero=(self.zero,),
        )

    def row(self, plan: Plan) -> str:
        """The row of the table, in MiB."""
        rows = []
        for rank in range(len(plan.ranks)):
            told, seen = predicted_peak(plan, rank) / 2**20, [peaks[rank] / 2**20 for peaks in self.peaks]
            rows.append((median(seen) / told - 1, told, min(seen), median(seen), max(seen)))
        off, told, low, middle, high = max(rows, key=lambda row: abs(row[0]))
        counts = f"{self.team} | {self.name} | {self.replicas} | {self.stages} | {self.processes}"
        return f"| {counts} | {told:.0f} | {middle:.0f} ({low:.0f} to {high:.0f}) | {off:+.1%} |"


CASES = (
    Case("whole", 1, {}, 2),
    Case("whole, ZeRO-1", 1, {}, 2, zero=1),
    Case("whole", 1, {}, stages=2),
    Case("both pairs", 2, BOTH),
    Case("both pairs, split tokens", 2, BOTH, sequence=True),
    Case("perceptron", 2, PERCEPTRON),
    Case("both pairs", 2, BOTH, 2),
    Case("both pairs", 2, BOTH, stages=2),
    Case("both pairs, split tokens", 2, BOTH, stages=2, sequence=True),
    Case("both pairs", 4, BOTH),
    Case("both pairs, split tokens", 4, BOTH, sequence=True),
    Case(MESH, 4, {}),
)


def large() -> Workload:
    """Two blocks of width 1024 with a vocabulary of 8192: 42 million parameters."""
    return decoder(blocks=2, width=1024, heads=8, vocabulary=8192, length=128, hidden=4096)


def main() -> None:
    """Print the machines, and after each round the table so far."""
    model = profile_workload(SOURCE, micro_batches=(SIZE,), name="large decoder", crowd=cores())
    machines = {count: machine(count) for count in sorted({case.processes for case in CASES})}
    plans = [(case, plan_of(case, model, machines[case.processes])) for case in CASES]
    for _ in range(ROUNDS):
        for case, plan in plans:
            case.peaks.append(run(plan, SOURCE, steps=STEPS, device="cpu").peaks)
        print("| team | split | replicas | stages | processes | predicted, MiB | measured, MiB | off |")
        print("|---|---|---|---|---|---|---|---|")
        print("\n".join(case.row(plan) for case, plan in plans), flush=True)


def plan_of(case: Case, model: Model, cluster: Cluster) -> Plan:
    """Return the plan of a case."""
    if case.name != MESH:
        return priced(model, cluster, case.team, dict(case.shards), case.job, case.sequence)
    half = cluster.nodes[0].kinds[: case.team // 2]
    nodes = tuple(replace(cluster.nodes[0], kinds=half) for _ in range(2))
    cluster = replace(cluster, nodes=nodes, network=cluster.nodes[0].link)
    of = Teams(model, cluster, case.team, (SIZE,), "adam", False)
    on_mesh = next(each for each in MeshTeams.of(of, BATCH, 2) if len(each.sizes) == 2)
    split = on_mesh.splits(tokens=False)[0]
    plan = solve(on_mesh.model(split), team_cluster(cluster, case.team), job=case.job).plan
    return shared_out(plan, model, split)


if __name__ == "__main__":
    main()
