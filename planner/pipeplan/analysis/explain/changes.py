"""Changes of a question: more memory, faster links, more devices, other micro-batches, plans that need not be regular.

Each change is a new cluster and a new job, to be solved afresh.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.job import Job, Order
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.core.wording import teams_of
from pipeplan.costs.sharding.usual import usual_teams

GIB = 2**30
GIGABYTE = 10**9


@dataclass(frozen=True)
class Change:
    """A changed cluster or job, and how it relates to the original.

    Attributes
    ----------
    label : str
        ``'1 GiB more memory per device'``.
    cluster : Cluster
    job : Job
    eases : bool
        True if the current plan stays possible with the same step time, so that the answer cannot be worse.
    frees_memory, lifts_limits : bool
        ``frees_memory``: True if it raises the memory limits and changes nothing else. ``lifts_limits``: True if it
        removes them all; its gain is the cost of the limits, and no higher limit gains more.
    """

    label: str
    cluster: Cluster
    job: Job
    eases: bool = False
    frees_memory: bool = False
    lifts_limits: bool = False


def changes(model: Model, cluster: Cluster, job: Job, plan: Plan) -> Iterator[Change]:
    """Every change that `pipeplan.explain` tries; a change without effect on the problem is left out."""
    if has_limits(cluster, job):
        free = without_limits(cluster, job)
        yield Change("no memory limit at all", *free, eases=True, frees_memory=True, lifts_limits=True)
        more = with_memory(cluster, job, GIB)
        yield Change("1 GiB more memory per device", *more, eases=True, frees_memory=True)
    yield from _faster_links(cluster, job)
    for kind in dict.fromkeys(device.kind.name for device in cluster.devices):
        yield Change(f"one more {kind}", *with_devices(cluster, job, kind), eases=more_never_hurt(cluster, job))
    yield from _micro_batches(cluster, job, plan)
    if job.regular:
        yield Change(
            "plans that need not be regular", cluster, replace(job, regular=False, equal_replicas=False), eases=True
        )
    larger, known = 2 * plan.team, job.teams or usual_teams(model, cluster, job) or (1,)
    if larger not in known and larger <= largest_team(model, cluster, job):
        wider = replace(job, teams=(*known, larger))
        yield Change(f"{teams_of(larger)} devices too, which share every layer", cluster, wider, eases=True)


def largest_team(model: Model, cluster: Cluster, job: Job) -> int:
    """Devices of the largest team that a node has; 1 where nothing can be split, or the job excludes teams."""
    alone = any(pinned_device(where) is not None for _, where in job.pin)
    if not model.operators or alone or any(kind.on_chip is not None for kind in cluster.kinds.values()):
        return 1
    return max(node.kinds.count(kind) for node in cluster.nodes for kind in node.kinds)


def may_leave_out(cluster: Cluster, job: Job) -> bool:
    """True if a plan may leave out any devices; in a given order it uses the first ones, whatever their kinds."""
    return job.order is Order.SEARCH or len({device.kind.name for device in cluster.devices}) == 1


def more_never_hurt(cluster: Cluster, job: Job) -> bool:
    """True if a plan on some of the devices is a plan on more.

    It is if a plan may leave out any devices, and neither stages nor teams have to consist of whole nodes, which
    further devices enlarge: stages of regular plans, teams larger than a node (see `pipeplan.costs.sharding.places`).
    """
    inside = max(node.kinds.count(kind) for node in cluster.nodes for kind in node.kinds)
    whole = (job.regular and len(cluster.nodes) > 1) or max(job.teams, default=1) > inside
    return may_leave_out(cluster, job) and not whole


def has_limits(cluster: Cluster, job: Job) -> bool:
    """True if the memory of any device is limited."""
    return job.memory is not None or any(device.kind.memory is not None for device in cluster.devices)


def with_memory(cluster: Cluster, job: Job, more: int) -> tuple[Cluster, Job]:
    """Cluster and job with ``more`` bytes more (or, below zero, fewer) on every device that has a limit.

    What is left free is no part of the devices there, so that all of these bytes may be used.
    """

    def kind(old: DeviceKind) -> DeviceKind:
        usable = job.usable(old.memory)
        return old if usable is None else replace(old, memory=max(usable + more, 0))

    kinds = {name: kind(old) for name, old in cluster.kinds.items()}
    memory = None if job.memory is None else max(job.memory + more, 0)
    return replace(cluster, kinds=kinds), replace(job, memory=memory, reserve=0)


def without_limits(cluster: Cluster, job: Job) -> tuple[Cluster, Job]:
    """Cluster and job without any memory limit."""
    kinds = {name: replace(kind, memory=None) for name, kind in cluster.kinds.items()}
    return replace(cluster, kinds=kinds), replace(job, memory=None, reserve=0)


def with_devices(cluster: Cluster, job: Job, kind: str, more: int = 1) -> tuple[Cluster, Job]:
    """Cluster and job with ``more`` further devices of a kind, in the last node that has such devices.

    Pins are renumbered, so that pinned devices keep their layers.
    """
    home = max(number for number, node in enumerate(cluster.nodes) if kind in node.kinds)
    old = cluster.nodes[home].kinds
    at = len(old) - old[::-1].index(kind)  # behind the last of its kind
    node = replace(cluster.nodes[home], kinds=(*old[:at], *(kind,) * more, *old[at:]))
    before = at + sum(len(each.kinds) for each in cluster.nodes[:home])

    def place(where: str) -> str:
        index = pinned_device(where)
        return where if index is None or index < before else f"d{index + more}"

    nodes = (*cluster.nodes[:home], node, *cluster.nodes[home + 1 :])
    return replace(cluster, nodes=nodes), replace(job, pin=tuple((layer, place(where)) for layer, where in job.pin))


def pinned_device(where: str) -> int | None:
    """Device number of a pin: 3 for ``'d3'``; None for a kind of device."""
    return int(where[1:]) if where[:1] == "d" and where[1:].isdigit() else None


@dataclass(frozen=True, slots=True)
class LinkKind:
    """Equal links of a cluster: the network between nodes, or the links inside some nodes."""

    label: str
    link: Link
    network: bool


def link_kinds(cluster: Cluster) -> tuple[LinkKind, ...]:
    """Every kind of link between two devices: those inside nodes, equal ones once, and the network."""
    inside = tuple(dict.fromkeys(node.link for node in cluster.nodes if len(node.kinds) > 1))
    found = [LinkKind(_label(cluster, link, alone=len(inside) == 1), link, False) for link in inside]
    if cluster.network is not None and len(cluster.nodes) > 1:
        found.append(LinkKind("the network between nodes", cluster.network, True))
    return tuple(found)


def _label(cluster: Cluster, link: Link, alone: bool) -> str:
    if alone:
        return "the links inside a node"
    numbers = [str(number) for number, node in enumerate(cluster.nodes) if node.link == link]
    shown = ", ".join(numbers[:4]) + (" …" if len(numbers) > 4 else "")
    return f"the links inside node{'' if len(numbers) == 1 else 's'} {shown}"


def with_bandwidth(cluster: Cluster, which: LinkKind, more: int) -> Cluster:
    """Cluster with ``more`` bytes per second more on all links of a kind, unless its bandwidth is unlimited."""
    if which.link.bandwidth is None:
        return cluster
    faster = replace(which.link, bandwidth=which.link.bandwidth + more)
    if which.network:
        return replace(cluster, network=faster)

    def node(old: Node) -> Node:
        return replace(old, link=faster) if old.link == which.link else old

    return replace(cluster, nodes=tuple(map(node, cluster.nodes)))


def _faster_links(cluster: Cluster, job: Job) -> Iterator[Change]:
    for kind in link_kinds(cluster):
        if kind.link.bandwidth is not None:
            yield Change(f"1 GB/s more on {kind.label}", with_bandwidth(cluster, kind, GIGABYTE), job)


def _micro_batches(cluster: Cluster, job: Job, plan: Plan) -> Iterator[Change]:
    size, count = plan.micro_batch, plan.micro_batches
    for label, number in (("one more micro-batch", count + 1), ("twice as many micro-batches", 2 * count)):
        more = replace(job, batch=size * number, micro_batches=(number,))
        yield Change(f"{label} ({number} of {size}, a batch of {more.batch})", cluster, more)
    if size % 2 == 0:
        halves = replace(job, batch=plan.batch, micro_batches=(2 * count,))
        yield Change(f"twice as many, half as large ({2 * count} of {size // 2})", cluster, halves)
