"""Lines of FPGA boards, simulated: data parallelism, the greedy, balance alone and the optimum with divided layers.

All times are analytic estimates from operation counts and data sheets (datasets/devices.yaml); no board was available.
"""

from dataclasses import replace

from pipeplan import load_cluster, load_model
from pipeplan.baselines.partitioners import PARTITIONERS, Partitioner
from pipeplan.baselines.partitioners.partitioner import NotApplicable
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.fpga.evaluate import evaluate
from pipeplan.fpga.line import Line
from pipeplan.fpga.shares import balanced, channels
from pipeplan.fpga.space import lines
from pipeplan.search.result import Result
from pipeplan.solve import solve
from pipeplan_formulations.fractional import Positions, rounded

MODELS = ("vgg-16", "resnet-50")
CLUSTERS = ("4-vcu118", "4-vcu129", "2-vcu118-2-vcu129", "3-vcu118-1-vcu129", "1-vcu118-3-vcu129")
BATCH, SECONDS, GAP = 128, 60.0, 0.002
HEADER = (
    "model",
    "boards",
    "data parallel",
    "greedy, best order",
    "whole layers, replicas too",
    "balance alone",
    "divided, 1F1B-AS",
    "its gap",
    "divided, FBP-AS",
    "best over data parallel",
    "best over greedy",
)


SLOWER = {"100 Gbit/s": 1, "10 Gbit/s": 10, "1 Gbit/s": 100, "0.5 Gbit/s": 200}
"""Links between boards, with their slowdown relative to the links of the data set."""
SLOW_HEADER = (
    "links",
    "layers balanced",
    "greedy, coarse cuts",
    "balance alone",
    "divided",
    "its gap",
    "over balanced",
)


def main() -> None:
    """Print both tables as markdown."""
    boards()
    print()
    slow_links()


def boards() -> None:
    """Print the table of models and lines of boards."""
    print(_row(HEADER))
    print(_row(["---"] * len(HEADER)))
    for name in MODELS:
        model = load_model(name)
        for where in CLUSTERS:
            print(_row(_cells(model, load_cluster(where), where)), flush=True)


def slow_links() -> None:
    """Print the table of VGG-16 on four equal boards with slower and slower links."""
    model, fast = load_model("vgg-16"), load_cluster("4-vcu118")
    print(_row(SLOW_HEADER))
    print(_row(["---"] * len(SLOW_HEADER)))
    job = Job(BATCH, replicas=(1,), schedules=("1f1b-as",), depths=(4,))
    for name, factor in SLOWER.items():
        node = fast.nodes[0]
        assert node.link.bandwidth is not None
        link = replace(node.link, bandwidth=node.link.bandwidth // factor)
        cluster = replace(fast, nodes=(replace(node, link=link),))
        every = lines(model, cluster, job)
        plain, coarse = (
            min(evaluate(line, cut).value for line in every if (cut := _cut(line, partitioner)))
            for partitioner in (PARTITIONERS["chain-minmax"], PARTITIONERS["bapipe"])
        )
        best = _solve(model, cluster, replace(job, intra_layer=True))
        times = map(_milliseconds, (plain, coarse, _alone(model, every), best.value))
        print(_row([name, *times, f"{best.gap:.2%}", f"{plain / best.value:.2f}x"]), flush=True)


def _cells(model: Model, cluster: Cluster, where: str) -> list[str]:
    job = Job(BATCH, replicas=(1,), schedules=("1f1b-as",))
    every = lines(model, cluster, job)
    greedy = min(
        (evaluate(line, cut).value for line in every if (cut := _cut(line, PARTITIONERS["bapipe"]))), default=None
    )
    alone = _alone(model, every)
    whole = _solve(model, cluster, Job(BATCH))
    best = _solve(model, cluster, replace(job, intra_layer=True))
    fbp = _solve(model, cluster, replace(job, intra_layer=True, schedules=("fbp-as",)))
    parallel = whole.baselines["data-parallel-overlapped"].value
    least = min(whole.value, best.value, fbp.value)
    times = [_milliseconds(value) for value in (parallel, greedy, whole.value, alone, best.value)]
    ratios = [f"{value / least:.2f}x" if value else "-" for value in (parallel, greedy)]
    return [model.name, where, *times, f"{best.gap:.2%}", _milliseconds(fbp.value), *ratios]


def _alone(model: Model, every: list[Line]) -> int | None:
    """Time with equal work on every board, shares rounded to channels, on the line that suits it best."""
    parts = channels(model)
    equal = [(line, cut) for line in every if (cut := balanced(line))]
    real = [(line, cut) for line, shares in equal if (cut := rounded(line.problem, shares, parts))]
    return min((evaluate(line, cut).value for line, cut in real), default=None)


def _cut(line: Line, partitioner: Partitioner) -> Positions | None:
    """A partitioner's cut, with weights on chip wherever they fit; None if it has none."""
    try:
        cut = tuple(map(float, partitioner.balance(line.chain, line.micro_batches)))
    except NotApplicable:
        return None
    return cut if line.problem.feasible(cut) else None


def _solve(model: Model, cluster: Cluster, job: Job) -> Result:
    return solve(model, cluster, job=job, time_limit=SECONDS, gap=GAP)


def _milliseconds(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:.0f} ms"


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
