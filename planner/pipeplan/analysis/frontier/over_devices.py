"""Step time against the number or the price of devices: the best plan for every part of the cluster that can matter.

What a part can do, every larger part of the same node can do too. So a bound for a part holds for all that it holds;
where a part does not fit, no smaller one is asked for; and one whose bound does not beat a cheaper plan is left out.

::

    cost  1   2   3   4   5   6   7   8         asked: 8, 4, 2, 1, …; had 4 been as fast as the bound for 8,
          ●───●───────●───────────────●         5 to 7 would never have been asked for
"""

from collections.abc import Iterator, Mapping, Sequence

from pipeplan.analysis.explain.changes import pinned_device
from pipeplan.analysis.frontier.answers import Answer, Answers, Verdict
from pipeplan.analysis.frontier.curve import Floor, Point, point
from pipeplan.analysis.frontier.subsets import Part, kind_counts, parts, sub_cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import Order
from pipeplan.search.space.space import Space

Found = Mapping[Part, Answer]
"""What is known of the parts that were asked for."""


def prices(answers: Answers, by_price: bool) -> Mapping[str, float]:
    """What one device of each kind counts: its price, or 1.

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
    """The parts that can matter, each with its answer, in an order that spares as many others as possible."""
    check_pins(answers)
    every, inherit = parts(answers.cluster, each, levels), nested(answers)
    found: dict[Part, Answer] = {}
    for i in _halving(len(every)):
        part = every[i]
        if not _matters(part, found, inherit):
            continue
        found[part] = ask(answers, part)
        yield part, found[part]


def read(
    answers: Answers, found: Found, each: Mapping[str, float], levels: int | None
) -> tuple[tuple[Point, ...], tuple[Floor, ...]]:
    """All points and floors of what was found."""
    kinds = [kind for kind, _ in kind_counts(answers.cluster)]
    floors: list[Floor] = []
    least, inherit = None, nested(answers)
    best: dict[float, int | None] = {}
    for part in parts(answers.cluster, each, levels):  # cheapest first
        low = lower(part, found, inherit)
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


def lower(part: Part, found: Found, inherit: bool) -> int | None:
    """The best bound known for a part (from larger ones too, if it inherits); None if it is known that nothing fits."""
    known = [answer for other, answer in found.items() if other == part or (inherit and other.holds(part))]
    if any(answer.verdict is Verdict.INFEASIBLE for answer in known):
        return None
    return max((answer.bound for answer in known), default=0)


def ask(answers: Answers, part: Part, *, any_plan: bool = False) -> Answer:
    """The best plan on a part of the cluster, or any."""
    absent = {kind for (kind, _), count in zip(kind_counts(answers.cluster), part.counts, strict=True) if not count}
    pinned = {where for _, where in answers.job.pin}
    if pinned & absent:
        return Answer(Verdict.INFEASIBLE, why=f"layers are pinned to {', '.join(sorted(pinned & absent))}")
    find = answers.any if any_plan else answers.best
    return find(f"{part.counts}", sub_cluster(answers.cluster, part), answers.job)


def passes_over(answers: Answers) -> bool:
    """Whether a plan may leave out any devices; in a given order it uses the first ones, whatever their kinds."""
    return answers.job.order is Order.SEARCH or len(kind_counts(answers.cluster)) == 1


def nested(answers: Answers) -> bool:
    """Whether the plans of a part are among those searched for every part that holds it.

    They are in one node, as long as every shape of a pipeline is looked at. Over several nodes, where the devices of a
    stage lie depends on how full the nodes are, and then every part is asked for.
    """
    space = Space(answers.model, answers.cluster, answers.job)
    return len(answers.cluster.nodes) == 1 and passes_over(answers) and not space.large


def check_pins(answers: Answers) -> None:
    """A device that may be taken away is nothing to pin a layer to."""
    named = [where for _, where in answers.job.pin if pinned_device(where) is not None]
    if named:
        raise InputError(
            f"the job pins layers to {', '.join(named)}, which may be left out; pin them to a kind instead"
        )


def _matters(part: Part, found: Found, inherit: bool) -> bool:
    """Whether a part may have a plan that no plan of a cheaper or equally cheap part beats or equals."""
    low = lower(part, found, inherit)
    if low is None:
        return False
    return not any(
        answer.plan is not None and other.cost <= part.cost and answer.value <= low for other, answer in found.items()
    )


def _halving(count: int) -> Iterator[int]:
    """The last, then the middle, then the middles of the halves, and so on: each of 0 … count − 1 once."""
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
