"""`outside`: the reason why a hand-written plan is none of those that the search compares it with, if it is none.

A plan is one of them if the spaces of the asked job have its stages, replicas, micro-batches, schedule, level of ZeRO
and recomputation, and put its stages on nodes as it does; like devices of a node are interchangeable.
"""

from collections.abc import Iterator
from dataclasses import replace

from pipeplan.analysis.judge.hand_written import HandWritten
from pipeplan.analysis.judge.priced import Priced
from pipeplan.core.cluster import StageDevices
from pipeplan.core.job import SHARDED, Job, Objective, Recompute
from pipeplan.core.plan import Plan
from pipeplan.core.wording import counted
from pipeplan.schedules import PLACED, Family
from pipeplan.schedules.family import FOUND
from pipeplan.search import enumerates_groups
from pipeplan.search.graph.reach import applies
from pipeplan.search.nodes.layouts import layouts
from pipeplan.search.space.candidates import Candidate, in_flight
from pipeplan.search.space.device_groups import Mode, Modes, arrange, placements, same_places
from pipeplan.search.space.outside import lists, unasked
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces

PLAN = ("micro_batches", "schedules", "chunks", "depths", "replicas", "equal_replicas", "regular", "recompute", "zero")
"""Fields of the asked job that say which plans are compared; the others hold for the hand-written plan too."""

LEFT_OUT = "the search leaves its way to split layers out, for others that are as good, faster or keep fewer bytes"


def outside(found: Priced, written: HandWritten, asked: Job) -> str:
    """Return why no search of the asked job has this plan; empty if one has it, or one that is at least as good."""
    teams = _teams(asked, written)
    if teams or found.setting.left_out:
        return teams or LEFT_OUT
    if written.token_slices not in (asked.slices or (1,)):
        return f"it has {written.token_slices} token slices, asked for are {', '.join(map(str, asked.slices or (1,)))}"
    own = found.setting.space
    job = replace(own.job, **{name: getattr(asked, name) for name in PLAN})
    spaces = Spaces(own.model, own.cluster, job, own.split)
    return _unlike(spaces, found, written) or ""


def _teams(job: Job, written: HandWritten) -> str:
    """Why the search has no such teams, if it has none."""
    absent = sorted(set(written.team) - set(job.teams or (1,)))
    sizes = " and ".join(map(str, sorted(set(written.team))))
    if not absent and len(set(written.team)) > 1 and not job.unlike_teams:
        return f"it has teams of {sizes}, asked for are teams of one size"
    if not absent:
        return ""
    wanted = ", ".join(map(str, job.teams or (1,)))
    return f"it has teams of {' and '.join(map(str, absent))}, asked for are teams of {wanted}"


def _unlike(spaces: Spaces, found: Priced, written: HandWritten) -> str | None:
    """What of the plan no plan of the spaces has."""
    candidate, boundaries = found.evaluated.candidate, found.evaluated.boundaries
    space = spaces.of(candidate)
    if space.unfolding is not None:
        return _recomputed(space.job, found.plan) or unasked(space, candidate, boundaries) or _placed(space, candidate)
    as_searched = _as_searched(space, candidate, written)
    if as_searched is None:
        return _schedule(space, candidate, written)
    return _recomputed(space.job, found.plan) or unasked(space, as_searched, boundaries) or _placed(space, candidate)


def _as_searched(space: Space, candidate: Candidate, written: HandWritten) -> Candidate | None:
    """The candidate with a schedule of the space that is this one, or as good; None if it has none."""
    if not written.placed:
        same = next((each for each in space.families if _as_good(candidate, each, space.job)), None)
        if same is not None:
            return replace(candidate, family=same)
        if lists(space, candidate):
            return candidate
    if space.any_order and len(set(candidate.replicas)) == 1 and not candidate.family.two_lanes:
        return replace(candidate, family=replace(candidate.family, name=FOUND))
    return None


def _as_good(candidate: Candidate, family: Family, job: Job) -> bool:
    """Whether a family takes no longer than the candidate's and holds no more, by what is known beforehand."""
    own = candidate.family
    if family.name == own.name:
        return True
    alone = candidate.depth == 1 and own.two_lanes is family.two_lanes
    if not alone and job.objective.simulated:
        return False
    held = in_flight(family, candidate.replicas, candidate.micro_batches, job.objective)
    return all(a <= b for a, b in zip(held, candidate.in_flight, strict=True))


def _schedule(space: Space, candidate: Candidate, written: HandWritten) -> str:
    """Why the space has no such schedule, and the option with which it has."""
    searched, name = ", ".join(space.schedules), candidate.family.name
    if not written.is_found:
        chunks = f" --chunks {candidate.chunks}" if candidate.chunks > 1 else ""
        splits = name in PLACED and PLACED[name].splits
        never = splits and space.job.objective is not Objective.STEP
        never |= name in PLACED and not PLACED[name].in_rounds
        option = "" if never else f" (--schedules {name}{chunks} searches it)"
        return f"its schedule is {name}{', which splits backwards' * splits}; searched are {searched}{option}"
    ask = " (--schedules any searches such orders)" if space.job.level < SHARDED else ""
    what = "its order is no family's" if name == FOUND else f"its schedule is {name}"
    return f"{what}, searched are {searched}{ask}"


def _recomputed(job: Job, plan: Plan) -> str:
    """What the plan recomputes and the job does not, or the other way round."""
    again = sum(len(stage.recompute) for stage in plan.stages)
    layers = plan.boundaries[-1]
    if job.recompute is Recompute.NONE and again:
        return f"it recomputes {counted(again, 'layer')}, asked for is no recomputation"
    if job.recompute is Recompute.FULL and again < layers:
        return f"it recomputes {again} of {counted(layers, 'layer')}, asked for is full recomputation"
    return ""


def _placed(space: Space, candidate: Candidate) -> str:
    """Why the search has no stages of so many replicas, or not on such devices of the nodes."""
    if applies(space):
        return ""
    groups = candidate.chain.groups[: candidate.depth // candidate.chunks]
    class_of = {device.index: number for number, each in enumerate(space.classes) for device in each.devices}
    for s, group in enumerate(groups):
        if len({class_of[device.index] for device in group}) > 1:
            return f"the replicas of stage {s} lie in nodes with unlike links, searched are those in like nodes"
    if space.placing.every:
        return ""
    modes = tuple(Mode(class_of[group[0].index], len(group)) for group in groups)
    found = list(_placements(space, modes, candidate.micro_batches))
    if not found:
        widths = ", ".join(map(str, dict.fromkeys(candidate.replicas)))
        return f"its stages have {widths} replicas, and on so many devices other numbers are searched"
    if not any(same_places(space.cluster, groups, other) for other in found):
        return "its stages lie on other devices of the nodes than those that are searched (packed, or in equal tiles)"
    return ""


def _placements(space: Space, modes: Modes, micro_batches: int) -> Iterator[StageDevices]:
    """Yield the device groups of a sequence of modes that the space has."""
    if enumerates_groups(space):
        yield from placements(space.cluster, space.job, space.classes, modes)
        return
    widths = {mode.replicas for mode in modes}
    for layout in layouts(space, micro_batches):
        if widths <= {width * layout.unit for width in layout.widths}:
            groups = arrange(space.classes, modes, layout.tile)
            if groups is not None:
                yield groups
