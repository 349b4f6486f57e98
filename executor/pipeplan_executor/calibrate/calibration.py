"""Calibration of a model and a cluster from a run of a plan, so that they predict it."""

from dataclasses import dataclass, replace
from itertools import pairwise

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import PlanError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.pipeline import Pipeline, layer_counts
from pipeplan.core.plan import Plan
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import price
from pipeplan.schedules.family import FOUND
from pipeplan.simulate import simulate
from pipeplan_executor.calibrate.costs import calibrated_model
from pipeplan_executor.calibrate.links import calibrated_cluster
from pipeplan_executor.calibrate.observed import Observed


@dataclass(frozen=True)
class Prediction:
    """Prediction of one plan: nanoseconds of a step, bytes of each rank's peak."""

    step_time: int
    peaks: tuple[int, ...]


@dataclass(frozen=True)
class Calibration:
    """Model and cluster after calibration, with predictions before and after.

    Attributes
    ----------
    before, after : Prediction
        Predictions of the plan that ran, with the given and with the calibrated model and cluster.
    seen : Observed
    stretch : float
        Ratio of the measured step to the step simulated with typical times. Times vary, and at every transfer the later
        of two ranks decides. The simulator has no variation, so every time is multiplied by this ratio.
    model : Model
    cluster : Cluster
    """

    before: Prediction
    after: Prediction
    seen: Observed
    stretch: float
    model: Model
    cluster: Cluster


def calibrated(plan: Plan, model: Model, cluster: Cluster, seen: Observed) -> Calibration:
    """Calibrate a model and a cluster so that they predict the measurements of a plan.

    Raises
    ------
    PlanError
        If the plan was made for another model or other devices.
    """
    check_belongs(plan, model, cluster)
    pipeline = repriced(plan, model, cluster)
    before = predict(plan, pipeline)

    def corrected(by: Observed) -> tuple[Model, Cluster, Prediction]:
        new_cluster = calibrated_cluster(cluster, plan, pipeline, before.peaks, by)
        new_model = calibrated_model(model, cluster, plan, repriced(plan, model, new_cluster), by)
        return new_model, new_cluster, predict(plan, repriced(plan, new_model, new_cluster))

    # once with the typical times, to find the stretch; then with all times stretched
    typical = corrected(seen)[-1].step_time
    stretch = seen.step_time / typical if typical else 1.0
    new_model, new_cluster, after = corrected(seen.stretched(stretch))
    return Calibration(before, after, seen, stretch, new_model, new_cluster)


def check_belongs(plan: Plan, model: Model, cluster: Cluster) -> None:
    """Refuse a model or a cluster that the plan was not made for, and a plan whose passes wait for collectives."""
    if plan.team > 1:
        raise PlanError(
            f"each rank of the plan is a team of {plan.team} devices, whose passes are neither what layers take on one "
            "device nor free of collectives; calibrate with a plan without teams"
        )
    if plan.sharded:
        raise PlanError(
            f"at level {plan.zero} of ZeRO forwards and backwards wait for collectives, so they do not show what "
            "layers take; calibrate with a plan at level 0 or 1 (--zero 1)"
        )
    if plan.fingerprint != model.fingerprint:
        raise PlanError(
            f"the plan was made for another model ({plan.model}, fingerprint {plan.fingerprint}) than {model.name} "
            f"({model.fingerprint}); calibrate with the model file that it was solved with"
        )
    kinds = tuple(device.kind.name for device in cluster.devices)
    if plan.device_kinds != kinds:
        raise PlanError(
            f"the plan was made for the devices {_counted(plan.device_kinds)}, and {cluster.name} has "
            f"{_counted(kinds)}; calibrate with the cluster file that it was solved with"
        )


def _counted(kinds: tuple[str, ...]) -> str:
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))


def repriced(plan: Plan, model: Model, cluster: Cluster) -> Pipeline:
    """Return the plan's pipeline with the costs of a model and a cluster."""
    job = Job(
        batch=plan.batch,
        optimizer=plan.optimizer,
        state_bytes=plan.state_bytes,
        gradient_bytes=plan.gradient_bytes,
        zero=(plan.zero,),
        overlap_reduction=any(stage.buckets for stage in plan.pipeline.stages),
        schedules=("any",) if plan.schedule.family == FOUND else (),
        extrapolate=True,
    )
    groups = [tuple(cluster.devices[device] for device in stage.devices) for stage in plan.stages]
    chain = price(model, cluster, groups, plan.micro_batch, job)
    again = [
        [i for i in range(a, b) if model.names[i] in stage.recompute]
        for stage, (a, b) in zip(plan.stages, pairwise(plan.boundaries), strict=True)
    ]
    buckets = [layer_counts(stage.buckets) for stage in plan.pipeline.stages]
    gathers = [layer_counts(stage.gather_buckets) or None for stage in plan.pipeline.stages]  # older plans state none
    apart = assemble(chain, cluster, plan.boundaries, again, buckets, gathers)
    runtime = tuple(cluster.devices[device].kind.runtime for device in plan.ranks)
    return replace(apart, placement=plan.pipeline.placement, runtime=runtime, limits=plan.pipeline.limits)


def predict(plan: Plan, pipeline: Pipeline) -> Prediction:
    """Simulate the plan's step on a pipeline."""
    timeline = simulate(plan.schedule, pipeline)
    return Prediction(timeline.makespan, timeline.peaks)
