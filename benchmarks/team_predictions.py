"""Predicted and measured steps of teams: one model, split in several ways, on local processes.

A decoder of two wide blocks. Teams of 1, 2 and 4 on two or four processes, then of 1 to 8 on eight processes, as
replicas and as stages, with different shards: Megatron's pairs, one of the two pairs, and half a pair. Every plan is
priced through the product (profile, described machine, costs of teams) and runs in several rounds in turn, so that
other load affects all alike. A row shows the median and the quartiles of all steps, and the ratio of that median to
the prediction. The last line of a table is Kendall's tau between predicted and measured times over its rows. The peak
is predicted and measured, of the rank that is farthest off.

The machine is described once for each number of processes, so waiting of members under contention is part of
`shard_overhead`. A profile counts processor time. Where there are more processes than cores, a kind therefore has the
speed cores ÷ processes, as if all were always busy. Links are measured between two processes while the others wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import combinations
from statistics import median, quantiles

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.core.strategies import AxisStrategy
from pipeplan.costs.sharding.layer_ways import MainStrategies
from pipeplan.costs.sharding.places import team_cluster
from pipeplan.costs.sharding.teams import Teams
from pipeplan.costs.sharding.ways import TeamWays
from pipeplan.frontend.profile import profile_workload
from pipeplan.frontend.workload import Workload
from pipeplan.search.build_plan import shared_out
from pipeplan.simulate import memory_of_ranks
from pipeplan.solve import solve
from pipeplan_executor import describe_machine, run
from pipeplan_executor.processes.devices import cores
from pipeplan_executor.zoo import decoder

SOURCE = "benchmarks.team_predictions:wide"
ROUNDS, STEPS = 3, 4
ATTENTION = {"query_key_value.*": 0, "attention_out.weight": 1}
PERCEPTRON = {"widen.*": 0, "narrow.weight": 1}
BOTH = ATTENTION | PERCEPTRON
Case = tuple[str, int, dict[str, int], int, int]
"""Name, size of the teams, patterns of split weights and their axes, replicas, stages."""
FEW: tuple[Case, ...] = (
    ("whole", 1, {}, 2, 1),
    ("whole", 1, {}, 1, 2),
    ("both pairs", 2, BOTH, 1, 1),
    ("perceptron", 2, PERCEPTRON, 1, 1),
    ("attention", 2, ATTENTION, 1, 1),
    ("half a pair", 2, {"widen.*": 0}, 1, 1),
    ("both pairs", 2, BOTH, 2, 1),
    ("both pairs", 2, BOTH, 1, 2),
    ("both pairs", 4, BOTH, 1, 1),
    ("perceptron", 4, PERCEPTRON, 1, 1),
)
EIGHT: tuple[Case, ...] = (
    ("whole", 1, {}, 8, 1),
    ("both pairs", 2, BOTH, 4, 1),
    ("perceptron", 2, PERCEPTRON, 4, 1),
    ("half a pair", 2, {"widen.*": 0}, 4, 1),
    ("both pairs", 4, BOTH, 2, 1),
    ("attention", 4, ATTENTION, 2, 1),
    ("both pairs", 8, BOTH, 1, 1),
    ("perceptron", 8, PERCEPTRON, 1, 1),
    ("both pairs", 2, BOTH, 2, 2),
    ("both pairs", 4, BOTH, 1, 2),
)
TABLES = ((8, 4, FEW), (16, 2, EIGHT))
"""Batch, samples of a micro-batch, cases."""


@dataclass
class Row:
    """A plan and its measured steps."""

    name: str
    plan: Plan
    replicas: int
    times: list[int] = field(default_factory=list)
    peaks: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def memory(self) -> tuple[float, float, float]:
        """Predicted and measured peak of the rank that is farthest off, MiB, and their ratio less 1."""
        found = []
        for rank in range(len(self.plan.ranks)):
            told, seen = memory_of_ranks(self.plan)[rank] / 2**20, median(row[rank] for row in self.peaks) / 2**20
            found.append((told, seen, seen / told - 1))
        return max(found, key=lambda each: abs(each[2]))

    @property
    def time(self) -> float:
        """Median of the measured steps, nanoseconds."""
        return median(self.times)


def wide() -> Workload:
    """Two blocks of width 512, with a small vocabulary."""
    return decoder(blocks=2, width=512, heads=8, vocabulary=2048, length=64, hidden=2048)


def main() -> None:
    """Print the machines, and after each round each table and its tau so far."""
    machines: dict[int, Cluster] = {}
    for batch, size, cases in TABLES:
        model = profile_workload(SOURCE, micro_batches=(size,), name="wide decoder", crowd=cores())
        rows = []
        for name, team, patterns, replicas, stages in cases:
            processes = team * replicas * stages
            if processes not in machines:
                machines[processes] = machine(processes)
            job = Job(batch, micro_batches=(batch // size,), replicas=(replicas,), depths=(stages,))
            rows.append(Row(name, priced(model, machines[processes], team, patterns, job), replicas))
        for _ in range(ROUNDS):
            for row in rows:
                report = run(row.plan, SOURCE, steps=STEPS, device="cpu")
                row.times += report.step_times
                row.peaks.append(report.peaks)
            print(f"wide decoder, batch {batch}, micro-batches of {size}, {len(rows[0].times)} steps of each plan")
            show(rows)


def machine(processes: int) -> Cluster:
    """Return this machine as a cluster, its kind slowed where processes share cores."""
    cluster = describe_machine(processes)
    kind, link = cluster.devices[0].kind, cluster.nodes[0].link
    speed = min(1.0, cores() / processes)
    print(
        f"{processes} processes on {cores()} cores: speed {speed:.2f}, link {(link.bandwidth or 0) / 1e9:.2f} GB/s, "
        f"latency {link.latency / 1e3:.0f} us, shard_overhead {kind.shard_overhead / 1e3:.0f} us",
        flush=True,
    )
    slowed: Cluster = replace(cluster, kinds={kind.name: replace(kind, speed=speed)})
    return slowed


def priced(
    model: Model, cluster: Cluster, team: int, patterns: dict[str, int], job: Job, sequence: bool = False
) -> Plan:
    """Return the fastest plan with these teams and shards; ``sequence``: with tokens split where they can be."""
    if team == 1:
        return solve(model, cluster, job=job).plan
    sizes = tuple(job.batch // count for count in job.micro_batches)
    teams = Teams(model, cluster, team, sizes, job.optimizer, False)
    split, costs = TeamWays(teams).way(
        {name: main_strategies(model, name, patterns) for name in model.operators}, sequence
    )
    return shared_out(solve(costs, team_cluster(cluster, team), job=job).plan, model, split)


def main_strategies(model: Model, graph: str, patterns: dict[str, int]) -> MainStrategies:
    """Return the strategies of a graph of operators whose weights patterns split."""
    found = {
        operator.name: (AxisStrategy(weight.loops[axis]),)
        for operator in model.operators[graph].operators
        for weight in operator.weights
        for pattern, axis in patterns.items()
        if fnmatchcase(weight.name, pattern)
    }
    return tuple(found.items())


def show(rows: Sequence[Row]) -> None:
    """Print the table and tau."""
    print("| team | split | replicas | stages | processes | predicted | measured | quartiles | ratio | peak, MiB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        low, _, high = quantiles(row.times, n=4)
        stages, team, (told, seen, off) = len(row.plan.stages), row.plan.team, row.memory
        print(
            f"| {team} | {row.name} | {row.replicas} | {stages} | {team * row.replicas * stages} "
            f"| {row.plan.step_time / 1e6:.0f} ms | {row.time / 1e6:.0f} ms | {low / 1e6:.0f} to {high / 1e6:.0f} ms "
            f"| {row.time / row.plan.step_time:.2f} | {told:.0f}, {seen:.0f} ({off:+.0%}) |"
        )
    print(f"Kendall's tau: {tau([(row.plan.step_time, row.time) for row in rows]):.2f}", flush=True)


def tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Kendall's tau: the share of concordant pairs, less that of discordant ones."""
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in combinations(pairs, 2)]
    return sum((each > 0) - (each < 0) for each in signs) / len(signs)


if __name__ == "__main__":
    main()
