"""What plans could lose at most where the sums and gathers of a stage share network cards with tensors.

The simulator lets both use a card as if each were alone on it. If they share its bandwidth instead, none of them is
delayed by more than the time for which both are on their way. So a step takes no longer than its time plus the sum of
these overlaps over all tensors: the upper limit that the table has. The plans are those that `solve` finds.
"""

from collections.abc import Iterator
from itertools import product

from pipeplan.core.cluster import Cluster
from pipeplan.core.pipeline import Stage
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind
from pipeplan.core.timeline import Timeline, TransferSpan
from pipeplan.io.load import load_cluster, load_model
from pipeplan.solve import solve

CLUSTERS = ("2x2-v100-10gbit", "2x4-v100-10gbit", "64-h100")
MODELS = (("vgg-16", 256), ("resnet-50", 256), ("gnmt-8", 512), ("bert-large", 64), ("gpt2-xl", 64), ("llama3-8b", 128))
"""Models, and samples of a step."""
SECONDS = 20.0


def main() -> None:
    """Print the table."""
    print("| model | cluster | optimiser | step | gap | at most lost by shared cards | plan |")
    print("|---|---|---|---|---|---|---|")
    for (model, batch), name, optimizer in product(MODELS, CLUSTERS, ("sgd", "adam")):
        if model.startswith("llama") != name.startswith("64"):
            continue
        cluster = load_cluster(name)
        found = solve(load_model(model), cluster, batch, optimizer=optimizer, time_limit=SECONDS)
        lost = sum(overlaps(found.plan, cluster, found.timeline)) / found.value
        widths = "-".join(str(stage.replicas) for stage in found.plan.stages)
        print(
            f"| {model} | {name} | {optimizer} | {found.value / 1e6:,.1f} ms | {found.gap:.2%} | {lost:.3%} "
            f"| {widths}, {found.plan.micro_batches} micro-batches, ZeRO-{found.plan.zero} |",
            flush=True,
        )


def overlaps(plan: Plan, cluster: Cluster, timeline: Timeline) -> Iterator[int]:
    """Nanoseconds for which each tensor between nodes is on its way beside sums or gathers on one of its cards."""
    nodes = [[cluster.devices[device].node for device in stage.devices] for stage in plan.stages]
    busy = [
        (set(own), interval)
        for s, own in enumerate(nodes)
        if len(set(own)) > 1
        for interval in intervals(plan.pipeline.stages[s], s, timeline)
    ]
    for tensor in timeline.transfers:
        cards = {nodes[s][tensor.micro_batch % len(nodes[s])] for s in (tensor.source, tensor.target)}
        if len(cards) > 1:
            yield sum(both(tensor, interval) for used, interval in busy if used & cards)


def intervals(stage: Stage, number: int, timeline: Timeline) -> Iterator[tuple[int, int]]:
    """When the sums of a stage are on their way, and its gathers."""
    for span in timeline.spans:
        if span.action == (Kind.REDUCE, number, 0, 0):
            yield span.start - max((bucket.ready for bucket in stage.buckets), default=0), span.end
            break
    yield 0, max(sum(bucket.time for bucket in stage.gather_buckets), stage.gather)


def both(tensor: TransferSpan, interval: tuple[int, int]) -> int:
    """Nanoseconds of a transfer within an interval."""
    return max(min(tensor.end, interval[1]) - max(tensor.start, interval[0]), 0)
