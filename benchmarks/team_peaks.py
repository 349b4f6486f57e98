"""Predicted and measured peak memory of teams: a decoder whose tensors outweigh the process.

Two blocks of width 1024 under Adam, so that a process has 0.4 to 1 GiB. Every plan is priced through the product as in
`team_predictions`, and runs in several rounds, each with new processes. A row shows the rank that is farthest off: its
prediction, and the least, median and largest of its measured peaks. Both include the memory of a bare worker. Behind
them are the most bytes of live tensors in a step, by torch's profiler, and by how much they differ from the prediction
without the worker: the rest is heap that no tensor uses.
"""

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.team_predictions import BOTH, PERCEPTRON, machine, priced

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.costs.sharding.places import team_cluster
from pipeplan.costs.sharding.splits import MeshTeams
from pipeplan.costs.sharding.teams import Teams
from pipeplan.frontend.profile import profile_workload
from pipeplan.frontend.profile.meter import CpuMeter
from pipeplan.frontend.workload import Workload
from pipeplan.search.build_plan import shared_out
from pipeplan.simulate import memory_of_ranks
from pipeplan.solve import solve
from pipeplan_executor import launch, run
from pipeplan_executor.processes.devices import cores
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.pipeline import Pipeline
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
    live: tuple[int, ...] = ()

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
            told, seen = memory_of_ranks(plan)[rank] / 2**20, [peaks[rank] / 2**20 for peaks in self.peaks]
            rows.append((median(seen) / told - 1, told, min(seen), median(seen), max(seen)))
        off, told, low, middle, high = max(rows, key=lambda row: abs(row[0]))
        counts = f"{self.team} | {self.name} | {self.replicas} | {self.stages} | {self.processes}"
        told_live, live = max(
            ((memory_of_ranks(plan)[rank] - plan.pipeline.runtime[rank], own) for rank, own in enumerate(self.live)),
            key=lambda pair: abs(pair[1] / pair[0] - 1),
        )
        tensors = f"{told_live / 2**20:.0f} | {live / 2**20:.0f} | {live / told_live - 1:+.1%}"
        return f"| {counts} | {told:.0f} | {middle:.0f} ({low:.0f} to {high:.0f}) | {off:+.1%} | {tensors} |"


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
            case.live = case.live or launch(live_peaks, case.processes, plan, device="cpu")
        measured = "predicted, MiB | measured, MiB | off | tensors predicted | live | off"
        print(f"| team | split | replicas | stages | processes | {measured} |")
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        print("\n".join(case.row(plan) for case, plan in plans), flush=True)


def live_peaks(plan: Plan) -> tuple[int, ...]:
    """Return the most bytes of live tensors in a step on each rank, of the largest process of its team."""
    pipeline = Pipeline(plan, SOURCE)
    batch = draw(pipeline.workload, plan.batch, 3)
    for _ in range(2):
        pipeline.step(*batch)
    gc.collect()
    held = _bytes(gc.get_objects()) - _bytes(batch)
    with CpuMeter() as meter:
        pipeline.step(*batch)
        meter.mark()
    own = held + max(peak for _, peak in meter.readings())
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    teams = [
        stage.team for rank in range(len(plan.ranks)) for stage in plan.stages if plan.ranks[rank] in stage.devices
    ]
    ends = [sum(teams[: n + 1]) for n in range(len(teams))]
    return tuple(max(every[end - team : end]) for end, team in zip(ends, teams, strict=True))


def _bytes(objects: Any) -> int:
    """Bytes of the tensors among some objects, of each memory once."""
    local = [getattr(each, "_local_tensor", each) for each in objects if issubclass(type(each), torch.Tensor)]
    storages = [each.untyped_storage() for each in local if each.device.type == "cpu"]
    found = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(found.values())


def plan_of(case: Case, model: Model, cluster: Cluster) -> Plan:
    """Return the plan of a case."""
    if case.name != MESH:
        return priced(model, cluster, case.team, dict(case.shards), case.job, case.sequence)
    half = cluster.nodes[0].kinds[: case.team // 2]
    nodes = tuple(replace(cluster.nodes[0], kinds=half) for _ in range(2))
    cluster = replace(cluster, nodes=nodes, network=cluster.nodes[0].link)
    of = Teams(model, cluster, case.team, (SIZE,), "adam", False)
    on_mesh = next(each for each in MeshTeams.of(of, BATCH, 2) if len(each.sizes) == 2)
    way = on_mesh.ways(tokens=False)[0]
    plan = solve(on_mesh.model(way), team_cluster(cluster, case.team), job=case.job).plan
    return shared_out(plan, model, on_mesh.split(way, 0))


if __name__ == "__main__":
    main()
