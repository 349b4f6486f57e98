"""What a plan's devices are called in pictures and traces: ``'d3 · stage 1 (2/4)'``."""

from pipeplan.core.plan import Plan


def device_labels(plan: Plan) -> tuple[str, ...]:
    """For each rank its device in the cluster, its stage and, where the stage is replicated, which replica it is."""
    return tuple(f"d{device}{_stages(plan, rank)}" for rank, device in enumerate(plan.ranks))


def _stages(plan: Plan, rank: int) -> str:
    own = plan.pipeline.stages_on[rank]
    parts = []
    for stage in own:
        homes = plan.pipeline.placement[stage]
        parts.append(f"{stage} ({homes.index(rank) + 1}/{len(homes)})" if len(homes) > 1 else f"{stage}")
    return f" · stage{'s' if len(own) > 1 else ''} {', '.join(parts)}" if own else ""
