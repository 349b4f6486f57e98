"""The space that a question asks about: devices for every stage, layers for every stage, families, sizes.

::

    order: search     a row of (class, replicas); like devices are packed, or equal replicas lie in tiles of nodes
    any like devices  the same, on any devices of the classes; those that differ in nothing that matters once
    order: given      stages take the listed devices one after the other, none left out
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, groupby

from .costs import Group, Groups
from .documents import Device, Question
from .schedules import names

Layers = tuple[tuple[int, ...], ...]
"""For each stage its layers, in the model's order."""


def distinct(groups: Groups) -> Groups:
    """The devices of all stages, of stages on the same ones once."""
    return tuple(dict.fromkeys(groups))


def homes(groups: Groups) -> list[range]:
    """For each stage the lists of its replicas: device by device, of stages on the same devices the same."""
    first: dict[Group, range] = {}
    for own in groups:
        used = sum(map(len, first))
        first.setdefault(own, range(used, used + len(own)))
    return [first[own] for own in groups]


def classes(question: Question) -> list[Group]:
    """Devices of one kind whose nodes have the same link."""
    found: dict[object, list[Device]] = {}
    for device in question.devices:
        found.setdefault((device.kind, question.links[device.node]), []).append(device)
    return [tuple(own) for own in found.values()]


def shapes(question: Question, micro_batches: int) -> Iterator[Groups]:
    """Devices of every stage, each way once. Where teams differ in size, those of some stages do."""
    ways = _given(question, micro_batches) if question.job["order"] == "given" else _searched(question, micro_batches)
    if anywhere(question):
        ways = (groups for row in _rows(question, micro_batches) for groups in _anywhere(question, row))
    unlike = len({question.team(device.kind) for device in question.devices}) > 1
    for groups in dict.fromkeys(ways):
        if question.job["regular"] and not regular(question, groups):
            continue
        if not unlike or len({question.team(own[0].kind) for own in groups}) > 1:
            yield groups


def _widths(question: Question, micro_batches: int, room: int) -> list[int]:
    """Replicas that a stage may have: none without a micro-batch."""
    asked = question.job["replicas"]
    even = question.level > 1 or question.job["staleness"]  # sums in each pass; batches without a flush
    widths = range(1, min(room, micro_batches) + 1)
    return [r for r in widths if (not asked or r in asked) and not (even and micro_batches % r)]


def regular(question: Question, groups: Groups) -> bool:
    """Whether no stage has some of the devices of one node beside devices of another one."""
    for own in groups:
        nodes = {device.node for device in own}
        if len(nodes) > 1 and any(device.node in nodes and device not in own for device in question.devices):
            return False
    return True


def deep_enough(question: Question, depth: int) -> bool:
    """Whether so many stages are asked for; where devices have several, so many devices, which are two or more."""
    return (not question.job["depths"] or depth in question.job["depths"]) and depth > question.in_rounds


def _deepest(question: Question, micro_batches: int) -> int:
    """The most stages: with one step of delay each has a micro-batch of its own."""
    return min(question.n, micro_batches) if question.job["staleness"] else question.n


def _given(question: Question, micro_batches: int) -> Iterator[Groups]:
    alike = {device: number for number, own in enumerate(classes(question)) for device in own}

    def extend(groups: Groups, used: int) -> Iterator[Groups]:
        if groups and deep_enough(question, len(groups)):
            yield groups
        if len(groups) == _deepest(question, micro_batches):
            return
        for r in _widths(question, micro_batches, len(question.devices) - used):
            own = tuple(question.devices[used : used + r])
            equal = not groups or not question.job["equal_replicas"] or len(groups[0]) == r
            if equal and len({alike[device] for device in own}) == 1:
                yield from extend((*groups, own), used + r)

    return extend((), 0)


def pinned(question: Question) -> set[int]:
    """Devices that layers are pinned to, if like ones may stand for them."""
    numbers = {f"d{device.number}": device.number for device in question.devices}
    named = {numbers[where] for _, where in question.job["pin"] if where in numbers}
    return named if question.job["order"] == "search" else set()


def anywhere(question: Question) -> bool:
    """Whether stages may lie on any like devices, and that makes a difference."""
    spread = any(len({device.node for device in own}) > 1 for own in classes(question))
    return question.anywhere and question.job["order"] == "search" and (spread or bool(pinned(question)))


def _anywhere(question: Question, row: Sequence[tuple[int, int]]) -> Iterator[Groups]:
    """Every choice of devices for a row of (class, replicas), of choices with the same `likeness` one."""
    every = classes(question)
    slots = [number for number, r in row for _ in range(r)]
    seen: set[object] = set()
    named = pinned(question)

    def extend(taken: Group) -> Iterator[Group]:
        if len(taken) == len(slots):
            yield taken
            return
        nodes = set()
        for device in every[slots[len(taken)]]:  # of a node's devices that nothing is pinned to the first one
            if device in taken or (device.number not in named and device.node in nodes):
                continue
            nodes |= {device.node} - ({device.node} if device.number in named else set())
            yield from extend((*taken, device))

    for taken in extend(()):
        left = iter(taken)
        groups = tuple(tuple(next(left) for _ in range(r)) for _, r in row)
        known = likeness(question, groups)
        if known not in seen:
            seen.add(known)
            yield groups


def likeness(question: Question, groups: Groups) -> object:
    """What is equal for two choices of devices that differ by an exchange of like devices or nodes."""
    named = pinned(question)
    content: dict[int, list[object]] = {}
    for device in question.devices:
        content.setdefault(device.node, []).append((device.kind, device.number if device.number in named else -1))
    sorts = {node: (question.links[node], tuple(sorted(map(str, own)))) for node, own in content.items()}
    numbers: dict[int, object] = {}
    for device in (device for own in groups for device in own):
        alike = sum(sorts[node] == sorts[device.node] for node in numbers)
        numbers.setdefault(device.node, (sorts[device.node], alike))
    places = tuple(tuple(numbers[device.node] for device in own) for own in groups)
    return places, tuple(frozenset(device.number for device in own if device.number in named) for own in groups)


def _rows(question: Question, micro_batches: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every row of (class, replicas)."""

    def rows(row: tuple[tuple[int, int], ...], left: list[int]) -> Iterator[tuple[tuple[int, int], ...]]:
        if row and deep_enough(question, len(row)):
            yield row
        if len(row) == _deepest(question, micro_batches):
            return
        for number, room in enumerate(left):
            for r in _widths(question, micro_batches, room):
                if not row or not question.job["equal_replicas"] or row[0][1] == r:
                    rest = [count - r * (other == number) for other, count in enumerate(left)]
                    yield from rows((*row, (number, r)), rest)

    return rows((), [len(own) for own in classes(question)])


def _searched(question: Question, micro_batches: int) -> Iterator[Groups]:
    every = classes(question)
    for row in _rows(question, micro_batches):
        yield packed(every, row)
        if question.job["regular"] and not regular(question, packed(every, row)):
            yield from _inside_nodes(question, every, row)
        widths = {r for _, r in row}
        if len(widths) == 1:
            yield from _tiled(every, [number for number, _ in row], widths.pop())


def packed(every: Sequence[Group], row: Sequence[tuple[int, int]]) -> Groups:
    """Each class's devices in the cluster's order; where nodes stay unused, those used end with a full node."""
    supply = []
    for number, own in enumerate(every):
        count = sum(r for other, r in row if other == number)
        ends, end = [], 0
        for _, node in groupby(own, key=lambda device: device.node):
            end += len(list(node))
            ends.append(end)
        first = 0 if count <= ends[0] else next(e for e in ends if e >= count) - count
        supply.append(iter(own[first:]))
    return tuple(tuple(next(supply[number]) for _ in range(r)) for number, r in row)


def _inside_nodes(question: Question, every: Sequence[Group], row: Sequence[tuple[int, int]]) -> Iterator[Groups]:
    """Stages that do not fit into the rest of a node begin with the next one, or have whole nodes; none if it fails."""
    left = {(number, node): [] for number, own in enumerate(every) for node in sorted({d.node for d in own})}
    for number, own in enumerate(every):
        for device in own:
            left[number, device.node].append(device)
    groups = []
    for number, r in row:
        nodes = [node for other, node in left if other == number]
        room = [(node,) for node in nodes if len(left[number, node]) >= r]
        full = [n for n in nodes if len(left[number, n]) == sum(d.node == n for d in question.devices)]
        for many in range(2, len(full) + 1):
            room += [some for some in combinations(full, many) if sum(len(left[number, n]) for n in some) == r]
        if not room:
            return
        group = [device for node in room[0] for device in left[number, node]][:r]
        groups.append(tuple(group))
        for node in room[0]:
            left[number, node] = [device for device in left[number, node] if device not in group]
    yield tuple(groups)


def _tiled(every: Sequence[Group], row: list[int], replicas: int) -> Iterator[Groups]:
    """Equal replicas, ``tile`` of them in a node beside those of the next stages, wherever tiles fill the nodes."""
    nodes = [[list(node) for _, node in groupby(own, key=lambda device: device.node)] for own in every]
    per_node = [max(map(len, own)) for own in nodes]
    if replicas == 1 or all(len(own) == 1 for own in nodes):
        return
    for tile in range(1, replicas + 1):
        if replicas % tile or any(count % tile for count in per_node):
            continue
        if any(row.count(number) % (count // tile) for number, count in enumerate(per_node)):
            continue
        groups = []
        for s, number in enumerate(row):
            own, count, spread = nodes[number], per_node[number], replicas // tile
            band, column = divmod(sum(other == number for other in row[:s]), count // tile)
            used = own[band * spread : (band + 1) * spread]
            if len(used) < spread or any(len(node) != count for node in own):
                break
            groups.append(tuple(device for node in used for device in node[column * tile : (column + 1) * tile]))
        else:
            yield tuple(groups)


def partitions(question: Question, groups: Groups) -> Iterator[Layers]:
    """Every row of consecutive layers that the options about cuts and places allow."""
    depth, n = len(groups), question.n
    for ends in combinations([end for end in range(1, n) if end - 1 not in forbidden(question)], depth - 1):
        edges = (0, *ends, n)
        layers = tuple(tuple(range(edges[s], edges[s + 1])) for s in range(depth))
        if placed_well(question, groups, layers):
            yield layers


def forbidden(question: Question) -> set[int]:
    """Cuts that a constraint excludes."""
    cuts = {question.place[name] for name in question.job["no_cut_after"]}
    for group in question.job["together"]:
        places = [question.place[name] for name in group]
        cuts |= set(range(min(places), max(places)))
    return cuts


def pins_clash(question: Question) -> bool:
    """Whether a layer has two places, or layers of one stage have places on devices that cannot share a stage."""
    cuts, alone = forbidden(question), tuple(question.job["replicas"]) == (1,)
    homes = [
        (
            question.place[name],
            where,
            {d.number if alone else d.kind for d in question.devices if question.lies(d, where)},
        )
        for name, where in question.job["pin"]
    ]
    for (a, first, here), (b, second, there) in combinations(homes, 2):
        joined = all(cut in cuts for cut in range(min(a, b), max(a, b)))
        if first != second and (a == b or (joined and not here & there)):
            return True
    return False


def placed_well(question: Question, groups: Groups, layers: Layers) -> bool:
    """Whether every pinned layer lies on a stage that its device, or a device of its kind, takes part in."""
    home = {i: s for s, own in enumerate(layers) for i in own}
    return all(
        any(question.lies(device, where) for device in groups[home[question.place[name]]])
        for name, where in question.job["pin"]
    )


def family_names(question: Question) -> tuple[str, ...]:
    """The families that a job asks for, or those that suit the cluster."""
    if question.in_rounds:
        return tuple(question.job["schedules"])
    known = names(question.job["schedules"], question.overlap, question.job["objective"], question.slices)
    if question.job["staleness"]:  # these go on from batch to batch
        return tuple(name for name in known if name.startswith("1f1b"))
    return tuple(name for name in known if name != "fbp-as") if question.level > 1 else known


def unasked(question: Question, sizes: Sequence[int], size: int, groups: Groups) -> str | None:
    """Why a plan's devices go against what is asked for; None if they do not. Other placements may stay unsearched."""
    job, widths = question.job, [len(own) for own in groups]
    used = [device.number for own in groups for device in own]
    if size not in sizes:
        return f"micro-batches of {size} samples were not asked for"
    if job["staleness"] and len(groups) > question.batch // size:
        return f"{len(groups)} stages for {question.batch // size} micro-batches"
    if not deep_enough(question, len(groups)):
        return f"{len(groups)} stages, asked for are {job['depths']}"
    if not set(widths) <= set(_widths(question, question.batch // size, len(question.devices))):
        return f"replicas {widths} with {question.batch // size} micro-batches, asked for are {job['replicas']}"
    if job["equal_replicas"] and len(set(widths)) > 1:
        return f"unequal replicas {widths}"
    if job["regular"] and not regular(question, groups):
        return f"devices {used} are parts of several nodes"
    if job["order"] == "given" and used != list(range(len(used))):
        return f"devices {used} are not the first in the given order"
    if len(set(used)) < len(used) or any(len({device.kind for device in own}) > 1 for own in groups):
        return f"devices {used} are used twice, or are unlike in one stage"
    return None
