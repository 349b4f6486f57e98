"""Teams of devices that share every layer: where they lie, and the question in which teams are devices."""

from functools import cached_property

from .costs import ContradictionError, sizes
from .documents import Document, Link, Question
from .graphs import TOKEN, WHOLE, inputs, outputs, stream, token_axis
from .rings import slowest


class Teams:
    """Teams of one size for a question."""

    def __init__(self, document: Document, team: int) -> None:
        self.question, self.team = Question(document, 0), team
        self.tokens = bool(document["job"].get("sequence_parallel", True))
        self.graphs: Document = document["model"].get("operators") or {}
        self.layers = self.question.layers

    @property
    def again(self) -> bool:
        """Whether a backward may have another forward in it."""
        return bool(self.question.job["recompute"] != "none")

    @cached_property
    def homes(self) -> dict[str, list[list[int]]]:
        """For each kind that has teams the nodes of each of them: one, or else whole equal nodes of nothing else."""
        found: dict[str, list[list[int]]] = {}
        question = self.question
        for kind in dict.fromkeys(device.kind for device in question.devices):
            counts = [self._count(node, kind) for node in range(len(question.links))]
            has = [node for node, count in enumerate(counts) if count]
            if max(counts) >= self.team:
                found[kind] = [[node] for node, count in enumerate(counts) for _ in range(count // self.team)]
            elif self._only(kind, has) and self.team % counts[has[0]] == 0:
                nodes = self.team // counts[has[0]]
                rows = [has[first : first + nodes] for first in range(0, len(has), nodes)]
                found[kind] = [row for row in rows if len(row) == nodes]
        return {kind: rows for kind, rows in found.items() if rows}

    def _count(self, node: int, kind: str) -> int:
        return sum((device.node, device.kind) == (node, kind) for device in self.question.devices)

    def _only(self, kind: str, nodes: list[int]) -> bool:
        """Whether these nodes have equally many devices, all of this kind."""
        rows = [[device.kind for device in self.question.devices if device.node == node] for node in nodes]
        return all(row == rows[0] == [kind] * len(row) for row in rows)

    def having(self, kind: str) -> list[int]:
        """The nodes that have devices of a kind."""
        return [node for node in range(len(self.question.links)) if self._count(node, kind)]

    def at_card(self, kind: str) -> int:
        """Devices of a team that use a node's card at once."""
        return self.team // len(self.homes[kind][0])

    @cached_property
    def links(self) -> dict[str, Link]:
        """The slowest link between members, for each kind that has teams: also between nodes where they lie in some."""
        found: dict[str, Link] = {}
        for kind, rows in self.homes.items():
            wide = len(rows[0]) > 1
            has = self.having(kind)
            own = has if wide else sorted({node for row in rows for node in row})
            links = [self.question.links[node] for node in own if not wide or self._count(node, kind) > 1]
            if wide:
                assert self.question.network is not None
                links.append(self.question.network)
            found[kind] = slowest(links)
        return found

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Micro-batch sizes of the question; of those that it names, kinds without teams need no costs."""
        named = [self.question.batch // count for count in self.question.job["micro_batches"]]
        if not named:
            return sizes(self.question)
        for kind in self.links:
            measured = self.question.profiles(kind)
            if not self.question.job["extrapolate"] and not all(min(measured) <= b <= max(measured) for b in named):
                raise ContradictionError(f"micro-batches of {named} lie outside the profiles of {kind}")
        return tuple(dict.fromkeys(named))

    def graph(self, layer: int) -> str:
        """The name of a layer's operators; empty if they are not known."""
        return str(self.layers[layer].get("operators", ""))

    @cached_property
    def firsts(self) -> dict[str, int]:
        """The first layer of each graph of operators."""
        return {self.graph(i): i for i in reversed(range(len(self.layers))) if self.graph(i)}

    @cached_property
    def sequence(self) -> list[bool]:
        """For each layer whether its output is split along tokens; nothing if none is."""
        names = self.question.names
        found = []
        for i in range(len(names) - 1 if self.tokens else 0):
            entries = [self.graphs.get(self.graph(each), {}) for each in (i, i + 1)]
            graphs = [entry.get("operators", []) for entry in entries]
            crossing = {source for layer in self.layers[i + 1 :] for source in layer["inputs"]} & set(names[: i + 1])
            parts = [{op["loops"][TOKEN] for op in graph if TOKEN in op.get("loops", {})} for graph in graphs]
            found.append(
                crossing == {names[i]}
                and [layer["name"] for layer in self.layers if names[i] in layer["inputs"]] == [names[i + 1]]
                and all(graphs)
                and _hands_over(*entries, *graphs)
                and bool(parts[1])
                and not any(each % self.team for each in parts[0] | parts[1])
            )
        return [*found, False] if any(found) else []

    def weights(self, layer: int) -> list[Document]:
        """The weights of a layer's operators."""
        operators = self.graphs[self.graph(layer)]["operators"] if self.graph(layer) else ()
        return [weight for operator in operators for weight in operator.get("weights", ())]

    def document(self) -> Document:
        """The question in which teams are devices, but for the costs of a member."""
        question, document = self.question, self.question.document
        cluster, model = document["cluster"], document["model"]
        nodes = []
        for number, node in enumerate(cluster["nodes"]):
            ends = [(kind, row) for kind, rows in self.homes.items() for row in rows if row[-1] == number]
            order = list(dict.fromkeys(group["kind"] for group in node["devices"]))
            groups = [{"kind": kind, "count": 1} for kind, _ in sorted(ends, key=lambda end: order.index(end[0]))]
            # no other team is where one extends over nodes: all of these are alike
            firsts = [self.homes[kind][0][0] for kind, row in ends if len(row) > 1]
            link = cluster["nodes"][firsts[0] if firsts else number]["link"]
            nodes += [{"devices": groups, "link": link}] if groups else []
        devices = {kind: self.device(kind) for kind in self.links}
        job = {name: value for name, value in document["job"].items() if name != "teams"}
        job["micro_batches"] = [question.batch // size for size in self.sizes]
        return {
            "model": model,
            "cluster": {**cluster, "devices": devices, "nodes": nodes},
            "job": job,
            "solve": document["solve"],
        }

    def device(self, kind: str) -> Document:
        """A kind of device as a team of its own."""
        kept = ("memory", "runtime", "speed_beside_collectives")
        entry = self.question.document["cluster"]["devices"][kind]
        return {name: value for name, value in entry.items() if name in kept} | {
            "team": self.team,
            "spread": len(self.homes[kind][0]) if kind in self.homes else 1,
        }


def _hands_over(before: Document, after: Document, *operators: list[Document]) -> bool:
    """Whether the tensor with a gradient has tokens on both sides, at the same place, and neither side passes it on."""
    made, read = outputs(before), inputs(after)
    own, other = stream(before, made), stream(after, read)
    if not own or not other or len(made) != len(read) or made.index(own) != read.index(other):
        return False
    if own in inputs(before) or other in outputs(after):
        return False
    return token_axis(operators[0], own) == token_axis(operators[1], other) != WHOLE
