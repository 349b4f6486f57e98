"""Predicted beside measured: step time and peak memory of the best plan of every family, on two processes here.

Medians over the timed steps of one run each; the machine should have nothing else to do.
"""

import torch

from pipeplan.errors import InfeasibleError
from pipeplan.job import Job
from pipeplan.profile import profile
from pipeplan.search.candidates import default_families
from pipeplan.solve import solve
from pipeplan_executor import describe_machine, run, zoo

BATCH, SIZES, STEPS = 16, (1, 2, 4), 9


def main() -> None:
    """Print the table."""
    cluster = describe_machine(2)
    print(" model     family     micro-batches   predicted    measured     off  peak memory: predicted, measured (MiB)")
    for name in ("decoder", "vgg16", "mlp"):
        workload = getattr(zoo, name)()
        generator = torch.Generator().manual_seed(0)

        def draw(samples: int, workload=workload, generator=generator) -> object:  # type: ignore[no-untyped-def]
            return workload.draw(samples, generator)

        model = profile(workload.module, draw, micro_batches=SIZES, loss=workload.loss, name=name)
        for family in default_families(cluster, Job(batch=BATCH)):
            try:
                plan = solve(model, cluster, batch=BATCH, schedules=(family.name,), depths=(2,)).plan
            except InfeasibleError as error:
                print(f" {name}: {error}")
                continue
            report = run(plan, f"pipeplan_executor.zoo:{name}", steps=STEPS)
            off = report.step_time / plan.step_time - 1
            promised = [stage.memory.total / 2**20 for stage in plan.stages]
            seen = [peak / 2**20 for peak in report.peaks]
            print(
                f" {name:9} {family.name:10} {plan.micro_batches:6} x {plan.micro_batch:<4} "
                f"{plan.step_time / 1e6:9.1f} ms {report.step_time / 1e6:9.1f} ms {off:+7.1%}  "
                + ", ".join(f"{a:.0f} {b:.0f} ({b / a - 1:+.0%})" for a, b in zip(promised, seen, strict=True)),
                flush=True,
            )


if __name__ == "__main__":
    main()
