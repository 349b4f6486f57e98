"""Step time against the number or the price of devices: the best plan for every relevant part of the cluster.

Every plan of a part is also a plan of each larger part of the same node. So a lower bound for a part holds for all
parts that it contains. If a part does not fit, no smaller one is solved. A part whose lower bound is not below the time
of a cheaper plan is left out.

::

    cost  1   2   3   4   5   6   7   8         solved: 8, 4, 2, 1, …; if 4 were as fast as the bound for 8,
          ●───●───────●───────────────●         5 to 7 would not be solved
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipeplan.analysis.explain.changes import may_leave_out, pinned_device
from pipeplan.analysis.frontier.answers import Answer, Answers, Verdict
from pipeplan.analysis.frontier.curve import Floor, Point, point
from pipeplan.analysis.frontier.subsets import Part, kind_counts, parts, sub_cluster
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.wording import listed
from pipeplan.costs.sharding.question import sizes_with_room
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits

Found = Mapping[Part, Answer]
"""Answers of the parts that were solved."""


def prices(answers: Answers, by_price: bool) -> Mapping[str, float]:
    """Cost of one device of each kind: its price per hour, or 1.

    Raises
    ------
    InputError
        If a kind has no price.
    """
    kinds = {device.kind.name: device.kind for device in answers.cluster.devices}
    if not by_price:
        return dict.fromkeys(kinds, 1)
    missing = [name for name, kind in kinds.items() if kind.price is None]
    if missing:
        raise InputError(
            f"no price is known for {', '.join(missing)}; write `price:` (per device and hour) beside the kind in the "
            "cluster file"
        )
    return {name: kind.price or 0.0 for name, kind in kinds.items()}


def sweep(answers: Answers, each: Mapping[str, float], levels: int | None = None) -> Iterator[tuple[Part, Answer]]:
    """Yield the relevant parts with their answers, in an order that rules out as many others as possible."""
    check_pins(answers)
    every, inherit = parts(answers.cluster, each, levels), nested(answers)
    found: dict[Part, Answer] = {}
    for i in _bisection_order(len(every)):
        part = every[i]
        if not _matters(part, found, inherit):
            continue
        found[part] = ask(answers, part)
        yield part, found[part]


def read(
    answers: Answers, found: Found, each: Mapping[str, float], levels: int | None
) -> tuple[tuple[Point, ...], tuple[Floor, ...]]:
    """All points and lower bounds of the answers found."""
    kinds = [kind for kind, _ in kind_counts(answers.cluster)]
    floors: list[Floor] = []
    least, inherit = None, nested(answers)
    # best[cost]: the least lower bound of all parts up to this cost; None while nothing fits
    best: dict[float, int | None] = {}
    for part in parts(answers.cluster, each, levels):  # cheapest first
        low = lower_bound(part, found, inherit)
        low = at_once(answers, part) if low == 0 else low
        if low is not None:
            least = low if least is None else min(least, low)
        best[part.cost] = least
    for cost, bound in best.items():
        if not floors or floors[-1].bound != bound:
            floors.append(Floor(cost, bound))
    points = [
        point(part.cost, answer, best[part.cost] or 0, answer.plan, tuple(zip(kinds, part.counts, strict=True)))
        for part, answer in found.items()
        if answer.plan is not None
    ]
    return tuple(points), tuple(floors)


def lower_bound(part: Part, found: Found, inherit: bool) -> int | None:
    """Best lower bound known for a part, in nanoseconds; None if it is known that nothing fits.

    With ``inherit``, bounds of larger parts count too.
    """
    known = [answer for other, answer in found.items() if other == part or (inherit and other.holds(part))]
    if any(answer.verdict is Verdict.INFEASIBLE for answer in known):
        return None
    return max((answer.bound for answer in known), default=0)


def ask(answers: Answers, part: Part, *, any_plan: bool = False) -> Answer:
    """Answer for a part of the cluster: its best plan, or with ``any_plan`` the first one that fits."""
    absent = {kind for (kind, _), count in zip(kind_counts(answers.cluster), part.counts, strict=True) if not count}
    pinned = {where for _, where in answers.job.pin}
    if pinned & absent:
        return Answer(Verdict.INFEASIBLE, why=f"layers are pinned to {', '.join(sorted(pinned & absent))}")
    find, cluster, job = answers.any if any_plan else answers.best, sub_cluster(answers.cluster, part), answers.job
    own = _with_room(job, cluster)
    if own is None:
        return Answer(Verdict.INFEASIBLE, why=f"there is no room for teams of {listed(job.teams)}")
    return find(f"{part.counts}", cluster, own)


def at_once(answers: Answers, part: Part) -> int:
    """Lower bound in nanoseconds on the plans of a part that was not solved: all work shared evenly over its devices.

    Layers that are divided between neighbours have none, as they may take less on chip.
    """
    cluster = sub_cluster(answers.cluster, part)
    job = _with_room(answers.job, cluster)
    if job is None or job.intra_layer:
        return 0
    try:
        return Spaces(answers.model, cluster, job, opening=Clock(Limits())).least
    except InputError:  # which `ask` would say
        return 0


def _with_room(job: Job, cluster: Cluster) -> Job | None:
    """The job with those teams for which a part of a cluster has room; None if it has none."""
    if not job.teams:
        return job
    roomy = sizes_with_room(cluster, job)
    teams = tuple(team for team in job.teams if team == 1 or team in roomy)
    return replace(job, teams=teams, unlike_teams=job.unlike_teams and len(teams) > 1) if teams else None


def nested(answers: Answers) -> bool:
    """True if the plans of a part are among those searched for every part that contains it.

    That holds within one node, as long as all device groups are searched. Over several nodes the devices of a stage
    depend on the free devices of each node, and then every part is solved.
    """
    space = Spaces(answers.model, answers.cluster, answers.job).lowest
    return len(answers.cluster.nodes) == 1 and may_leave_out(answers.cluster, answers.job) and not space.large


def check_pins(answers: Answers) -> None:
    """Refuse layers that are pinned to single devices, as a part may lack these.

    Raises
    ------
    InputError
        Naming the devices.
    """
    named = [where for _, where in answers.job.pin if pinned_device(where) is not None]
    if named:
        raise InputError(
            f"the job pins layers to {', '.join(named)}, which may be left out; pin them to a kind instead"
        )


def _matters(part: Part, found: Found, inherit: bool) -> bool:
    """True if a part may have a plan that no plan of a cheaper or equally cheap part dominates."""
    low = lower_bound(part, found, inherit)
    if low is None:
        return False
    return not any(
        answer.plan is not None and other.cost <= part.cost and answer.value <= low for other, answer in found.items()
    )


def _bisection_order(count: int) -> Iterator[int]:
    """Order of bisection over 0 … count − 1: the last, the middle, the middles of the halves, and so on, each once."""
    if not count:
        return
    yield count - 1
    spans: Sequence[tuple[int, int]] = [(0, count - 1)]
    while spans:
        further = []
        for low, high in spans:
            if low < high:
                middle = (low + high) // 2
                yield middle
                further += [(low, middle), (middle + 1, high)]
        spans = further
