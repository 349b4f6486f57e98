"""Memory of models that were never measured: predicted from a pass without values, and the peak of a run.

Six models are described on the meta device, cut into two stages for Adam, and trained on two local processes. A row
has a rank's predicted peak, the measured one (the memory of the process) and their ratio. The memory of a bare worker
is measured. The first model has 64,000 words, so that its loss holds most of the memory.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pipeplan
from pipeplan import Workload
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job, Recompute
from pipeplan.frontend.profile import profile_workload
from pipeplan.simulate import memory_of_ranks
from pipeplan_executor import describe_machine, run
from pipeplan_executor.zoo import decoder, gnmt, mlp, resnet50, vgg16

BATCH, MICRO_BATCHES, STEPS = 4, 2, 2
CLOSE = 0.1
"""Largest accepted relative error of a prediction."""


MODELS: dict[str, Callable[[], Workload]] = {
    "64,000 words": partial(decoder, width=256, blocks=4, vocabulary=64_000, length=512),
    "decoder": partial(decoder, width=512, blocks=6),
    "gnmt": partial(gnmt, width=512),
    "mlp": partial(mlp, widths=(1024, 4096, 2048, 4096, 1024)),
    "vgg16": vgg16,
    "resnet50": resnet50,
}


def main() -> None:
    """Print the table."""
    cluster, close, count = _cluster(), 0, 0
    print(f"{'model':14} {'rank':4} {'predicted':>12} {'measured':>12} {'ratio':>6}")
    for name, build in MODELS.items():
        model = profile_workload(build, micro_batches=(1,), device="meta")
        job = Job(
            BATCH,
            micro_batches=(MICRO_BATCHES,),
            depths=(2,),
            replicas=(1,),
            optimizer="adam",
            recompute=Recompute.NONE,
        )
        result = pipeplan.solve(model, cluster, job=job, time_limit=10)
        report = run(result.plan, build, steps=STEPS, timeout=300.0)
        for rank, seen in enumerate(report.peaks):
            told = memory_of_ranks(result.plan)[rank]
            close, count = close + (abs(told / seen - 1) <= CLOSE), count + 1
            print(f"{name:14} {rank:4} {told / 2**20:8.0f} MiB {seen / 2**20:8.0f} MiB {told / seen:6.2f}", flush=True)
    print(f"within {CLOSE:.0%}: {close} of {count}")


def _cluster() -> Cluster:
    """Two catalogued workers; what a bare worker takes is measured here, as it depends on torch's build."""
    cluster, (here,) = pipeplan.load_cluster("2-cpu"), describe_machine(2).kinds.values()
    return replace(cluster, kinds={name: replace(kind, runtime=here.runtime) for name, kind in cluster.kinds.items()})


if __name__ == "__main__":
    main()
