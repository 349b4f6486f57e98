"""Several stages of a device: the question of plans whose layers pass the devices in rounds, and what is refused."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from math import ceil
from random import Random

from .costs import Costs, Groups
from .documents import Document, Question
from .placed import PLACED, SPLIT, orders
from .prices import Prices
from .schedules import SLICED, Action, Family
from .slices import in_parts, unparted
from .space import Layers, distinct, forbidden, placed_well
from .teams import Teams

USUAL = 12
"""The most stages of a device where nothing says how many."""

HALVED = ("zb-h1", "zb-h2", "zb-v", "dualpipe-v")
"""The families that split backwards although nothing says so."""
LONGER = Fraction(6, 5)
"""The most that both parts of all backwards may take of whole ones to be searched where nothing says so."""

Laid = tuple[int, bool, tuple[int, ...]]
"""Rounds, whether every second one passes the devices from the last to the first, and layers of rounds cut unlike."""


def rounds_of(document: Document) -> list[int]:
    """The numbers of stages of a device: those asked for, or one and those of families that are named."""
    named = [PLACED[name][0] or 2 for name in document["job"].get("schedules", ()) if name in PLACED]
    return list(dict.fromkeys(document["job"].get("chunks") or [1, *usual(document), *named]))


def usual(document: Document) -> list[int]:
    """The numbers that a job which names neither them nor schedules has beside one, where blocks of layers repeat."""
    job, first = document["job"], blocks(document)
    layers, devices = document["model"]["layers"], sum(len(node["devices"]) for node in document["cluster"]["nodes"])
    kinds = {layers[i].get("kind", "") for i in first[:-1]}
    if len(kinds) > 1 or kinds == {""} or job.get("schedules"):
        return []
    if (
        job.get("objective", "step") != "step"
        or job.get("intra_layer")
        or min(devices, max(job.get("depths") or [2])) < 2
    ):
        return []
    if job["batch"] >= 16 * devices:
        return []
    many = len(first) - 1
    return [count for count in range(2, min(many // 2, USUAL) + 1) if count < 5 or many % count == 0]


def halved(document: Document) -> bool:
    """Whether families that split backwards are searched although nothing says so."""
    if document["job"].get("chunks") or not usual(document):
        return False
    timed = {entry.get("timed_as", kind) for kind, entry in document["cluster"]["devices"].items()}
    for own in (profile["costs"].values() for profile in document["model"]["profiles"] if profile["device"] in timed):
        rows = [(cost["input_gradient"] + cost["weight_gradient"], cost["backward"]) for cost in own]
        if any(joined and not parts for parts, joined in rows):
            return False
        if sum(parts for parts, _ in rows) > LONGER * sum(joined for _, joined in rows):
            return False
    return True


def whole(document: Document) -> bool:
    """Whether devices may have one stage each, under a family that leaves stages where they are."""
    named = {*document["job"].get("schedules", ())}
    return 1 in rounds_of(document) and (not named or bool(named - {*PLACED, *SLICED}))


def every_laid(document: Document) -> list[tuple[Laid, list[str]]]:
    """The ways in which several stages may lie, each with the families that do so."""
    named = [name for name in document["job"].get("schedules", ()) if name in PLACED]
    named = named or ["interleaved", *(HALVED if halved(document) else ())]
    found = []
    for count in rounds_of(document):
        for turns in (False, True):
            own = [name for name in named if PLACED[name][1] is turns]
            own = [name for name in own if PLACED[name][0] == count or (PLACED[name][0] is None and count > 1)]
            found += [((count, turns, ()), own)] * bool(own)
            if own and document["job"].get("unlike_rounds"):
                every = _unlike(blocks(document), count, turns, _most_devices(document))
                found += [((count, turns, each), own) for each in every]
    return found


def _unlike(first: Sequence[int], count: int, turns: bool, most: int) -> list[tuple[int, ...]]:
    """How many layers rounds have that are cut unlike: as many, or in a loop what some devices share evenly."""
    layers = first[-1] - first[0]
    if count == 1:
        return []
    found = [tuple(len(range(j, layers, count)) for j in range(count))]
    for devices in range(2, min(most, layers // count) + 1) if not turns else ():
        shares = [len(range(j, ceil(layers / devices), count)) for j in range(count)]
        alike = count * ceil((first[(len(first) - 1) // count] - first[0]) / devices)
        rest = layers - devices * sum(shares[1:])
        if alike > sum(shares) and rest >= devices:
            found.append((rest, *(devices * share for share in shares[1:])))
    return [*dict.fromkeys(found)]


def cuts(document: Document) -> list[Document]:
    """The question of plans in which each device has one stage, and those of all ways in which several may lie."""
    job = document["job"]
    plain = [name for name in job.get("schedules", ()) if name not in PLACED]
    found = [document | {"job": job | {"chunks": [], "schedules": plain}}] if whole(document) else []
    for laid, names in every_laid(document):
        if _impossible(document, laid) is None:
            levels = [level for level in job.get("zero", ()) if level < 2]
            own = {"chunks": [], "schedules": names, "equal_replicas": True, "unlike_teams": False, "zero": levels}
            depths = [depth // laid[0] for depth in job.get("depths", ()) if depth % laid[0] == 0 and depth > laid[0]]
            found.append(document | {"job": job | own | {"depths": depths, "laid": laid}})
    return found


def refusal(document: Document) -> str | None:
    """Why several stages of a device are refused; None where there are none, or they are possible."""
    job = document["job"]
    named = {*job.get("schedules", ())}
    several = max(job.get("chunks") or [1]) > 1
    if "chimera" in named:
        return "a family with two copies of all weights"
    if job.get("intra_layer") and (several or named & {*PLACED}):
        return "several stages of divided layers"
    objective = job.get("objective", "step")
    if job.get("unlike_rounds"):
        kinds = {group["kind"] for node in document["cluster"]["nodes"] for group in node["devices"]}
        copies = document["cluster"].get("overlap", True) is True
        if objective != "step" or len(kinds) > 1 or not copies or max(rounds_of(document)) == 1:
            return "rounds cut unlike where they are not searched"
    if (several or named & {*PLACED}) and objective == "bottleneck":
        return "several stages in an endless pipeline"
    if job.get("staleness") and (several or named & {*PLACED}):
        return "several stages with one step of delay"
    if named & {*SPLIT} and objective != "step":
        return "split backwards in anything but a step"
    if several and named and not named & {*PLACED}:
        return "several stages under families of one stage each"
    if named & {*SPLIT} and unparted(document):
        return "backwards in parts whose times are not known"
    ways = every_laid(document)
    if whole(document) or _in_slices_only(document):
        return None
    reasons = [_impossible(document, laid) for laid, _ in ways]
    if None in reasons:
        return None
    return next((reason for reason in reasons if reason), "stages of which no family lays so many on a device")


def _in_slices_only(document: Document) -> bool:
    """Whether plans in token slices are asked for, beside which others may be impossible."""
    counts, named = document["job"].get("slices") or [1], {*document["job"].get("schedules", ())}
    return max(counts) > 1 and 1 in rounds_of(document) and (not named or bool(named & {*SLICED}))


def _impossible(document: Document, laid: Laid) -> str | None:
    """Why no plan lies so, whatever its costs."""
    job, count = document["job"], laid[0]
    if job.get("zero") and min(job["zero"]) > 1:
        return "several stages at levels of ZeRO that share out gradients"
    if min(job.get("slices") or [1]) > 1:
        return "several stages in token slices"
    first = blocks(document)
    if (len(first) - 1) // count * (first[1] - first[0]) < 2:
        return "more stages than layers"
    if _most_devices(document) < 2:
        return "several stages on one device"
    asked = job.get("depths", ())
    if asked and not any(depth % count == 0 and depth > count for depth in asked):
        return "numbers of stages that are no multiples on two devices or more"
    return None


def _most_devices(document: Document) -> int:
    """Devices, or teams of a size that is asked for."""
    found = []
    for size in document["job"].get("teams") or [1]:
        teams = Teams(document, size).homes.values() if size > 1 else ()
        alone = sum(len(node["devices"]) for node in document["cluster"]["nodes"])
        found.append(sum(map(len, teams)) if size > 1 else alone)
    return max(found)


def blocks(document: Document) -> list[int]:
    """The first layer of each block of like layers, and the one behind: kinds that repeat over most of the layers.

    The shortest row that repeats more often than it is long, over more than a half of the layers; else single layers.
    """
    kinds = [layer.get("kind", "") for layer in document["model"]["layers"]]
    n = len(kinds)
    for size in range(1, n):
        best = (0, 0)
        for start in range(n):
            end = start
            while end + size < n and kinds[end] and kinds[end] == kinds[end + size]:
                end += 1
            times = (end - start) // size + 1
            if end > start and times > best[0]:
                best = times, start
        times, start = best
        if times > size and 2 * times * size > n:
            return [start + k * size for k in range(times + 1)]
    return list(range(n + 1))


def runs(question: Question) -> list[list[range]]:
    """For each round the run of each super layer, in the order of the first round."""
    count, turns, _ = question.laid
    first = blocks(question.document)
    if question.laid[2]:
        return _runs_in_turn(question, first)
    many, over = divmod(len(first) - 1, count)
    found = []
    for j in range(count):
        begin = over // 2 + j * many
        edges = [*range(first[begin], first[begin + many] + 1)]
        edges[0] = edges[0] if j else 0
        edges[-1] = edges[-1] if j < count - 1 else question.n
        own = [range(a, b) for a, b in pairwise(edges)]
        found.append(own[::-1] if turns and j % 2 else own)
    return found


def _runs_in_turn(question: Question, first: Sequence[int]) -> list[list[range]]:
    """The same of rounds that are cut unlike: one layer of one round in each super layer, in proportion to all.

    Layers in front of the blocks and behind them are beside the outermost ones.
    """
    count, turns, lengths = question.laid
    own: list[list[int]] = []
    begin = first[0]
    for j, many in enumerate(lengths):
        row = [*range(begin, begin + many)]
        own.append(row[::-1] if turns and j % 2 else row)
        begin += many
    order = sorted((Fraction(2 * i + 1, many), j, i) for j, many in enumerate(lengths) for i in range(many))
    found = [[range(own[j][i], own[j][i] + 1) if j == k else range(0) for _, j, i in order] for k in range(count)]
    found[0][0] = range(found[0][0].stop)
    last = found[-1]
    if first[-1] < question.n:
        place = 0 if turns and count % 2 == 0 else len(last) - 1
        last[place] = range(last[place].start if last[place] else first[-1], question.n)
    return found


def plans(question: Question, devices: Groups) -> Iterator[tuple[Groups, Layers]]:
    """The devices and the layers of all stages, for each cut of the super layers that is allowed."""
    rows, p = runs(question), len(devices)
    count, turns, lengths = question.laid
    if lengths and lengths not in _unlike(blocks(question.document), count, turns, len(question.devices)):
        return  # so many layers suit more devices than there are
    many = min(map(len, rows))
    assert all(len(row) == many for row in rows), "rounds of unlike numbers of runs"
    for ends in combinations(range(1, many), p - 1):
        edges = (0, *ends, many)
        groups, layers = [], []
        for j, row in enumerate(rows):
            turned = question.laid[1] and j % 2 == 1
            for d in reversed(range(p)) if turned else range(p):
                groups.append(devices[d])
                layers.append(tuple(sorted(i for run in row[edges[d] : edges[d + 1]] for i in run)))
        if not all(layers):
            continue  # rounds that are cut unlike have nothing on some device
        last = {own[-1] for own in layers[:-1]}
        if not last & forbidden(question) and placed_well(question, tuple(groups), tuple(layers)):
            yield tuple(groups), tuple(layers)


def write(name: str, groups: Groups, count: int, tied: Sequence[set[int]] = ()) -> list[list[Action]]:
    """One list for each replica of each device; the sums of stages that meet in one come in an order all agree on."""
    devices, r = distinct(groups), len(groups[0])
    lists: list[list[Action]] = []
    for d, device in enumerate(devices):
        own = [s for s, group in enumerate(groups) if group == device]
        first = {s: min([s, *(min(group) for group in tied if s in group)]) for s in own}
        summed = [s for s in own if r > 1 or any(s in group for group in tied)]
        for j in range(r):
            row = orders(name, len(devices), len(range(j, count, r)), len(groups) // len(devices))[d]
            order: list[Action] = [(kind, s, m * r + j) for kind, s, m in row]
            order += [("R", s, 0) for s in sorted(summed, key=lambda s: (first[s], s))]
            lists.append([*order, *(("U", s, 0) for s in own)])
    return lists


def families(question: Question, groups: Groups, count: int) -> list[Family]:
    """Every family, with the most that a replica of each stage holds."""
    found = []
    for name in question.job["schedules"]:
        lists = write(name, groups, count)
        found.append(Family(name, tuple(max(_most_held(order, {s}) for order in lists) for s in range(len(groups)))))
    return found


def _most_held(order: Sequence[Action], stages: set[int]) -> int:
    held = most = 0
    for kind, s, _ in order:
        held += (kind == "F") * (s in stages)
        most = max(most, held)
        held -= (kind in "BW") * (s in stages)
    return most


def recomputed(
    question: Question, prices: Prices, size: int, groups: Groups, layers: Layers, name: str
) -> tuple[tuple[int, ...], ...] | None:
    """The layers that each stage computes again, chosen by super layers for all stages of a device; None if none do."""
    mode, rows, again = question.job["recompute"], runs(question), [()] * len(groups)
    lists, devices = write(name, groups, question.batch // size), distinct(groups)
    for d, device in enumerate(devices):
        own = [s for s, group in enumerate(groups) if group == device]
        kind = device[0].kind
        table, limit = prices.table(kind, size), question.limit(kind)
        supers = [i for i in range(len(rows[0])) if any(k in layers[s] for s in own for row in rows for k in row[i])]
        most = max(_most_held(order, set(own)) for order in lists[d * len(device) : (d + 1) * len(device)])
        fixed = question.runtime(kind) + sum(prices.resident(groups, layers, s) for s in own)
        received = min(prices.received(groups, size, layers, s) for s in own)

        def least(i: int, figure: str, table: Sequence[Costs] = table) -> int:
            every = [[getattr(table[k], figure) for k in row[i]] for row in rows]
            if figure == "workspace":
                return min(max(each) for each in every if each)
            return sum(map(sum, every)) // len(every) if question.laid[2] else min(map(sum, every))

        best: tuple[int, tuple[int, ...]] | None = None
        subsets = [each for many in range(len(supers) + 1) for each in combinations(supers, many)]
        for chosen in {"none": [()], "full": [tuple(supers)]}.get(mode, subsets):
            held = received + sum(least(i, "output" if i in chosen else "saved") for i in supers)
            work = max(least(i, "workspace") + (least(i, "saved") if i in chosen else 0) for i in supers)
            if limit is None or fixed + most * held + work <= limit:
                cost = sum(table[k].forward for i in chosen for row in rows for k in row[i])
                if best is None or cost < best[0]:
                    best = cost, chosen
        if best is None:
            return None
        for s in own:
            again[s] = tuple(k for k in layers[s] if any(k in row[i] for i in best[1] for row in rows))
    found = tuple(again)
    if any(len({groups[s] for s in group}) < len(group) for group in prices.tied(groups, layers)):
        return None  # stages of a device in one sum, which it cannot run
    stages = [prices.stage(groups, size, layers, s, found[s], 0) for s in range(len(groups))]
    fits = all(
        stages[s].limit is None or need(order, stages) <= stages[s].limit for order in lists for s in [order[0][1]]
    )
    return found if fits else None


def need(order: Sequence[Action], stages: Sequence["Stage"]) -> int:  # type: ignore[name-defined]  # noqa: F821
    """The most bytes that a replica needs which runs a list, one action after the other."""
    own = sorted({s for _, s, _ in order})
    held = most = stages[own[0]].runtime + sum(stages[s].resident for s in own)
    for kind, s, _ in order:
        held += stages[s].held * (kind == "F")
        most = max(most, held + stages[s].workspace)
        held -= stages[s].held * (kind in "BW")
    return most


def in_rounds(random: Random, document: Document) -> None:
    """Make a question one about several stages of a device: more layers, mostly two devices or more."""
    model, job, nodes = document["model"], document["job"], document["cluster"]["nodes"]
    ends = any(graph.get("loss") for graph in model.get("operators", {}).values())  # a loss is of the last layer
    while not ends and len(model["layers"]) < random.choice((4, 5, 6, 7, 8)):
        _lengthen(random, model)
    if sum(len(node["devices"]) for node in nodes) < 2 and random.random() < 0.9:
        nodes[0]["devices"] = [dict(nodes[0]["devices"][0]) for _ in range(random.choice((2, 2, 3)))]
    if random.random() < 0.3:
        _name_kinds(random, model)
    if random.random() < 0.4:
        job.pop("memory", None)
        for entry in document["cluster"]["devices"].values():
            entry.pop("memory", None)
    names = [*PLACED]
    job["chunks"] = random.choice(([2], [2], [1, 2], [3], [1, 3], [2, 3], [1], [4]))
    kept = [name for name in job.get("schedules", ()) if name != "any"]
    job["schedules"] = random.choice(
        ([], [], random.sample(names, 2), random.sample(names, 1), ["interleaved"], [*names])
    )
    if random.random() < 0.3:
        job["schedules"] = [*job["schedules"], *kept]
    if random.random() < 0.4:
        job.pop("chunks")
        job["schedules"] = job["schedules"] or [random.choice(names)]
    if random.random() < 0.95:
        job.pop("intra_layer", None)
        job.pop("staleness", None)
        if job.get("objective", "step") == "bottleneck" or {*job["schedules"]} & {*SPLIT}:
            job.pop("objective", None)
        if job.get("zero") and min(job["zero"]) > 1:
            job["zero"] = [random.choice((0, 1)), *job["zero"]]
        if random.random() < 0.8:
            job["slices"] = []
    if job.get("depths") and random.random() < 0.9:
        job["depths"] = sorted({*job["depths"], random.choice((2, 3, 4, 4, 6, 6, 8))})
    if random.random() < 0.02:
        job["schedules"] = [*job["schedules"], "chimera"]
    if random.random() < 0.15:
        as_usual(random, document)
    for name in ("schedules", "slices"):
        if not job.get(name):
            job.pop(name, None)
    if {*job.get("schedules", ())} & {*SPLIT} and random.random() < 0.95:
        in_parts(random, document)


def cut_unlike(random: Random, document: Document) -> None:
    """Let rounds be cut unlike, mostly where that is searched."""
    job, cluster = document["job"], document["cluster"]
    job["unlike_rounds"] = True
    if random.random() < 0.95:
        job.pop("objective", None)
        job.pop("pin", None)
        if max(rounds_of(document)) == 1:
            job["chunks"] = [random.choice((2, 2, 3))]
        size, node = min(job.get("teams") or [1]), cluster["nodes"][0]["devices"]
        if size > 1 and len(node) < 2 * size <= 4:
            node += [dict(node[0]) for _ in range(2 * size - len(node))]
        kind = node[0]["kind"]
        cluster["overlap"] = True
        for group in (group for node in cluster["nodes"] for group in node["devices"]):
            group["kind"] = kind


def as_usual(random: Random, document: Document) -> None:
    """Say nothing about stages of a device, or schedules; mostly backwards in parts take about what they take whole."""
    for name in ("chunks", "schedules"):
        document["job"].pop(name, None)
    _name_kinds(random, document["model"])
    longer = random.choice((Fraction(4, 5), 1, 1, Fraction(6, 5), Fraction(5, 4), None))
    for costs in (profile["costs"].values() for profile in document["model"]["profiles"]):
        for cost in costs if longer is not None else ():
            cost["backward"] = round((cost["input_gradient"] + cost["weight_gradient"]) / longer)


def _lengthen(random: Random, model: Document) -> None:
    """One more layer at the end, like another one."""
    layers, tied = model["layers"], {name for tie in model.get("ties", ()) for name in tie["layers"][1:]}
    own = random.choice([layer for layer in layers if layer["name"] not in tied])
    name = f"l{len(layers)}"
    sources = [layers[-1]["name"]] if random.random() < 0.8 else sorted({layers[-1]["name"], own["name"]})
    layers.append({**own, "name": name, "inputs": sources})
    for profile in model["profiles"]:
        profile["costs"][name] = dict(profile["costs"][own["name"]])
    for profile in model.get("slice_profiles", ()):
        for end in ("first", "last"):
            profile[end][name] = dict(profile[end][own["name"]])


def _name_kinds(random: Random, model: Document) -> None:
    """Kinds of layers: blocks of one or two layers, with others in front and behind."""
    layers = model["layers"]
    row = random.choice((("b",), ("b",), ("a", "m")))
    front, back = random.choice((0, 1, 1)), random.choice((0, 1, 1, 2))
    for i, layer in enumerate(layers):
        inside = front <= i < len(layers) - back
        layer["kind"] = row[(i - front) % len(row)] if inside else f"end {i}" if random.random() < 0.7 else ""
