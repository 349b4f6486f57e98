"""Verdict on an answer: all that it states is computed anew and compared with the best plan of the space."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from . import best, costs, orders, rounds, slices, space
from .best import Plan
from .costs import ContradictionError
from .documents import Document, Question
from .mixes import JUDGED, Mix, Splits, mixable, mixed, mixes, on, with_kinds
from .placed import PLACED
from .prices import Prices
from .recounts import DOWNSETS, recount, recount_divided
from .teams import Teams
from .usual import with_usual_teams
from .ways import Ways

PLACEMENTS = "other placements of like devices on the nodes"
"""How an answer says that it left out some choices of like devices."""


@dataclass(frozen=True)
class Asked:
    """A question at one level of ZeRO, and how teams of each size in it run layers.

    ``beside``: a mix that need not be searched, since it is another one with equal nodes exchanged.
    """

    question: Question
    level: int
    splits: dict[int, tuple[Ways, Document]] = field(default_factory=dict)
    beside: bool = False

    def fits(self, answer: Document) -> bool:
        """Whether an answer's plan is one of this question. Teams of a mix that split nothing run as single devices."""
        question, expected, meshes = self.question, dict[str, Document](), []
        if answer["kinds"] != [device.kind for device in question.devices] or answer["zero"] != self.level:
            return False
        if _laid(answer) != (question.laid[:2] if question.in_rounds else None):
            return False
        if question.in_rounds and question.job["unlike_rounds"] and not _holds(question, answer):
            return False
        if len(answer["slices"]) not in ((0,) if question.slices == 1 else (question.slices,)):
            return False
        for stage, team in zip(answer["stages"], answer["teams"], strict=True):
            kind = question.devices[stage["devices"][0]].kind
            size, strategies = question.team(kind), dict[str, Document]()
            if size in self.splits:
                _, split = self.splits[size]
                member = question.kinds[kind].get("members", kind)
                own = split["strategies"].get((member, answer["micro_batch"]))
                strategies = {name: own[question.place[name]] for name in stage["layers"]} if own else {}
            alone = self.mixed and not any(split["passes"]) if size in self.splits else True
            every = [each for own in strategies.values() if own for each in own["operators"].values()]
            alone = alone and not any(any(each["loops"]) for each in every)
            if team != (1 if alone else size):
                return False
            expected |= {} if alone else strategies
            meshes.append(() if alone else tuple(split["sizes"]))
        homes = {question.place[name]: stage["devices"][0] for stage in answer["stages"] for name in stage["layers"]}
        lie = all(question.lies(question.devices[homes[question.place[n]]], where) for n, where in question.job["pin"])
        alike = [tuple(mesh) for mesh in answer["meshes"]] == meshes and answer["strategies"] == expected
        return alike and (lie or not self.mixed)

    @property
    def mixed(self) -> bool:
        """Whether teams differ in size."""
        return len({self.question.team(device.kind) for device in self.question.devices}) > 1


@dataclass
class Verdict:
    """Disagreements in words, and the least value of the space as far as it is known (nanoseconds)."""

    faults: list[str] = field(default_factory=list)
    optimum: int | None = None
    plan: Plan | None = None


def judge(document: Document, answer: Document, exact: bool = True) -> Verdict:
    """Hold an answer against the question's documents.

    Without ``exact`` a search that has nothing left to look at need not have found the best plan, if it says so.
    """
    verdict, document = Verdict(), with_usual_teams(document)
    if answer["outcome"] == "crashed":
        verdict.faults.append(f"it crashed: {answer['text']}")
        return verdict
    late = _is_late(document, answer)  # it may be proved all the same: splits that are not known have a bound too
    reason = slices.refusal(document) or rounds.refusal(document) or _contradictory_wishes(document)
    counts = slices.counts(document) if reason is None else ()
    cuts = [cut for count in counts for cut in _Cut.every(document, answer, count)]
    reason = next((why for each in cuts if (why := each.refusal(late)) is not None), reason)
    if reason is not None and late and answer["outcome"] == "stopped":
        return verdict  # before it opened the teams that it would have refused
    if reason is not None or answer["outcome"] == "refused":
        if (reason is None) != (answer["outcome"] != "refused"):
            verdict.faults.append(f"contradiction: {reason}; the answer: {answer.get('text', answer['outcome'])}")
        return verdict
    for cut in cuts if not late else ():
        for own in [own for own in cut.teams if _lost(own.teams) is None]:
            verdict.faults += [f"teams of {own.team}: {fault}" for fault in own.unsearched(_ways(cut.answer, own.team))]
    if verdict.faults:
        return verdict
    if late and answer["outcome"] == "stopped":
        return verdict
    every_mix = [mix for cut in cuts for mix in cut.every_mix]
    questions = [each for cut in cuts for each in _questions(cut.document, cut.answer, cut.teams, cut.every_mix)]
    fitting = [each for each in questions if "stages" not in answer or each.fits(answer)]
    if not fitting:
        what = {name: answer[name] for name in ("kinds", "teams", "meshes", "strategies", "zero")}
        verdict.faults.append(f"teams, strategies and level of ZeRO are outside what was asked: {what}")
        return verdict
    question = fitting[0].question
    for each in questions:
        each.question.anywhere = PLACEMENTS not in answer.get("not_searched", ())
    if answer["outcome"] == "stopped":
        if document["solve"]["time_limit"] > 1:
            verdict.faults.append("it was stopped by the clock, although there was time")
        return verdict
    if answer["outcome"] == "undecided":  # shares of layers are searched as real numbers, then rounded to channels
        if not question.job["intra_layer"]:
            verdict.faults.append(f"it gave up although nothing is rounded: {answer['text']}")
        return verdict
    prices = Prices(question)
    downsets = DOWNSETS in answer.get("partitions", "")
    every = [each.question for each in questions if not each.beside]
    found = [best.optimum(each, Prices(each), downsets) for each in every]
    found = [each for each in found if each is not None]
    if found:
        verdict.optimum, verdict.plan = min(found, key=lambda pair: pair[0])
    if answer["outcome"] == "infeasible":
        _refute(verdict, every, answer)
        return verdict
    some = fitting[0].beside or not (question.anywhere or not space.pinned(question)) or len(every_mix) > JUDGED
    _bracket(verdict, question, answer, exact, some)
    for each in every if "any" in question.job["schedules"] and "teams" in answer else ():
        if each.in_rounds or each.level != question.level or not orders.tiny(each):
            continue
        least = orders.optimum(each, Prices(each))
        if least is not None and answer["bound"] > least:
            verdict.faults.append(f"bound {answer['bound']} above {least}, which some order takes")
        if least is not None and answer["status"] == "optimal" and answer["value"] > least:
            verdict.faults.append(f"value {answer['value']}, optimal, above {least}, which some order takes")
    counted = recount_divided if any(stage["shares"] for stage in answer["stages"]) else recount
    verdict.faults += counted(question, prices, answer)
    return verdict


@dataclass
class _Cut:
    """The question of one number of slices, and the teams of it."""

    document: Document
    answer: Document
    teams: list[Ways]

    @classmethod
    def every(cls, document: Document, answer: Document, count: int) -> "Iterator[_Cut]":
        """The question, or those of several stages of a device too, with the ways that were searched for it."""
        whole = slices.cut(document, count)
        ways = [way for way in answer.get("ways", ()) if way["slices"] == count]
        for own in rounds.cuts(whole) if count == 1 else [whole]:
            yield cls(own, answer | {"ways": ways}, [Ways(each) for each in _teams(own)])

    def refusal(self, late: bool) -> str | None:
        """Why it has no answer."""
        return _refusal(self.document, self.answer, late, self.teams)

    @cached_property
    def every_mix(self) -> list[Mix]:
        """All mixes of teams of unlike sizes."""
        return _every_mix(self.document, self.answer, self.teams)


def _holds(question: Question, answer: Document) -> bool:
    """Whether the rounds of a question can be cut as those of an answer are."""
    groups = tuple(tuple(question.devices[d] for d in stage["devices"]) for stage in answer["stages"])
    layers = tuple(tuple(sorted(question.place[name] for name in stage["layers"])) for stage in answer["stages"])
    return (groups, layers) in set(rounds.plans(question, space.distinct(groups)))


def _laid(answer: Document) -> tuple[int, bool] | None:
    """How stages lie under a family that places them; None under others."""
    if answer["family"] not in PLACED:
        return None
    places = [tuple(stage["devices"]) for stage in answer["stages"]]
    return len(places) // len(set(places)), PLACED[answer["family"]][1]


def _is_late(document: Document, answer: Document) -> bool:
    """Whether time was over before all splits were known, which only a short limit excuses."""
    late = answer["outcome"] == "stopped" or answer.get("late", False)
    return late and max(document["job"].get("teams", (1,))) > 1 and document["solve"]["time_limit"] <= 1


def _questions(document: Document, answer: Document, teams: Sequence[Ways], every_mix: Sequence[Mix]) -> list[Asked]:
    """The question at each level of ZeRO, on devices, on teams of each size with each split, and on each mix."""
    found: list[Asked] = []
    if not teams or 1 in document["job"]["teams"]:
        found += [Asked(each, level) for level, each in _levels(document).items()]
    for own in teams:
        for split in _ways(answer, own.team) if _lost(own.teams) is None else ():
            levels = _levels(own.document(split)).items()
            found += [Asked(each, level, {own.team: (own, split)}) for level, each in levels]
    for beside, splits, each in _mixed(document, answer, teams, every_mix):
        levels = [(level, own) for level, own in _levels(each).items() if level < 2]
        found += [Asked(own, level, splits, beside) for level, own in levels if not _homeless(own)]
    return found


def _every_split(answer: Document, teams: Sequence[Ways]) -> Splits:
    """The ways of teams along one axis in a node without samples and gathered weights, by the size of teams."""
    found: dict[int, list[tuple[Ways, Document]]] = {}
    for own in teams:
        inside = all(len(row) == 1 for rows in own.teams.homes.values() for row in rows)
        ways = [split for split in _ways(answer, own.team) if split["mixed"]] if inside else []
        if ways:
            found[own.team] = [(own, split) for split in ways]
    return found


def _ways(answer: Document, team: int) -> list[Document]:
    """The ways of teams of one size that were searched."""
    return [split for split in answer["ways"] if split["team"] == team]


def _every_mix(document: Document, answer: Document, teams: Sequence[Ways]) -> list[Mix]:
    question = Question(document, 0)
    asked = mixable(question) and not _is_late(document, answer)
    return mixes(question, _every_split(answer, teams)) if asked else []


def _mixed(
    document: Document, answer: Document, teams: Sequence[Ways], known: Sequence[Mix]
) -> Iterator[tuple[bool, dict[int, tuple[Ways, Document]], Document]]:
    """Mixes, each with what its teams split: all if they are few, otherwise some. First, those of an answer's teams;
    of these, True says that they are none of the others."""
    question, every = Question(document, 0), _every_split(answer, teams)
    if not known:
        return
    own = [mix for nodes in with_kinds(question, answer.get("kinds", ()), every) for mix in on(question, nodes, every)]
    own = [mix for mix in own if len({team for node in mix.nodes for _, team in node}) > 1]
    judged = known[:: -(-len(known) // JUDGED) or 1]
    for mix in (*own, *(mix for mix in judged if mix not in own)):
        splits = {team: every[team][number] for team, number in mix.splits}
        some = next(iter(every.values()))[0][0].teams
        yield mix not in judged, splits, mixed(document, mix.nodes, mix.tied, splits, some)


def _homeless(question: Question) -> bool:
    """Whether a mix has no place for a layer that is pinned to one, or contradictory ones for one stage."""
    pins = question.job["pin"]
    lost = any(not any(question.lies(device, where) for device in question.devices) for _, where in pins)
    return lost or space.pins_clash(question)


def _levels(document: Document) -> dict[int, Question]:
    """The question at each level of ZeRO that its job names; else at all that share out something and suit the job."""
    job = Question(document, 0).job
    if job["zero"]:
        return {level: Question(document, level) for level in sorted(set(job["zero"]))}
    found = {0: Question(document, 0)}
    if job["objective"] != "bottleneck":
        found[1] = Question(document, 1)
    for level in (2, 3) if "laid" not in document["job"] else ():
        whole = Question(document | {"job": {**document["job"], "intra_layer": False}}, level)  # none is divided
        if contradiction(whole) is None:
            found[level] = whole
    return found


def _teams(document: Document) -> list[Teams]:
    """Teams of each size; sizes without room are left out if others have some, or plans without teams are asked for.

    Those of which there are none where layers are pinned are beside teams of other sizes at most.
    """
    asked = document["job"].get("teams", ())
    sizes = [team for team in dict.fromkeys(asked) if team > 1]
    fitting = [team for team in sizes if Teams(document, team).homes]
    alone = [team for team in fitting if _lost(Teams(document, team)) is None]
    if not (document["job"].get("unlike_teams") and (alone or 1 in asked)):
        fitting = alone
    return [Teams(document, team) for team in fitting or ([] if 1 in asked else sizes[:1])]


def _lost(teams: Teams) -> str | None:
    """A kind that a layer is pinned to and of which there are no teams."""
    question = teams.question
    return next(
        (where for _, where in question.job["pin"] if where in question.kinds and where not in teams.homes), None
    )


def _contradictory_wishes(document: Document) -> str | None:
    """Why wishes about teams and placement contradict each other."""
    asked = Question(document, 0).job
    if asked["unlike_teams"] and len(set(asked["teams"])) < 2:
        return "unlike teams of one size"
    if asked["regular"] and (asked["objective"] == "bottleneck" or asked["intra_layer"] or asked["unlike_teams"]):
        return "regular plans of anything but steps, whole layers and equal teams"
    shared = asked["intra_layer"] or max(asked["slices"], default=1) > 1 or max(asked["zero"], default=0) > 1
    if asked["staleness"] and (asked["objective"] != "period" or shared):
        return "one step of delay in anything but a long run of whole layers, weights and sequences"
    return None


def _refusal(document: Document, answer: Document, late: bool, teams: Sequence[Ways]) -> str | None:
    """Why a question has no answer: on devices, on teams, or because nothing can be split over these."""
    asked = Question(document, 0).job
    alone = [own for own in teams if _lost(own.teams) is None]
    reasons = [without_teams(own.teams) for own in teams]
    if teams and not alone and 1 not in asked["teams"]:
        reasons.append(f"a layer on teams of {_lost(teams[0].teams)!r}, of which there are none")
    if not teams or 1 in document["job"]["teams"]:
        reasons += map(contradiction, _levels(document).values())
    found = next((reason for reason in reasons if reason is not None), None)
    if found is not None:
        return found
    possible = (
        late
        or not teams
        or 1 in asked["teams"]
        or any(_ways(answer, own.team) or list(own.unsearched(())) for own in alone)
    )
    if not possible:
        return "nothing can be split"
    stated = [own.document(split) for own in alone for split in _ways(answer, own.team)]
    reasons = [contradiction(each) for own in stated for each in _levels(own).values()]
    return next((reason for reason in reasons if reason), None)


def without_teams(teams: Teams) -> str | None:
    """Why there are no teams for a question, whatever the shards."""
    question = teams.question
    job, kinds = question.job, question.kinds
    if not teams.graphs:
        return "teams of unknown operators"
    if job["objective"] == "bottleneck":
        return "teams of an endless pipeline"
    if job["intra_layer"]:
        return "teams and divided layers"
    if any(where not in kinds for _, where in job["pin"]):
        return "teams and a layer on one device"
    if not teams.links:
        return f"no teams of {teams.team}"
    try:
        teams.sizes  # noqa: B018
    except ContradictionError as reason:
        return str(reason)
    return None


def contradiction(question: Question) -> str | None:
    """Why a question has no answer, whatever the plan."""
    job, schedules = question.asked, question.asked["schedules"]
    if job["staleness"] and (question.level > 1 or any(not name.startswith("1f1b") for name in schedules)):
        return "one step of delay of shared weights, or with schedules that end with a batch"
    if question.level > 1:
        if question.slices > 1:
            return "sharded gradients of slices"
        if job["objective"] == "bottleneck" or job["intra_layer"]:
            return "sharded gradients in anything but steps of whole layers"
        if "any" in schedules and job["zero"] and min(job["zero"]) > 1:
            return "any order, and sharded gradients only"
        if question.sharing and job["depths"] and 1 not in job["depths"]:
            return "sharded weights that layers on several stages share"
        if not space.family_names(question):
            return "sharded gradients on two lanes"
    try:
        costs.sizes(question)
    except ContradictionError as reason:
        return str(reason)
    named = {where for _, where in job["pin"]}
    if not named <= {*(device.kind for device in question.devices), *(f"d{n}" for n in range(len(question.devices)))}:
        return "pins to devices that there are none of"
    if space.pins_clash(question):
        return "pins that contradict each other"
    if "any" in schedules and job["objective"] != "step":
        return "orders of a step are searched for the step only"
    if job["intra_layer"] and job["objective"] == "period":
        return "divided layers have no period"
    if "fbp-as" in schedules and question.overlap == "none":
        return "two lanes on devices that wait while they send"
    if job["intra_layer"] and question.overlap != "stream":
        return "only streaming devices divide layers"
    if job["intra_layer"] and "any" in schedules:
        return "divided layers run in the families' orders only"
    return None


def _refute(verdict: Verdict, questions: Iterable[Question], answer: Document) -> None:
    if verdict.optimum is not None:
        verdict.faults.append(f"no plan fits, it says, but {verdict.plan} takes {verdict.optimum}: {answer['text']}")
    elif any("any" in each.job["schedules"] and best.fits_in_some_order(each, Prices(each)) for each in questions):
        verdict.faults.append(f"no plan fits, it says, but some order does: {answer['text']}")


def _bracket(verdict: Verdict, question: Question, answer: Document, exact: bool, some: bool) -> None:
    """Bound, value and the best plan of the space, or of a part of it that need not have the answer's (``some``)."""
    value, bound, stop = answer["value"], answer["bound"], answer["stop"]
    gap, job = question.document["solve"]["gap"], question.job
    wider = some or job["intra_layer"] or "any" in job["schedules"] or not _searched(question, answer)
    say = verdict.faults.append
    if bound > value:
        say(f"bound {bound} above value {value}")
    if (answer["status"] == "optimal") != (bound == value):
        say(f"status {answer['status']} with bound {bound} and value {value}")
    if stop == "gap" and value - bound > gap * value:
        say(f"stopped at the gap {gap}, but value {value} and bound {bound} are further apart")
    if stop == "error":
        say("a solver contradicted itself")
    if verdict.optimum is None:
        if not wider:
            say(f"a plan with {value}, but none fits")
        return
    if bound > verdict.optimum:
        say(f"bound {bound} above the optimum {verdict.optimum} ({verdict.plan})")
    if value < verdict.optimum and not wider:
        say(f"value {value} below the optimum {verdict.optimum} ({verdict.plan})")
    searched = stop == "optimality" or (exact and stop == "exhausted")
    if searched and value - verdict.optimum > gap * value:
        say(f"value {value} above the optimum {verdict.optimum} ({verdict.plan}); {answer['status']}, {stop}")


def _searched(question: Question, answer: Document) -> bool:
    """Whether the plan's placement is one that is searched; heuristics may know a better one."""
    groups = tuple(tuple(question.devices[d] for d in stage["devices"]) for stage in answer["stages"])
    every = space.shapes(question, answer["micro_batches"])
    if space.anywhere(question):
        return space.likeness(question, groups) in {space.likeness(question, each) for each in every}
    return groups in set(every)
