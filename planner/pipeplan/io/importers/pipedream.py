"""Parser of PipeDream's ``graph.txt`` to a model; notes mark layers whose times may be wrong.

Backward time may be attributed to the wrong layer (`Misattributed`). The profiler measures the time between the
gradient hooks of neighbouring modules. Around fused recurrent layers a hook fires early or late, so part of one
module's backward is attributed to the next. The sums are right, the parts are not:

* a bidirectional LSTM with almost no backward time, after an embedding with far too much;
* a last LSTM with several times the backward time of identical layers, before a classifier with too little.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from pipeplan.core.errors import InputError
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.io.importers.dag import reachable, topological
from pipeplan.io.importers.importer import Importer
from pipeplan.io.importers.pipedream_graph import Graph, GraphNode, parse_graph

LEAST_SHARE = 0.25
"""A recurrent layer whose backward takes less than this fraction of its forward has lost backward time."""
MOST_TIMES = 2.0
"""A recurrent layer whose backward takes more than this many times the median of identical layers has gained some."""


@dataclass(frozen=True)
class Misattributed:
    """Two nodes between which time was attributed wrongly, and all nodes on paths between them, both included."""

    first: str
    last: str
    between: tuple[str, ...]
    why: str


def find_misattributed(graph: Graph) -> tuple[Misattributed, ...]:
    """Return every pair of nodes with misattributed backward time."""
    found = []
    for node in sorted(graph.nodes.values(), key=lambda node: node.number):
        if not _recurrent(node):
            continue
        if node.forward and node.backward < LEAST_SHARE * node.forward:
            found += [_pair(graph, source, node) for source in _embeddings(graph, node)]
        ordinary = _median_of_identical(graph, node)
        if ordinary and node.backward > MOST_TIMES * ordinary:
            found += [_pair(graph, node, head) for head in _heads(graph, node)[:1]]
    return tuple(found)


def _recurrent(node: GraphNode) -> bool:
    head = node.what.partition("(")[0]
    return any(word in head for word in ("LSTM", "GRU", "RNN"))


def _embeddings(graph: Graph, node: GraphNode) -> list[GraphNode]:
    sources = [graph.nodes[a] for a, b in graph.edges if b == node.name]
    return [source for source in sources if source.what.startswith("Embedding") and source.backward > source.forward]


def _median_of_identical(graph: Graph, node: GraphNode) -> float:
    """Return the median backward time of other nodes with the same description; 0 if there are fewer than two."""
    times = [other.backward for other in graph.nodes.values() if other.what == node.what and other is not node]
    return median(times) if len(times) > 1 else 0


def _heads(graph: Graph, node: GraphNode) -> list[GraphNode]:
    """Return classifiers after ``node`` with a backward shorter than their forward, which is implausible."""
    after: dict[str, list[str]] = {name: graph.readers(name) for name in graph.nodes}
    found = reachable(node.name, after)
    behind = [graph.nodes[name] for name in found]
    heads = [
        other
        for other in behind
        if other.what.startswith(("Classifier", "Linear")) and other.parameters and other.backward < other.forward
    ]
    return sorted(heads, key=lambda other: other.number)


def _pair(graph: Graph, first: GraphNode, last: GraphNode) -> Misattributed:
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
    return Misattributed(first.name, last.name, ordered, f"between {times}")


PROFILED = "profiled"
"""Device name of imported profiles."""
_IMAGE_BYTES = (4 * 3 * 224**2, 4 * 3 * 299**2)
"""Bytes of a single-precision colour image, the input of the profiled networks (the second: Inception)."""
_LSTM = re.compile(r"LSTM\(\d+, (\d+)\)")
_NODE = re.compile(r"^\S+ -- .* -- forward_compute_time=", re.MULTILINE)


def pipedream_from_text(text: str, name: str, *, merge_misbooked: bool = False, samples: int | None = None) -> Model:
    """Parse the text of a ``graph.txt``: layers in topological order, with one imported profile.

    Parameters
    ----------
    text, name : str
    merge_misbooked : bool
        Fuse the layers between which the profiler attributed backward time to a neighbour (see `Misattributed`). Kept
        apart, their sum is right and each of them is wrong; the notes name them in both cases.
    samples : int, optional
        Samples of the profiled mini-batch. By default recovered from the sizes of images or recurrent states if
        possible, else the mini-batch itself counts as one sample.

    Notes
    -----
    `Input` nodes are dropped, as their time is that of loading data, and so are unread `__getitem__` nodes. The
    backward time is not split in the file: half of it counts as input gradient, all of it where there are no
    parameters. The bytes that a layer saves for its backward are not in the file either: its output is used.

    Raises
    ------
    InputError
        Naming every invalid line.
    """
    whole = parse_graph(text, name)
    samples, how = (samples, "as given") if samples is not None else recover_samples(whole)
    if samples < 1:
        raise InputError(f"{name}: the mini-batch must hold at least one sample, not {samples}")
    graph, dropped = _prune(whole)
    if not graph.nodes:
        raise InputError(f"{name}: nothing is left once the Input nodes are dropped")
    misattributed = find_misattributed(graph)
    groups = _groups(graph, misattributed if merge_misbooked else ())
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
        notes=_notes(samples, how, dropped, misattributed, merge_misbooked),
    )


def recover_samples(graph: Graph) -> tuple[int, str]:
    """Return the samples of the profiled mini-batch, and a text on how they were recovered."""
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
    """Return the graph without `Input` nodes and unread `__getitem__` nodes, and the names of the latter."""
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


def _groups(graph: Graph, misattributed: Iterable[Misattributed]) -> dict[str, tuple[str, ...]]:
    """Return for every node all nodes of its layer in order of creation. Overlapping groups are merged."""
    group = {name: {name} for name in graph.nodes}
    for pair in misattributed:
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
    """Return whether a node's output is read outside its layer, or is an output of the model."""
    readers = graph.readers(name)
    return not readers or any(reader not in members for reader in readers)


def _notes(
    samples: int, how: str, dropped: tuple[str, ...], misattributed: tuple[Misattributed, ...], merged: bool
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
    for pair in misattributed:
        treated = (
            "they are merged into one layer"
            if merged
            else "they are kept apart, so a cut between them trusts a wrong split; merge_misbooked fuses them"
        )
        notes.append(f"backward time is booked on a neighbour, {pair.why}; {treated}")
    return tuple(notes)


def _read(
    text: str, where: str, name: str, *, merge_misbooked: bool = False, samples: int | None = None
) -> tuple[Model, None]:
    """Parse a text; the file names no devices."""
    del where  # errors give the model's name
    return pipedream_from_text(text, name, merge_misbooked=merge_misbooked, samples=samples), None


IMPORTER = Importer("pipedream", lambda text: bool(_NODE.search(text)), _read, plain=True)
