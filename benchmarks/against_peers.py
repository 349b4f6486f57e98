"""Alpa, Galvatron and UniAP beside our plan: their own optimum, the time to prove it, and the simulated step of each.

All choose from one space: stages of layers on teams of one size, all layers split in one way, at level 0 or 1 of ZeRO.
Each peer proves the optimum of its own objective for every micro-batch size, and of these plans the fastest simulated
one counts. ``own`` is the peer's own value for a plan with as many micro-batches. Our search starts without the peers'
plans. ``-- MODEL@CLUSTER ... [time=SECONDS]`` selects rows.
"""

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from unittest import mock

from pipeplan import load_cluster, load_model
from pipeplan.baselines.partitioners import NotApplicable
from pipeplan.baselines.planners import PLANNERS
from pipeplan.core.job import Job
from pipeplan.core.plan import Plan
from pipeplan.core.units import format_time
from pipeplan.core.wording import counted, team_suffix, zero_suffix
from pipeplan.search import turns
from pipeplan.search.heuristics import Heuristics
from pipeplan.search.proposals import homes
from pipeplan.search.space.spaces import Spaces
from pipeplan.search.turns import Baseline
from pipeplan.solve import solve

PEERS = ("alpa", "galvatron", "uniap")
ROWS = {
    "gpt2-small@4-v100-nvlink": 64,
    "gpt2-small@2x4-v100-10gbit": 64,
    "gpt2-xl@8-v100-nvlink": 32,
    "gpt2-xl@2x4-v100-10gbit": 32,
    "bert-large@8-v100-pcie": 64,
    "bert-large@2x4-v100-10gbit": 64,
    "gpt3-175b@64-h100": 256,
}
"""Models and clusters, with the batch."""


def rows_of(spaces: Spaces, names: tuple[str, ...] = PEERS) -> Mapping[str, Baseline]:
    """Plans of some baseline planners, simulated without a time limit."""
    with (
        mock.patch.object(turns, "PLANNERS", {name: PLANNERS[name] for name in names}),
        mock.patch.object(turns, "PARTITIONERS", {}),
    ):
        heuristics = Heuristics(spaces)
        heuristics.begin(1e6)
        return heuristics.rows()


def without_heuristics() -> AbstractContextManager[object]:
    """Searches start without heuristics: the peers' plans would be our own start."""
    return mock.patch.object(turns, "every_turn", lambda _: iter(()))


def own_optimum(spaces: Spaces, name: str, size: int) -> float | None:
    """The least value of a peer's own objective at a micro-batch size, in nanoseconds; None without a plan."""
    below = float("inf")
    for home in homes(spaces):
        try:
            found = PLANNERS[name].arrange(home.model, home.cluster, home.job, size, below)
        except NotApplicable:
            continue
        below = min(below, *(arrangement.value for arrangement in found if arrangement.value is not None))
    return None if below == float("inf") else below


def main() -> None:
    """Print the table."""
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    options = dict(word.split("=") for word in words if "=" in word)
    chosen = [word for word in words if "=" not in word] or list(ROWS)
    print("| model, cluster, batch | method | own value | proved in | step | over ours | plan |\n" + "|---" * 7 + "|")
    for pair in chosen:
        _print(pair, ROWS.get(pair, 64), float(options.get("time", 60)))


def _print(pair: str, batch: int, seconds: float) -> None:
    names = pair.split("@")
    model, cluster = load_model(names[0]), load_cluster(names[1])
    job = Job(batch, optimizer="adam", zero=(0, 1), teams=_teams(len(cluster.nodes[0].kinds)))
    with without_heuristics():
        result = solve(model, cluster, job=job, time_limit=seconds)
    where = f"{pair.replace('@', ', ')}, {batch}"
    plan = f"{_plan(result.plan)}, {result.plan.schedule.family}"
    step, gap = format_time(result.value), f"gap {result.gap:.1%}"
    print(f"| {where} | pipeplan | | {gap} in {result.wall:.0f} s | {step} | 1.000 | {plan} |", flush=True)
    spaces = Spaces(model, cluster, job)
    plans = rows_of(spaces)
    for name in PEERS:
        began = time.process_time()
        own = {size: own_optimum(spaces, name, size) for size in spaces.lowest.sizes}
        spent, row = time.process_time() - began, plans[name]
        if row.evaluated is None or row.value is None:
            print(f"| {where} | {name} | | {spent:.1f} s | no plan | | {row.why} |", flush=True)
            continue
        value = own[row.evaluated.candidate.chain.micro_batch]
        told = "" if value is None else format_time(round(value))
        over = f"{row.value / result.value:.3f}"
        print(f"| {where} | {name} | {told} | {spent:.1f} s | {format_time(row.value)} | {over} | {row.label} |",
              flush=True)  # fmt: skip


def _teams(node: int) -> tuple[int, ...]:
    """Powers of two up to a node."""
    return tuple(2**k for k in range(node.bit_length()) if 2**k <= min(node, 8))


def _plan(plan: Plan) -> str:
    replicas = "-".join(str(len(stage.devices)) for stage in plan.stages)
    label = f"{counted(len(plan.stages), 'stage')} of {replicas} replicas, "
    label += f"{counted(plan.micro_batches, 'micro-batch')} of {plan.micro_batch}"
    return label + zero_suffix(plan.zero) + team_suffix(plan.teams, plan.parallelism)


if __name__ == "__main__":
    main()
