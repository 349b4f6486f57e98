"""Small bottleneck problems, and an enumeration of their plans that shares no code with the project.

Stages, modes and devices are tried one by one; the rules are those of docs/graphs.md and docs/bounds/chain.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations, product
from math import ceil, lcm
from random import Random

from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, Device, DeviceKind, Link, Node, Overlap
from pipeplan.core.job import Job, Order, Recompute
from pipeplan.core.model import Model

Question = tuple[Model, Cluster, Job]
Stage = tuple[frozenset[int], tuple[Device, ...]]
"""Layers, and devices, one per replica."""


def random_question(seed: int) -> Question:
    """2 to 5 layers with skips or without, on 1 to 5 devices of one or two kinds in one to three nodes."""
    rng = Random(seed)
    n, sizes = rng.randint(2, 5), rng.choice([(1,), (1,), (1, 2)])

    def numbers(low: int, high: int) -> list[int]:
        return [rng.randint(low, high) for _ in range(n)]

    top, parameters = rng.choice([9, 99]), [4 * rng.choice([0, 1, 2, 5]) for _ in range(n)]

    def priced(kind: str) -> Model:
        output = numbers(0, 9)
        saved = [size + extra for size, extra in zip(output, numbers(0, 6), strict=True)]
        times = numbers(0, top), numbers(0, 2 * top)
        return model_of(*times, saved=saved, output=output, parameters=parameters, sizes=sizes, kinds=(kind,))

    chain = priced("unit")
    layers = list(chain.layers)
    if rng.random() < 0.5:
        for i in range(1, n):
            sources = rng.sample(range(i), rng.randint(0, min(2, i)))
            layers[i] = replace(layers[i], inputs=tuple(layers[j].name for j in sorted(sources)))
    memory = rng.choice([None, None, None, 40, 90])
    kinds = {
        "unit": DeviceKind("unit", memory=memory),
        "slow": DeviceKind("slow", memory=rng.choice([memory, 70]), timed_as="unit", speed=0.5),
    }
    devices, mixed = rng.randint(1, 5), rng.random() < 0.4
    names = [rng.choice(["unit", "slow"]) if mixed else "unit" for _ in range(devices)]
    ends = sorted(rng.sample(range(1, devices), min(rng.choice([0, 0, 1, 2]), devices - 1)))

    def link() -> Link:
        return Link(rng.choice([None, 10**9, 3 * 10**8, 5 * 10**7]), rng.choice([0, 0, 3]))

    inside, across = link(), link()
    nodes = tuple(Node(tuple(names[a:b]), inside) for a, b in zip([0, *ends], [*ends, devices], strict=True))
    network = rng.choice([inside, across])
    if rng.random() < 0.3:  # a profile of its own, with other bytes
        kinds["slow"] = DeviceKind("slow", memory=kinds["slow"].memory)
        chain = replace(chain, profiles=chain.profiles + priced("slow").profiles)
    cluster = Cluster("small", kinds, nodes, network, overlap=rng.choice(list(Overlap)))
    constraint = rng.choice(["", "", "", "", "depths", "replicas", "equal", "given", "cut", "pin"])
    job = Job(
        batch=rng.choice([1, 2, 3, 4, 6, 8]),
        objective="bottleneck",
        optimizer=rng.choice(["sgd", "adam"]),
        zero=(int(rng.random() < 0.3),),
        recompute=rng.choice([Recompute.NONE, Recompute.CHOOSE]),
        depths=tuple(rng.sample(range(1, 4), rng.randint(1, 2))) if constraint == "depths" else (),
        replicas=rng.choice([(1,), (2,), (1, 2), (1, 3)]) if constraint == "replicas" else (),
        equal_replicas=constraint == "equal",
        order=Order.GIVEN if constraint == "given" else Order.SEARCH,
        no_cut_after=(f"l{rng.randrange(n - 1)}",) if constraint == "cut" else (),
        pin=((f"l{rng.randrange(n)}", rng.choice(["d0", f"d{devices - 1}", names[0]])),) if constraint == "pin" else (),
    )
    return replace(chain, layers=tuple(layers)), cluster, job


def best(question: Question, contiguous: bool) -> int | None:
    """The least bottleneck of all plans, per sample; None if none fits."""
    model, cluster, job = question
    found = []
    for size in {profile.micro_batch for profile in model.profiles}:
        if job.batch % size == 0:
            for layers in partitions(model, min(len(cluster.devices), len(model.layers)), contiguous):
                for groups in shapes(cluster, job, len(layers), job.batch // size):
                    stages = tuple(zip(layers, groups, strict=True))
                    if meets_constraints(stages, job, model):
                        found.append(value(question, stages, size))
    return min((each for each in found if each is not None), default=None)


def partitions(model: Model, deepest: int, contiguous: bool) -> Iterator[tuple[frozenset[int], ...]]:
    """Every sequence of sets of layers in which no set reads from a later one."""
    index = {name: i for i, name in enumerate(model.names)}
    needs = [{index[source] for source in layer.inputs} for layer in model.layers]

    def extend(row: tuple[frozenset[int], ...], left: frozenset[int]) -> Iterator[tuple[frozenset[int], ...]]:
        if not left:
            yield row
        elif len(row) < deepest:
            for size in range(1, len(left) + 1):
                ordered = sorted(left)
                for own in map(frozenset, [ordered[:size]] if contiguous else combinations(ordered, size)):
                    if not any(needs[i] & (left - own) for i in own):
                        yield from extend((*row, own), left - own)

    return extend((), frozenset(range(len(model.layers))))


def shapes(cluster: Cluster, job: Job, depth: int, micro_batches: int) -> list[tuple[tuple[Device, ...], ...]]:
    """Every choice of device groups for ``depth`` stages: packed, placed across nodes, or with pins to devices, any."""
    return list(_shapes(cluster, job, depth, micro_batches)) if not job.depths or depth in job.depths else []


def _shapes(cluster: Cluster, job: Job, depth: int, many: int) -> Iterator[tuple[tuple[Device, ...], ...]]:
    classes: dict[tuple[str, Link], list[Device]] = {}
    for device in cluster.devices:
        classes.setdefault((device.kind.name, cluster.nodes[device.node].link), []).append(device)
    every = list(classes.values())
    for modes in _modes(every, job, depth, many):
        if job.order is Order.GIVEN:
            starts = [sum(r for _, r in modes[:s]) for s in range(depth)]
            groups = tuple(cluster.devices[a : a + r] for a, (_, r) in zip(starts, modes, strict=True))
            if all(all(device in every[c] for device in group) for (c, _), group in zip(modes, groups, strict=True)):
                yield groups
            continue
        if any(where in {f"d{device.index}" for device in cluster.devices} for _, where in job.pin):
            yield from _everywhere(every, modes)
            continue
        rows = [_packed(own, sum(r for c, r in modes if c == number)) for number, own in enumerate(every)]
        yield tuple(tuple(rows[c].pop(0) for _ in range(r)) for c, r in modes)
        r = modes[0][1]
        if r > 1 and {width for _, width in modes} == {r}:
            for q in range(1, r + 1):
                tiled = _tiled(every, modes, r, q) if r % q == 0 else None
                if tiled is not None:
                    yield tiled


def _everywhere(
    classes: Sequence[Sequence[Device]], modes: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[Device, ...], ...]]:
    """Every choice of devices of a class for its stages, replica by replica: where layers are pinned to devices."""
    counts = [sum(r for c, r in modes if c == number) for number in range(len(classes))]
    for chosen in product(*(permutations(own, count) for own, count in zip(classes, counts, strict=True))):
        rows = [list(row) for row in chosen]
        yield tuple(tuple(rows[c].pop(0) for _ in range(r)) for c, r in modes)


def _modes(
    classes: Sequence[Sequence[Device]], job: Job, depth: int, many: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    def extend(row: tuple[tuple[int, int], ...], left: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
        if len(row) == depth:
            yield row
            return
        for c, room in enumerate(left):
            for r in range(1, min(room, many) + 1):
                alike = not job.equal_replicas or not row or row[0][1] == r
                if alike and (not job.replicas or r in job.replicas):
                    yield from extend((*row, (c, r)), (*left[:c], room - r, *left[c + 1 :]))

    return extend((), tuple(len(own) for own in classes))


def _packed(own: Sequence[Device], count: int) -> list[Device]:
    """The last ``count`` devices of the fewest nodes; within one node the first."""
    ends = [i + 1 for i in range(len(own)) if i + 1 == len(own) or own[i].node != own[i + 1].node]
    end = min(e for e in ends if e >= count)
    return list(own[:count] if end == ends[0] else own[end - count : end])


def _tiled(classes, modes, r: int, q: int) -> tuple[tuple[Device, ...], ...] | None:
    """Each stage with q replicas in each of r / q nodes, which the stages fill."""
    shares = []
    for own in classes:
        nodes = {}
        for device in own:
            nodes.setdefault(device.node, []).append(device)
        shares.append(list(nodes.values()))
    widths = [max(len(node) for node in nodes) for nodes in shares]
    if all(len(nodes) == 1 for nodes in shares) or any(width % q for width in widths):
        return None
    placed, groups = [0] * len(classes), []
    for c, _ in modes:
        row, column = divmod(placed[c], widths[c] // q)
        placed[c] += 1
        chosen = shares[c][row * (r // q) : (row + 1) * (r // q)]
        if len(chosen) < r // q or any(len(node) != widths[c] for node in shares[c]):
            return None
        groups.append(tuple(device for node in chosen for device in node[column * q : (column + 1) * q]))
    if any(count % (width // q) for count, width in zip(placed, widths, strict=True)):
        return None
    return tuple(groups)


def meets_constraints(stages: Sequence[Stage], job: Job, model: Model) -> bool:
    """True if no forbidden cut is used and all pins are respected."""
    for name in job.no_cut_after:
        last = model.names.index(name)
        if any(max(own) == last for own, _ in stages[:-1]):
            return False
    for name, where in job.pin:
        group = next(group for own, group in stages if model.names.index(name) in own)
        if not any(where in (device.kind.name, f"d{device.index}") for device in group):
            return False
    return True


def value(question: Question, stages: Sequence[Stage], size: int) -> int | None:
    """The largest load per sample under the best recomputation; None if memory does not suffice."""
    model, cluster, job = question
    every = {profile.device: profile.costs for profile in model.profiles if profile.micro_batch == size}
    of_stage = [every[group[0].kind.timed_as or group[0].kind.name] for _, group in stages]
    place = {i: s for s, (own, _) in enumerate(stages) for i in own}
    index = {name: i for i, name in enumerate(model.names)}
    many, waits = job.batch // size, cluster.overlap is Overlap.NONE
    crossing = []
    for s in range(len(stages) - 1):
        readers = [(index[name], i) for i, layer in enumerate(model.layers) for name in layer.inputs]
        crossing.append(sum(of_stage[s][i].output for i in {a for a, b in readers if place[a] <= s < place[b]}))
    links = [_busiest(cluster, stages[s][1], stages[s + 1][1], many, crossing[s]) for s in range(len(stages) - 1)]
    sends = [0, *(busy for busy, _ in links), 0]
    worst = 0
    for s, (own, group) in enumerate(stages):
        r, kind, costs = len(group), group[0].kind, of_stage[s]
        flying = ceil(sum(len(later) for _, later in stages[s:]) / r)
        received = crossing[s - 1] if s else 0
        states = {"": 0, "sgd": 0, "adam": 2}[job.optimizer]
        fixed = sum(
            2 * model.layers[i].parameters + ceil(states * model.layers[i].parameters / (r if job.level else 1))
            for i in own
        )
        best_extra = None
        for again in _subsets(tuple(sorted(own))) if job.recompute is Recompute.CHOOSE else [()]:
            held = received + sum(costs[i].output if i in again else costs[i].saved for i in own)
            need = fixed + flying * held + max((costs[i].saved for i in again), default=0)
            extra = sum(costs[i].forward for i in again)
            if (kind.memory is None or need <= kind.memory) and (best_extra is None or extra < best_extra):
                best_extra = extra
        if best_extra is None:
            return None
        work = round(1 / kind.speed) * (sum(costs[i].forward + costs[i].backward for i in own) + best_extra)
        work += sends[s] + sends[s + 1] if waits else 0
        worst = max(worst, ceil((ceil(many / r) * work + _ring(question, stages, s)) / job.batch))
    return worst if waits else max([worst, *(count * busy // job.batch for busy, count in links)])


@cache
def _subsets(own: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [chosen for size in range(len(own) + 1) for chosen in combinations(own, size)]


def _busy(link: Link, size: int) -> int:
    return 0 if link.bandwidth is None else -(-size * 10**9 // link.bandwidth)


def _busiest(cluster: Cluster, before, behind, many: int, size: int) -> tuple[int, int]:
    """Least time of a tensor over any pair of replicas, and the number of tensors on the busiest link resource."""
    period, users, times = lcm(len(before), len(behind)), {}, []
    for m in range(period):
        a, b = before[m % len(before)], behind[m % len(behind)]
        times.append(_busy(cluster.link(a, b), size))
        for resource in [(a.index, b.index)] if a.node == b.node else [("out", a.node), ("in", b.node)]:
            users.setdefault(resource, []).append(m)
    most = max(users.values(), key=len)
    return min(times), sum(ceil((many - m) / period) for m in most if m < many)


def _ring(question: Question, stages: Sequence[Stage], s: int) -> int:
    """Nanoseconds of a ring reduction: 2 (r − 1) rounds over the slowest link that it passes, with latency.

    That is the link inside a node of several replicas, or the ring's share of a card.
    """
    model, cluster, _ = question
    own, group = stages[s]
    nodes = {device.node for device in group}
    link = cluster.nodes[group[0].node].link
    if len(nodes) > 1:
        assert cluster.network is not None
        others = [{device.node for device in each} for _, each in stages]
        users = max(sum(len(each) > 1 and node in each for each in others) for node in nodes)
        whole = cluster.network.bandwidth
        card = replace(cluster.network, bandwidth=None if whole is None else max(whole // users, 1))
        here = [device.node for device in group]
        inside = [cluster.nodes[node].link for node in sorted(nodes) if here.count(node) > 1]
        link = max((card, *inside), key=lambda each: (_busy(each, 2**40), each.latency))
    rounds, total = 2 * (len(group) - 1), 0
    for size in (model.layers[i].parameters for i in own):
        total += max(rounds * _busy(link, ceil(size / len(group))), 1) if rounds and size else 0
    return total + (rounds * link.latency if total else 0)
