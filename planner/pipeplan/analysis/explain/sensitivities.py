"""Sensitivity of the step time to each device, link or network, by simulating the plan with each one faster.

A resource *binds* a plan if the step gets shorter when that resource alone gets faster. Each resource in turn takes a
tenth less time, and the same schedule is simulated again. To keep whole nanoseconds, its times are multiplied by nine
and all others by ten. If two critical paths run in parallel, no resource binds alone; then the search is for a set
that binds together and of which no subset does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pipeplan.analysis.explain.path import timed
from pipeplan.analysis.explain.setting import Setting, is_card
from pipeplan.core.pipeline import Bucket, Pipeline, Stage, Transfer, exposed
from pipeplan.core.schedule import Kind
from pipeplan.core.timeline import Span, TransferSpan
from pipeplan.simulate import simulate

GRAIN, FASTER = 10, 9
"""Factors of the simulated times: ``GRAIN`` for all resources except the faster ones, which take ``FASTER``."""
MOST, FEWEST = 48, 8
"""Most and fewest resources to try, those with most time on the critical path first; more actions allow fewer."""
ACTIONS = 500_000
"""Most actions to simulate in all, unless ``FEWEST`` resources need more."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A resource that could be faster, and the effect on the step.

    Attributes
    ----------
    kind : {'devices', 'wire', 'network', 'reduction'}
        The devices of some stages; one link between two devices; all network cards; the gradient reduction of a stage,
        or of stages that share weights.
    name : str
    fall : float
        Fraction by which the step falls if this resource alone takes a tenth less time.
    stages : tuple of int
        Stages that run on it.
    link_resources : tuple of str
        Names of the link resources that it stands for.
    """

    kind: Literal["devices", "wire", "network", "reduction"]
    name: str
    fall: float = 0.0
    stages: tuple[int, ...] = ()
    link_resources: tuple[str, ...] = ()


def sensitivities(setting: Setting) -> tuple[Sensitivity, ...]:
    """Resources that bind alone, most effective first.

    Only a resource on the critical path can bind; the others are not tried.
    """
    spent = {sensitivity: _on_path(setting, sensitivity) for sensitivity in candidates(setting)}
    found = sorted(
        (sensitivity for sensitivity in spent if spent[sensitivity]), key=lambda sensitivity: -spent[sensitivity]
    )
    tried = [
        replace(sensitivity, fall=fall(setting, [sensitivity])) for sensitivity in found[: _number_to_try(setting)]
    ]
    return tuple(
        sorted(
            (sensitivity for sensitivity in tried if sensitivity.fall > 0),
            key=lambda sensitivity: (-sensitivity.fall, sensitivity.name),
        )
    )


def groups(setting: Setting) -> tuple[Sensitivity, ...]:
    """Sets of equal resources (all devices of a kind, all links inside nodes), most effective first.

    In a balanced pipeline hardly any resource binds alone; these sets show if computation or communication binds.
    """
    members: dict[str, list[Sensitivity]] = {}
    for sensitivity in candidates(setting):
        ranks = setting.pipeline.placement[sensitivity.stages[0]] if sensitivity.stages else ()
        kinds = {"devices": f"all {setting.kind(ranks[0])}" if ranks else "", "wire": "all links inside nodes"}
        name = kinds.get(sensitivity.kind, f"all {sensitivity.kind}s")
        members.setdefault(name, []).append(sensitivity)
    found = []
    for name, own in members.items():
        if len(own) > 1:
            stages = tuple(sorted({s for sensitivity in own for s in sensitivity.stages}))
            links = tuple(sorted({name for sensitivity in own for name in sensitivity.link_resources}))
            found.append(Sensitivity(own[0].kind, f"{name} together", fall(setting, own), stages, links))
    return tuple(
        sorted(
            (sensitivity for sensitivity in found if sensitivity.fall > 0),
            key=lambda sensitivity: (-sensitivity.fall, sensitivity.name),
        )
    )


def joint_set(setting: Setting) -> tuple[Sensitivity, ...]:
    """An inclusion-minimal set that shortens the step if all of it gets faster; empty if there is none.

    Needed for plans in which no resource binds alone.
    """
    # start with all resources, and drop each one without which the rest still shortens the step
    kept = list(candidates(setting))
    if len(kept) > _number_to_try(setting) or fall(setting, kept) <= 0:
        return ()
    for sensitivity in list(kept):
        rest = [other for other in kept if other != sensitivity]
        if rest and fall(setting, rest) > 0:
            kept = rest
    joint = fall(setting, kept)
    return tuple(replace(sensitivity, fall=joint) for sensitivity in kept)


def candidates(setting: Setting) -> Iterator[Sensitivity]:
    """Yield every resource of a plan that could be faster: devices, reductions, the network, links in use."""
    pipeline = setting.pipeline
    for placement in dict.fromkeys(pipeline.placement):
        own = tuple(s for s, devices in enumerate(pipeline.placement) if devices == placement)
        yield Sensitivity("devices", setting.devices(own[0]), stages=own)
    tied = {s for group in pipeline.tied for s in group}
    alone = [(s,) for s in range(len(pipeline.stages)) if s not in tied]
    for group in sorted([*alone, *pipeline.tied]):
        if any(pipeline.stages[s].reduce or pipeline.stages[s].buckets for s in group):
            yield Sensitivity(
                "reduction", f"gradient reduction of {' and '.join(map(setting.stage, group))}", stages=group
            )
    names = sorted(
        {name for row in _all_transfers(pipeline) for each in row if each.occupancy for name in each.resources}
    )
    cards = tuple(name for name in names if is_card(name))
    if cards:
        yield Sensitivity("network", "the network between the nodes", link_resources=cards)
    for name in names:
        if not is_card(name):
            yield Sensitivity("wire", f"the link {name}", link_resources=(name,))


def _all_transfers(pipeline: Pipeline) -> tuple[tuple[Transfer, ...], ...]:
    return (*pipeline.transfers, *pipeline.returns)


def _on_path(setting: Setting, sensitivity: Sensitivity) -> int:
    """Nanoseconds of the critical path that the resource's actions, or the transfers on its link resources, take."""

    def own(item: Span | TransferSpan) -> bool:
        if isinstance(item, TransferSpan):
            return not set(sensitivity.link_resources).isdisjoint(setting.transfer(item).resources)
        reduces = item.action.kind in (Kind.REDUCE, Kind.GATHER)
        return item.action.stage in sensitivity.stages and reduces == (sensitivity.kind == "reduction")

    return sum(time for item, _, time in timed(setting) if own(item))


def _number_to_try(setting: Setting) -> int:
    """Number of resources to try, by the number of actions of a simulation."""
    actions = sum(map(len, setting.plan.schedule.orders))
    return min(MOST, max(FEWEST, ACTIONS // max(actions, 1)))


def fall(setting: Setting, faster: Sequence[Sensitivity]) -> float:
    """Fraction by which the step falls if all of these get faster; below zero if it grows."""
    if not setting.step:
        return 0.0
    schedule = setting.plan.schedule
    whole = GRAIN * setting.step
    if schedule.two_lanes:  # parts of a backward are rounded here, so the scaled step is not GRAIN times the step
        whole = simulate(schedule, _sped_up(setting.pipeline, [])).makespan
    return 1 - simulate(schedule, _sped_up(setting.pipeline, faster)).makespan / whole


def _sped_up(pipeline: Pipeline, faster: Sequence[Sensitivity]) -> Pipeline:
    working = {s for sensitivity in faster if sensitivity.kind == "devices" for s in sensitivity.stages}
    reducing = {s for sensitivity in faster if sensitivity.kind == "reduction" for s in sensitivity.stages}
    links = {name for sensitivity in faster for name in sensitivity.link_resources}

    def stage(s: int, old: Stage) -> Stage:
        factor = dict.fromkeys(Kind, FASTER if s in working else GRAIN)
        factor[Kind.REDUCE] = factor[Kind.GATHER] = FASTER if s in reducing else GRAIN
        new = old.with_durations(lambda kind, part: old.duration(kind, part) * factor[kind])

        def left(buckets: Sequence[Bucket], beside: int, otherwise: int) -> int:
            """What is exposed of collectives beside a pass that takes ``beside`` times as long."""
            times = [Bucket(each.layers, each.ready * beside, each.time * factor[Kind.REDUCE]) for each in buckets]
            return exposed(times) if times else otherwise

        return replace(
            new,
            reduce=left(old.buckets, factor[Kind.BACKWARD], new.reduce),
            gather=left(old.gather_buckets, factor[Kind.FORWARD], new.gather),
        )

    def scaled(old: Transfer) -> Transfer:
        factor = FASTER if links & set(old.resources) else GRAIN
        return replace(old, occupancy=old.occupancy * factor, latency=old.latency * GRAIN)

    return replace(
        pipeline,
        stages=tuple(stage(s, old) for s, old in enumerate(pipeline.stages)),
        transfers=tuple(tuple(map(scaled, entries)) for entries in pipeline.transfers),
        returns=tuple(tuple(map(scaled, entries)) for entries in pipeline.returns),
    )
