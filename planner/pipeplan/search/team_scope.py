"""`with_teams`: sizes of teams, ways to split layers and what of them is not searched, as an answer says it."""

from collections import Counter
from collections.abc import Iterator, Sequence

from pipeplan.core import searched as sentences
from pipeplan.core.cluster import Cluster
from pipeplan.core.searched import Searched
from pipeplan.core.splits import CONTEXT, LOSS, Mix, Split
from pipeplan.core.units import format_bytes, format_time
from pipeplan.costs.sharding.places import places
from pipeplan.costs.sharding.question import homeless
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.sentinels import UNLIMITED


def with_teams(found: Searched, spaces: Spaces, cutoff: int | None = None) -> Searched:
    """Return the description of a search with its teams; bounds from ``cutoff`` nanoseconds on rule plans out."""
    job = spaces.job
    alike = [split for split in spaces.teams if isinstance(split, Split)]
    ways = Counter(split.team for split in alike if not split.mesh)
    meshes = Counter(split.mesh for split in alike if split.mesh)
    tokens = any(split.sequence for split in spaces.teams)
    parallelism = {name for split in spaces.teams for name in split.parallelism}
    context, losses = CONTEXT in parallelism, any(graph.loss for graph in spaces.model.operators.values())
    loss = "" if LOSS in parallelism else sentences.WHOLE_LOSS if losses else sentences.UNKNOWN_LOSS
    left_out = dict(_left_out(spaces))
    priced = {1, *(split.team for split in alike)}
    counts = {team: ways[team] for team in job.teams if team in priced}
    over = ", ".join(_over_nodes(spaces.cluster, [team for team in counts if team > 1]))
    ties, frozen = bool(spaces.model.ties), any(layer.frozen for layer in spaces.model.layers)
    return found.with_teams(
        counts,
        tokens,
        _mixes(spaces),
        loss,
        over,
        context,
        meshes,
        ties,
        [*left_out.values()],
        job.mesh_axes,
        frozen,
        _unpriced(spaces, cutoff),
        others=spaces.usual,
    )


def _left_out(spaces: Spaces) -> Iterator[tuple[int, str]]:
    """Yield the sizes of teams that are asked for and not searched, each with the reason in words."""
    split = {each.team for each in spaces.teams if not isinstance(each, Mix)}
    for team in spaces.job.teams:
        if team > 1 and not places(spaces.cluster, team):
            yield team, f"no teams of {team}, for which {spaces.cluster.name} has no room"
        elif team > 1 and (kind := homeless(spaces.cluster, spaces.job, team)):
            beside = ", but beside others" * spaces.job.unlike_teams
            yield team, f"no teams of {team}{beside}, as a layer is pinned to {kind}, of which there are none"
        elif team > 1 and team not in split and any(each.done and team in each.sizes for each in spaces.openings):
            yield team, f"no teams of {team}, over which no operator can be split"


def _unpriced(spaces: Spaces, cutoff: int | None) -> dict[str, list[int]]:
    """The sizes of teams whose ways were not priced, or not all, by the sentence that says why."""
    found: dict[str, set[int]] = {sentences.LATE: set(), sentences.LEFT: set(), sentences.CLOSED: set()}
    cutoff = UNLIMITED if cutoff is None else cutoff
    for each in spaces.openings:
        closed = sentences.CLOSED if each.bound >= cutoff else sentences.LATE
        if not each.done:
            found[sentences.LEFT if each.left else closed] |= set(each.sizes)
    found[sentences.CLOSED] -= {team for split in spaces.teams for team in split.teams}
    return {sentence: sorted(sizes) for sentence, sizes in found.items()}


def _mixes(spaces: Spaces) -> str:
    """Return in words how the nodes are filled with teams of unlike sizes; empty if they are not."""
    alone = sum(isinstance(split, Mix) for split in spaces.teams)
    if alone:
        return f"{alone} mixes" if alone > 1 else "1 mix"
    for own in spaces.mixed:
        if own.ways is None:
            from pipeplan.search.nodes.layouts import layouts  # only larger clusters need it

            each = [layouts(own, own.job.batch // size) for size in own.sizes]
            taken = max((layout.taken for row in each for layout in row), default=1)
            of = f"a multiple of {taken} devices each, " * (taken > 1)
            return f"{of}bounded for all ways to fill the nodes, sought in some of them"
        if own.ways:
            return f"all {len(own.ways)} ways to fill the nodes" if len(own.ways) > 1 else "one way to fill the nodes"
    return ""


def _over_nodes(cluster: Cluster, teams: Sequence[int]) -> Iterator[str]:
    """Yield in words which teams extend over several nodes, and the slowest link of their rings."""
    for team in teams:
        for kind, place in places(cluster, team).items():
            if place.nodes > 1:
                whose = f" of {kind}" if len(cluster.kinds) > 1 else ""
                rate, wait = place.link.bandwidth, format_time(place.link.latency)
                speed = f"at {format_bytes(rate)}/s with {wait} of latency" if rate else f"with {wait} of latency"
                yield f"teams of {team}{whose} over {place.nodes} nodes each (rings {speed})"
