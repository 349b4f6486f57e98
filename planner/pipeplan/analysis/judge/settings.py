"""`settings`: the spaces in which a hand-written plan has costs, and the devices of its stages there.

Single devices have one space. Teams have one for each way to split layers over them, from the tables of the search.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from pipeplan.analysis.judge.hand_written import HandWritten
from pipeplan.core.cluster import Cluster, Device, StageDevices
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.splits import Mix
from pipeplan.costs.sharding.mixed import NodeTeams, fill_up, kind_name, mixed_cluster
from pipeplan.costs.sharding.question import MixedQuestion, TeamQuestion, team_questions
from pipeplan.costs.slices import sliced
from pipeplan.search.space.rounds import check_halves
from pipeplan.search.space.space import Space


class Setting(NamedTuple):
    """A space, and the devices of each stage in it.

    ``left_out`` says that the search leaves this way to split layers out.
    """

    space: Space
    groups: StageDevices
    left_out: bool = False


def settings(model: Model, cluster: Cluster, job: Job, plan: HandWritten) -> Iterator[Setting]:
    """Yield the settings of a hand-written plan.

    Raises
    ------
    InputError
        If there are too few devices or teams, if those of a stage are unlike, or if nothing can be split.
    """
    if job.slices:
        check_halves(model, cluster, job)
        model = sliced(model, job.slices[0])
    if not job.teams:
        yield Setting(Space(model, cluster, job), _groups(cluster, plan, "devices"))
        return
    for question in team_questions(model, cluster, job):
        if isinstance(question, MixedQuestion):
            yield from _mixed(question, plan)
        elif not job.unlike_teams:
            groups = _groups(question.cluster, plan, f"teams of {plan.team[0]}")
            yield Setting(_space(question), groups)


def _space(question: TeamQuestion) -> Space:
    return Space(question.model, question.cluster, question.job, question.split)


def _groups(cluster: Cluster, plan: HandWritten, what: str) -> StageDevices:
    """The devices of each stage, in the cluster's order."""
    homes, devices = plan.homes, cluster.devices
    taken = 1 + max(number for own in homes for number in own)
    if taken > len(devices):
        counts = "" if plan.placed else f"{' + '.join(map(str, plan.replicas))} = "
        raise InputError(f"the stages take {counts}{taken} {what}, and {cluster.name} has {len(devices)}; take fewer")
    return _checked(tuple(devices[number] for number in own) for own in homes)


def _checked(groups: Iterable[tuple[Device, ...]]) -> StageDevices:
    """The groups, of which each has devices of one kind."""
    found = tuple(groups)
    for s, group in enumerate(found):
        kinds = dict.fromkeys(device.kind.name for device in group)
        if len(kinds) > 1:
            raise InputError(
                f"the replicas of stage {s}, d{group[0].index} to d{group[-1].index}, are of unlike kinds "
                f"({', '.join(kinds)}); replicas of a stage are of one kind"
            )
    return found


def _mixed(question: MixedQuestion, plan: HandWritten) -> Iterator[Setting]:
    """Yield the settings of teams of unlike sizes, one for each row of splits of these sizes."""
    homes = _homes(question, plan)
    nodes, places = _filled(question, plan)
    sizes = sorted({team for own in nodes for _, team in own if team > 1}, reverse=True)
    for row in product(*([split for split in question.splits if split.team == size] for size in sizes)):
        mix = Mix(row, nodes, homes)
        free: dict[tuple[int, str], list[Device]] = defaultdict(list)
        here = [number for number, own in enumerate(nodes) if own]
        for device in mixed_cluster(question.cluster, mix).devices:
            free[here[device.node], device.kind.name].append(device)
        groups = _checked(tuple(free[place].pop(0) for place in own) for own in places)
        yield Setting(_space(question.mix(mix)), groups)


def _homes(question: MixedQuestion, plan: HandWritten) -> tuple[int, ...]:
    """The size of the teams that have each set of layers that share weights."""
    names = iter(question.whole.names)
    team = {next(names): size for size, count in zip(plan.team, plan.stages, strict=True) for _ in range(count)}
    found = []
    for layers in question.together:
        own = sorted({team[name] for name in layers})
        if len(own) > 1:
            raise InputError(
                f"layers {', '.join(layers)} share weights, of which teams of {' and '.join(map(str, own))} have "
                "unlike parts; give their stages equal teams"
            )
        found.append(own[0])
    return tuple(found)


def _filled(
    question: MixedQuestion, plan: HandWritten
) -> tuple[tuple[NodeTeams, ...], tuple[tuple[tuple[int, str], ...], ...]]:
    """Put the teams of all stages into the first nodes with room, in order.

    Returns the teams of each node, of which those left over fill it up, and for each stage the node and the kind of its
    teams.
    """
    cluster = question.cluster
    left = [Counter(node.kinds) for node in cluster.nodes]
    found: list[list[tuple[str, int]]] = [[] for _ in cluster.nodes]
    places = []
    for s, (size, count) in enumerate(zip(plan.team, plan.replicas, strict=True)):
        own = []
        for _ in range(count):
            room = ((n, kind) for n, node in enumerate(left) for kind, many in node.items() if many >= size)
            place = next(room, None)
            if place is None:
                raise InputError(
                    f"stage {s} has {count} x {size} devices, for which the nodes of {cluster.name} have no room"
                )
            number, kind = place
            left[number][kind] -= size
            found[number].append((kind, size))
            own.append((number, kind_name(kind, size)))
        places.append(tuple(own))
    return fill_up(cluster, found, left, question.sizes), tuple(places)
