"""PipeDream's ``graph.txt`` as a model: a row of layers that says where its numbers may mislead.

Backward time may be booked on the wrong layer (`Misbooked`), as happens around recurrent layers. The profiler takes the
time between the gradient hooks of neighbouring modules. Around fused recurrent layers a hook fires early or late, so
part of one module's backward is booked on the next. The sums are right, the parts are not:

* a bidirectional LSTM with next to no backward time, behind an embedding with far too much;
* a last LSTM with several times its twins' backward time, ahead of a classifier with too little.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pipeplan.core.errors import InputError
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.io.importers.dag import reachable, topological
from pipeplan.io.importers.pipedream_graph import Graph, GraphNode, parse_graph
from pipeplan.io.text import read_text

STARVED = 0.25
"""A recurrent layer whose backward takes less than this fraction of its forward has lost backward time."""
GORGED = 2.0
"""One whose backward takes more than this many times its twins' median has gained some."""


@dataclass(frozen=True)
class Misbooked:
    """Two nodes between which time was booked wrongly, and all nodes on the ways between them, themselves included."""

    first: str
    last: str
    between: tuple[str, ...]
    why: str


def find_misbooked(graph: Graph) -> tuple[Misbooked, ...]:
    """Every such pair in a graph."""
    found = []
    for node in sorted(graph.nodes.values(), key=lambda node: node.number):
        if not _recurrent(node):
            continue
        if node.forward and node.backward < STARVED * node.forward:
            found += [_pair(graph, source, node) for source in _embeddings(graph, node)]
        ordinary = _twins(graph, node)
        if ordinary and node.backward > GORGED * ordinary:
            found += [_pair(graph, node, head) for head in _heads(graph, node)[:1]]
    return tuple(found)


def _recurrent(node: GraphNode) -> bool:
    head = node.what.partition("(")[0]
    return any(word in head for word in ("LSTM", "GRU", "RNN"))


def _embeddings(graph: Graph, node: GraphNode) -> list[GraphNode]:
    sources = [graph.nodes[a] for a, b in graph.edges if b == node.name]
    return [source for source in sources if source.what.startswith("Embedding") and source.backward > source.forward]


def _twins(graph: Graph, node: GraphNode) -> float:
    """Median backward time of the other nodes that are described by the same words; 0 where there are under two."""
    times = [other.backward for other in graph.nodes.values() if other.what == node.what and other is not node]
    return median(times) if len(times) > 1 else 0


def _heads(graph: Graph, node: GraphNode) -> list[GraphNode]:
    """Classifiers behind ``node`` whose backward takes less time than their forward, which it never does."""
    after: dict[str, list[str]] = {name: graph.readers(name) for name in graph.nodes}
    found = reachable(node.name, after)
    behind = [graph.nodes[name] for name in found]
    heads = [
        other
        for other in behind
        if other.what.startswith(("Classifier", "Linear")) and other.parameters and other.backward < other.forward
    ]
    return sorted(heads, key=lambda other: other.number)


def _pair(graph: Graph, first: GraphNode, last: GraphNode) -> Misbooked:
    after: dict[str, list[str]] = {name: graph.readers(name) for name in graph.nodes}
    before: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for a, b in graph.edges:
        before[b].append(a)
    behind, ahead = reachable(first.name, after), reachable(last.name, before)
    ordered = tuple(sorted(behind & ahead, key=lambda name: graph.nodes[name].number))
    times = " and ".join(
        f"{node.name} ({node.what.partition('(')[0]}: forward {node.forward / 1e6:.3f} ms, "
        f"backward {node.backward / 1e6:.3f} ms)"
        for node in (first, last)
    )
    return Misbooked(first.name, last.name, ordered, f"between {times}")


PROFILED = "profiled"
"""What an imported profile calls the device it was measured on."""
_IMAGE_BYTES = (4 * 3 * 224**2, 4 * 3 * 299**2)
"""One single-precision colour image, as the profiled networks take it (the second: Inception)."""
_LSTM = re.compile(r"LSTM\(\d+, (\d+)\)")


def read_pipedream(path: Path, *, merge_misbooked: bool = False, samples: int | None = None) -> Model:
    """The model in a ``graph.txt``; see `pipedream_from_text`."""
    return pipedream_from_text(
        read_text(path), path.name.split(".")[0], merge_misbooked=merge_misbooked, samples=samples
    )


def pipedream_from_text(text: str, name: str, *, merge_misbooked: bool = False, samples: int | None = None) -> Model:
    """The model in the text of a ``graph.txt``, its layers in topological order, with one imported profile.

    Parameters
    ----------
    text, name : str
    merge_misbooked : bool
        Fuse the layers between which the profiler booked backward time on a neighbour (see `misbooked`). Left apart,
        their sum is right and each of them is wrong; the notes name them either way.
    samples : int, optional
        Samples of the profiled mini-batch. Recovered where the sizes of images or recurrent states tell it, else the
        mini-batch itself counts as one sample.

    Notes
    -----
    `Input` nodes are dropped, as their time is that of loading data, and so are `__getitem__` nodes that nothing reads.
    The backward time is not split in the file: half of it counts as input gradient, all of it where there are no
    parameters. What a layer saves for its backward is not in the file either: its output is taken.

    Raises
    ------
    InputError
        Naming every line that is wrong.
    """
    whole = parse_graph(text, name)
    samples, how = (samples, "as given") if samples is not None else recover_samples(whole)
    if samples < 1:
        raise InputError(f"{name}: the mini-batch must hold at least one sample, not {samples}")
    graph, dropped = _prune(whole)
    if not graph.nodes:
        raise InputError(f"{name}: nothing is left once the Input nodes are dropped")
    misbooked = find_misbooked(graph)
    groups = _groups(graph, misbooked if merge_misbooked else ())
    order = _order(graph, groups)
    return Model(
        name=name,
        layers=tuple(_layer(graph, members, groups) for members in order),
        profiles=(
            Profile(
                device=PROFILED,
                micro_batch=samples,
                costs=tuple(_cost(graph, members) for members in order),
                provenance=Provenance("imported", f"PipeDream profile {name}"),
            ),
        ),
        notes=_notes(samples, how, dropped, misbooked, merge_misbooked),
    )


def recover_samples(graph: Graph) -> tuple[int, str]:
    """Samples of the profiled mini-batch, and how one knows."""
    for node in graph.nodes.values():
        size = sum(node.outputs)
        if node.what.startswith("Input") and size:
            for image in _IMAGE_BYTES:
                if size % image == 0:
                    return size // image, "recovered from the bytes of the input images"
    found = set()
    for node in graph.nodes.values():
        match = _LSTM.fullmatch(node.what)
        if match and len(node.outputs) == 3:  # output, and the last hidden and cell state of every sample
            per_sample = 4 * int(match[1])
            found.add(node.outputs[1] // per_sample if node.outputs[1] % per_sample == 0 else 0)
    if len(found) == 1 and (samples := found.pop()):
        return samples, "recovered from the bytes of the recurrent states"
    return 1, "the file does not tell how many samples it holds, so it counts as one"


def _prune(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph without inputs and without outputs that nobody reads; and the names of the latter."""
    graph = graph.without(name for name, node in graph.nodes.items() if node.what.startswith("Input"))
    dropped: list[str] = []
    while True:
        read = {a for a, _ in graph.edges}
        unread = [
            name for name, node in graph.nodes.items() if node.what.startswith("__getitem__") and name not in read
        ]
        if not unread:
            return graph, tuple(sorted(dropped, key=lambda name: (len(name), name)))
        dropped += unread
        graph = graph.without(unread)


def _groups(graph: Graph, misbooked: Iterable[Misbooked]) -> dict[str, tuple[str, ...]]:
    """For every node the nodes of its layer, itself among them, in order of creation. Overlapping groups are joined."""
    group = {name: {name} for name in graph.nodes}
    for pair in misbooked:
        joined = set().union(*(group[name] for name in pair.between))
        group |= dict.fromkeys(joined, joined)
    ordered = {id(members): tuple(sorted(members, key=lambda n: graph.nodes[n].number)) for members in group.values()}
    return {name: ordered[id(members)] for name, members in group.items()}


def _order(graph: Graph, groups: dict[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    edges = [(groups[a], groups[b]) for a, b in graph.edges if groups[a] != groups[b]]
    return topological(dict.fromkeys(groups.values()), edges, rank=lambda members: graph.nodes[members[0]].number)


def _layer(graph: Graph, members: tuple[str, ...], groups: dict[str, tuple[str, ...]]) -> Layer:
    sources = [groups[a] for a, b in graph.edges if b in members and a not in members]
    return Layer(
        name="+".join(members),
        parameters=sum(graph.nodes[name].parameters for name in members),
        inputs=tuple("+".join(source) for source in dict.fromkeys(sources)),
        kind=" + ".join(graph.nodes[name].what.partition("(")[0] for name in members),
    )


def _cost(graph: Graph, members: tuple[str, ...]) -> LayerCost:
    nodes = [graph.nodes[name] for name in members]
    forward, backward = sum(node.forward for node in nodes), sum(node.backward for node in nodes)
    weight_gradient = backward // 2 if any(node.parameters for node in nodes) else 0
    leaving = [node for node in nodes if _leaves(graph, node.name, members)]
    return LayerCost(
        forward=forward,
        backward=backward,
        input_gradient=backward - weight_gradient,
        weight_gradient=weight_gradient,
        saved=sum(sum(node.outputs) for node in nodes),
        output=sum(sum(node.outputs) for node in leaving),
    )


def _leaves(graph: Graph, name: str, members: tuple[str, ...]) -> bool:
    """Whether a node's output is read outside its layer, or is one that the whole model returns."""
    readers = graph.readers(name)
    return not readers or any(reader not in members for reader in readers)


def _notes(
    samples: int, how: str, dropped: tuple[str, ...], misbooked: tuple[Misbooked, ...], merged: bool
) -> tuple[str, ...]:
    counted = "1 sample" if samples == 1 else f"{samples} samples"
    notes = [
        f"times are those of the profiled mini-batch: {counted} ({how})",
        "the backward time is not split in the file: half of it counts as weight gradient where a layer has parameters",
        "what a layer saves for its backward is not in the file: the size of its output is taken",
        "loss and optimiser step are not in the file; input nodes are dropped, as their time is that of loading data",
    ]
    if dropped:
        notes.append(f"dropped, as nothing reads them: {', '.join(dropped)}")
    for pair in misbooked:
        treated = (
            "they are merged into one layer"
            if merged
            else "they are kept apart, so a cut between them trusts a wrong split; merge_misbooked fuses them"
        )
        notes.append(f"backward time is booked on a neighbour, {pair.why}; {treated}")
    return tuple(notes)
