"""Scaled profiles of a model, under which the stages of a plan take their measured times.

Layers of a stage keep their ratios. The gap between two actions counts as part of the second: an engine's work for an
action is thus spread over the layers of its stage. That is exact for plans with the same number of stages, for any
boundaries, and charges a plan with fewer stages for a few actions too many.

Profiles of other micro-batch sizes are scaled alike. Unscaled, they would look faster than the measured one, and the
next search would choose one of them for that reason alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from statistics import fmean

from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.model import LayerCost, Model, Profile, Provenance
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind
from pipeplan.core.wording import counted
from pipeplan.costs.layers import available_micro_batches, layer_costs, profiles_for
from pipeplan_executor.calibrate.observed import Observed

FIELDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRADIENT: "input_gradient",
    Kind.WEIGHT_GRADIENT: "weight_gradient",
    Kind.REDUCE: "reduce",
    Kind.UPDATE: "update",
}
"""Fields of `LayerCost` and `pipeplan.core.pipeline.Stage` with the times of actions."""
BACKWARD = (Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
BEFORE = "; before: "


@dataclass(frozen=True)
class Scale:
    """Measured and predicted times of actions on some layers, in nanoseconds for all of these layers together."""

    measured: Mapping[Kind, int]
    predicted: Mapping[Kind, int]

    def __call__(self, costs: Sequence[LayerCost]) -> list[LayerCost]:
        """Scale the layers' costs; if zero was predicted, divide the measured time among the layers."""
        columns = {}
        for kind, measured in self.measured.items():
            own, predicted = [getattr(cost, FIELDS[kind]) for cost in costs], self.predicted[kind]
            columns[FIELDS[kind]] = apportion(own, round(sum(own) * measured / predicted) if predicted else measured)
        return [replace(cost, **{name: row[i] for name, row in columns.items()}) for i, cost in enumerate(costs)]


def apportion(parts: Sequence[int], total: int) -> list[int]:
    """Return integers in the ratios of ``parts`` with the sum ``total``; about equal ones if all parts are 0."""
    row = parts if sum(parts) else [1] * len(parts)
    whole = sum(row)
    return [b - a for a, b in pairwise(total * reach // whole for reach in accumulate(row, initial=0))]


def calibrated_model(model: Model, cluster: Cluster, plan: Plan, pipeline: Pipeline, seen: Observed) -> Model:
    """Return the model with profiles under which the plan's stages take their measured times.

    In the profile of a kind of device, layers that ran on other kinds are scaled like all of its own layers together.

    Parameters
    ----------
    pipeline : Pipeline
        Pipeline of the plan with the costs of the model, and of the cluster as its links have been measured.
    """
    kinds = [cluster.devices[stage.devices[0]].kind for stage in plan.stages]
    profiles = {(profile.device, profile.micro_batch): profile for profile in model.profiles}
    for name in dict.fromkeys(kind.timed_as or kind.name for kind in kinds):
        own = [s for s, kind in enumerate(kinds) if (kind.timed_as or kind.name) == name]
        scales = {s: _scale(model, kinds[s], plan, pipeline, seen, s) for s in own}
        for size, profile in _profiles(model, kinds[own[0]], plan).items():
            costs = _scaled(profile.costs, plan, scales)
            profiles[name, size] = replace(profile, costs=costs, provenance=_account(profile.provenance, plan, seen))
    return replace(model, profiles=tuple(profiles.values()))


def _profiles(model: Model, kind: DeviceKind, plan: Plan) -> dict[int, Profile]:
    """Return the profiles of a kind by micro-batch size; without any, estimates for the sizes that plans may choose."""
    known = profiles_for(model, kind)
    if known:
        return known
    name, account = kind.timed_as or kind.name, Provenance("analytic", "estimated from operation counts")
    sizes = {*available_micro_batches(model, [kind], plan.batch), plan.micro_batch}
    return {
        size: Profile(
            name, size, layer_costs(model, kind, size, optimizer=plan.optimizer, state_bytes=plan.state_bytes), account
        )
        for size in sorted(sizes)
    }


def _scaled(costs: Sequence[LayerCost], plan: Plan, scales: Mapping[int, Scale]) -> tuple[LayerCost, ...]:
    together = _sum(scales.values())
    found: list[LayerCost] = []
    for s, (a, b) in enumerate(pairwise(plan.boundaries)):
        found += scales.get(s, together)(costs[a:b])
    return tuple(found)


def _sum(scales: Iterable[Scale]) -> Scale:
    """Return the scale of all stages together, without kinds of action that were predicted for none of them."""
    rows = list(scales)
    measured, predicted = Counter[Kind](), Counter[Kind]()
    for scale in rows:
        measured.update(scale.measured)
        predicted.update({kind: scale.predicted[kind] for kind in scale.measured})
    return Scale({kind: measured[kind] for kind, time in predicted.items() if time}, predicted)


def _scale(model: Model, kind: DeviceKind, plan: Plan, pipeline: Pipeline, seen: Observed, s: int) -> Scale:
    a, b = plan.boundaries[s : s + 2]
    costs = layer_costs(
        model, kind, plan.micro_batch, extrapolate=True, optimizer=plan.optimizer, state_bytes=plan.state_bytes
    )
    predicted = {
        kind: sum(getattr(cost, FIELDS[kind]) for cost in costs[a:b]) for kind in (Kind.FORWARD, *BACKWARD, Kind.UPDATE)
    }
    # measured times, with the gap before each action
    ranks = pipeline.placement[s]
    gap = round(fmean(seen.gaps[rank] for rank in ranks))
    measured = {kind: seen.actions[s, kind] + gap for kind in (Kind.FORWARD, *BACKWARD) if (s, kind) in seen.actions}
    # recomputed forwards are part of the measured backward, not of its profile
    again = [cost.forward for name, cost in zip(model.names, costs, strict=True) if name in plan.stages[s].recompute]
    if again and predicted[Kind.FORWARD]:
        repeated = round(sum(again) * measured[Kind.FORWARD] / predicted[Kind.FORWARD])
        for passed in measured.keys() & {Kind.BACKWARD, Kind.INPUT_GRADIENT}:
            measured[passed] = max(measured[passed] - repeated, 0)
    ran = [kind for kind in BACKWARD if kind in measured]
    if whole := sum(predicted[kind] for kind in ran):  # kinds that did not run are scaled like those that did
        ratio = sum(measured[kind] for kind in ran) / whole
        measured |= {kind: round(ratio * predicted[kind]) for kind in BACKWARD if kind not in ran}
    # the update also takes the reduction's gap, and its share of the time around the step
    if (s, Kind.UPDATE) in seen.actions:
        beside = seen.around // max(len(pipeline.stages_on[rank]) for rank in ranks)
        gaps = gap * (1 + ((s, Kind.REDUCE) in seen.actions))  # the reduction's gap is not the links' time
        took = seen.actions[s, Kind.UPDATE] + gaps + beside
        priced = pipeline.stages[s].update  # of a share of the numbers under ZeRO-1, and of copies of shared weights
        measured[Kind.UPDATE] = round(predicted[Kind.UPDATE] * took / priced) if priced else took
    return Scale(measured, predicted)


def _account(old: Provenance, plan: Plan, seen: Observed) -> Provenance:
    origin = old.source.rpartition(BEFORE)[2]
    steps = f"{seen.steps} step{'s' * (seen.steps != 1)}"
    shape = f"{plan.shape}, {counted(plan.micro_batches, 'micro-batch')} of {plan.micro_batch}"
    source = f"calibrated from {steps} of a {plan.schedule.family} plan ({shape}){BEFORE}{origin}"
    return Provenance("measured", source, datetime.now(UTC).strftime("%Y-%m-%d"), old.versions)
