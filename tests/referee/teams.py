"""Teams of devices that share every layer: the question in which teams are devices, and the shards worth searching."""

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cached_property
from itertools import product

from .costs import ContradictionError, layer_costs, sizes
from .documents import Document, Link, Question
from .members import INPUT, TOKEN, WHOLE, Choice, Cuts, Member, inputs, outputs, stream, token_axis, waits
from .rings import slowest

MOST = 128
"""Combinations up to which all ways to split unlike layers are searched."""
PREFERRED = (0, 2, 3)
"""Figures of which all layers have the least where these are more: time, parameters, saved bytes; also a fifth one."""
Split = dict[str, Cuts]
"""The shards of each graph."""
Along = int | tuple[int, tuple[int, ...]]
"""An axis, and the groups that it consists of, if there are several."""


class ImpossibleError(Exception):
    """Shards that a layer cannot have."""


class Teams:
    """Teams of one size for a question."""

    def __init__(self, document: Document, team: int, tokens: bool = False) -> None:
        self.question, self.team, self.tokens = Question(document, 0), team, tokens
        self.graphs: Document = document["model"].get("operators") or {}
        self.layers = self.question.layers
        self._choices: dict[tuple[object, ...], list[Choice]] = {}

    @property
    def again(self) -> bool:
        """Whether a backward may have another forward in it."""
        return bool(self.question.job["recompute"] != "none")

    def compared(self, choice: Choice) -> tuple[int, ...]:
        """What shards are compared in: four numbers, and where layers may be recomputed the time with two forwards."""
        return (*choice.four, 2 * choice.forward + choice.backward) if self.again else choice.four

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
                and all(graphs)
                and _hands_over(*entries, *graphs)
                and bool(parts[1])
                and not any(each % self.team for each in parts[0] | parts[1])
            )
        return [*found, False] if any(found) else []

    def choices(self, layer: int, kind: str, size: int) -> list[Choice]:
        """All signatures of a layer; of each, the layouts of gradients that take least."""
        cost, parameters = layer_costs(self.question, kind, size)[layer], self.question.parameters[layer]
        ends = self.ends(layer)
        key = self.graph(layer), kind, size, cost, parameters, ends
        if key not in self._choices:
            own = Member(
                self.graphs[self.graph(layer)],
                self.question,
                kind,
                cost,
                parameters,
                team=self.team,
                size=size,
                link=self.links[kind],
                sharing=self.at_card(kind) if len(self.homes[kind][0]) > 1 else 1,
                ends=ends,
                loss=self.question.job["vocabulary_parallel"],
                context=self.question.job["context_parallel"],
            )
            self._choices[key] = list(own.choices())
        return self._choices[key]

    def ends(self, layer: int) -> tuple[bool, bool]:
        """Whether a layer's input and its output are split along tokens."""
        return (layer > 0 and self.sequence[layer - 1], self.sequence[layer]) if self.sequence else (False, False)

    def on_tokens(self, graph: str) -> list[Document]:
        """The operators of a graph that run on parts of the tokens only if the plan says so."""
        return [each for each in self.graphs[graph]["operators"] if waits(each)]

    def member(self, layer: int, kind: str, size: int, split: Split) -> Choice:
        """What a member has of a layer under given shards."""
        own = split[self.graph(layer)]
        if not any(self.ends(layer)):
            own -= {cut for cut in own for each in self.on_tokens(self.graph(layer)) if cut[0] == each["name"]}
        fitting = [each for each in self.choices(layer, kind, size) if each.shards == own]
        if not fitting:
            raise ImpossibleError(f"layer {layer} cannot split {sorted(own)}")
        return min(fitting, key=lambda each: each.order)

    def weights(self, layer: int) -> list[Document]:
        """The weights of a layer's operators."""
        operators = self.graphs[self.graph(layer)]["operators"] if self.graph(layer) else ()
        return [weight for operator in operators for weight in operator.get("weights", ())]

    def document(self, split: Split) -> Document:
        """The question in which teams are devices."""
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
        layers = [
            {name: layer[name] for name in ("name", "inputs", "frozen") if name in layer} | {"parameters": parameters}
            for layer, parameters in zip(self.layers, self.parameters(split), strict=True)
        ]
        profiles = [
            {"device": kind, "micro_batch": size, "costs": self.costs(kind, size, split)}
            for kind in self.links
            for size in self.sizes
        ]
        ties = [tie | {"parameters": self.shared(tie, split)} for tie in model.get("ties", ())]
        ties = [tie for tie in ties if tie["parameters"] or tie.get("frozen")]
        job = {name: value for name, value in document["job"].items() if name != "teams"}
        job["micro_batches"] = [question.batch // size for size in self.sizes]
        return {
            "model": {**model, "layers": layers, "profiles": profiles, "ties": ties},
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

    def parameters(self, split: Split) -> list[int]:
        """Bytes of each layer's parameters on one member."""
        kind, size = next(iter(self.links)), self.sizes[0]
        return [
            self.member(i, kind, size, split).parameters if self.graph(i) else whole
            for i, whole in enumerate(self.question.parameters)
        ]

    def costs(self, kind: str, size: int, split: Split) -> Document:
        """Costs of a member's layers, by their names."""
        rows = {}
        for i, cost in enumerate(layer_costs(self.question, kind, size)):
            row = dict(vars(cost))
            if self.graph(i):
                own = vars(self.member(i, kind, size, split))
                row |= {name: value for name, value in own.items() if name not in ("shards", "parameters")}
                if self.splits_loss(i, split):
                    row["output"] = -(-row["output"] // self.team)
                elif self.sequence and self.sequence[i]:
                    row["output"] -= self._left_out(self.graphs[self.graph(i)], row["output"], size)
            rows[self.question.names[i]] = row
        return rows

    def _left_out(self, graph: Document, output: int, size: int) -> int:
        """Bytes of a layer's output that a member has not: those of the tensor in parts of the tokens, but for 1/T."""
        made = outputs(graph)
        bytes_ = {INPUT: graph.get("input", 0)} | graph.get("inputs", {})
        bytes_ |= {each["name"]: each["output"] for each in graph["operators"]}
        whole = min(output, size * sum(bytes_[name] for name in made if name != stream(graph, made)))
        return (output - whole) * (self.team - 1) // self.team

    def shared(self, tie: Document, split: Split | None) -> int:
        """Bytes of shared weights on a member, or on a device by itself."""
        if split is None:
            return int(tie.get("parameters", 0))
        first = self.question.place[tie["layers"][0]]
        cut = dict(split[self.graph(first)]) if self.graph(first) else {}
        shared = [weight for weight in self.weights(first) if weight.get("shared")]
        whole = sum(weight["size"] for weight in shared)
        own = sum(weight["size"] // (self.team if weight["name"] in cut else 1) for weight in shared)
        return int(tie.get("parameters", 0)) * own // whole if whole else int(tie.get("parameters", 0))

    def name(self, split: Split, layers: Iterable[int]) -> frozenset[tuple[str, Along]]:
        """Cuts of some layers as a plan states them: weights of layers, and the groups of their axes."""
        return frozenset(
            (f"{self.layers[i]['name']}.{weight}", self.along(self.graph(i), weight, axis))
            for i in layers
            if self.graph(i)
            for weight, axis in split[self.graph(i)]
            if weight in [each["name"] for each in self.weights(i)]
        )

    def context(self, split: Split, layers: Iterable[int]) -> Cuts:
        """What some layers run on parts of the tokens, as a plan states it: matrices, and attention by its number."""
        found: set[tuple[str, int]] = set()
        for i in layers:
            if not self.graph(i) or not any(self.ends(i)):
                continue
            name, own = self.layers[i]["name"], dict(split[self.graph(i)])
            attention = [each["name"] for each in self.on_tokens(self.graph(i)) if each.get("attention")]
            for each in self.on_tokens(self.graph(i)):
                if each["name"] not in own:
                    continue
                if each.get("attention"):
                    found.add((f"{name}, {attention.index(each['name'])}", min(own[each["name"]], 0)))
                else:
                    matrices = [weight for weight in each.get("weights", ()) if len(weight["loops"]) > 1]
                    found |= {(f"{name}.{weight['name']}", 0) for weight in matrices}
        return frozenset(found)

    def along(self, graph: str, name: str, axis: int) -> Along:
        """The axis of a weight, with its groups in lowest terms if it has any."""
        for operator in self.graphs[graph]["operators"]:
            for weight in operator.get("weights", ()):
                groups = operator.get("groups", {}).get(weight["loops"][axis]) if weight["name"] == name else None
                if groups:
                    return axis, tuple(each // math.gcd(*groups) for each in groups)
        return axis

    def loss(self, graph: str) -> list[str]:
        """The operator of a graph with which a loss is split, if there is one."""
        return list((self.graphs[graph].get("loss") or {"operators": []})["operators"][:1])

    def splits_loss(self, layer: int, split: Split) -> bool:
        """Whether a layer's loss is split."""
        graph = self.graph(layer)
        return bool(graph) and any(name in self.loss(graph) for name, _ in split[graph])

    def splits_weights(self, graph: str, shards: Cuts) -> bool:
        """Whether more than the loss is split."""
        return any(name not in self.loss(graph) for name, _ in shards)

    def shared_axes(self, graph: str, shards: Cuts) -> tuple[Along | None, ...]:
        """The axis of each weight that others share; None for whole ones."""
        shared = [weight["name"] for weight in self.weights(self.firsts[graph]) if weight.get("shared")]
        axes = dict(shards)
        return tuple(self.along(graph, name, axes[name]) if name in axes else None for name in shared)

    def agrees(self, axes: dict[str, tuple[Along | None, ...]]) -> bool:
        """Whether layers that share weights cut these alike; those without operators keep them whole."""
        for tied in self.question.sharing:
            own = [axes[graph] for graph in map(self.graph, tied) if graph]
            whole = len(own) < len(tied)
            if len(set(own)) > 1 or (whole and any(axis is not None for row in own for axis in row)):
                return False
        return True


def _hands_over(before: Document, after: Document, *operators: list[Document]) -> bool:
    """Whether the tensor with a gradient has tokens on both sides, at the same place, and neither side passes it on."""
    made, read = outputs(before), inputs(after)
    own, other = stream(before, made), stream(after, read)
    if not own or not other or len(made) != len(read) or made.index(own) != read.index(other):
        return False
    if own in inputs(before) or other in outputs(after):
        return False
    return token_axis(operators[0], own) != WHOLE and token_axis(operators[1], other) != WHOLE


def _impossible(teams: Teams, graph: str, every: Iterable[Cuts]) -> set[Cuts]:
    """Shards that a layer with the same operators cannot have, whose tensors at its ends are split otherwise."""
    kind, size = next(iter(teams.links)), teams.sizes[0]
    found = set()
    for shards in every:
        for i in range(len(teams.layers)):
            if teams.graph(i) == graph:
                try:
                    teams.member(i, kind, size, {graph: shards})
                except ImpossibleError:
                    found.add(shards)
    return found


def unsearched(teams: Teams, searched: Iterable[Split]) -> Iterator[str]:
    """What is wrong with the shards that were searched: impossible ones, and such that should have been."""
    searched = list(searched)
    if teams.question.job["strategy"]:  # only meshes have it
        yield from ["teams without a mesh are searched"] * bool(searched)
        return
    cells = [(kind, size) for kind in teams.links for size in teams.sizes]
    rows = {graph: [teams.choices(first, kind, size) for kind, size in cells] for graph, first in teams.firsts.items()}
    possible = {graph: {each.shards for each in own[0]} for graph, own in rows.items()}
    for split in searched:
        if set(split) != set(possible) or any(shards not in possible[graph] for graph, shards in split.items()):
            yield f"shards {split} are impossible"
            return
        if any(shards in _impossible(teams, graph, possible[graph]) for graph, shards in split.items()):
            yield f"shards {split} are impossible in a later layer"
        if not any(teams.splits_weights(graph, shards) for graph, shards in split.items()):
            yield "nothing is split"
        if not teams.agrees({graph: teams.shared_axes(graph, shards) for graph, shards in split.items()}):
            yield f"shards {split} tell shared weights apart"
    if len({frozenset(split.items()) for split in searched}) < len(searched):
        yield "shards are searched twice"
    if math.prod(map(len, possible.values())) > MOST and _is_narrowed(teams, rows, cells, searched):
        return
    axes = {graph: {teams.shared_axes(graph, shards) for shards in own} for graph, own in possible.items()}
    together = [dict(zip(axes, row, strict=True)) for row in product(*axes.values())]
    together = [row for row in together if teams.agrees(row)]
    for graph, first in teams.firsts.items():
        own = {split[graph] for split in searched} | _impossible(teams, graph, possible[graph])
        if not _beside_whole(teams, graph, searched):
            own |= {shards for shards in possible[graph] if not teams.splits_weights(graph, shards)}
        figures = {shards: _figures(teams, first, rows[graph], cells, shards) for shards in possible[graph]}
        for axis in {row[graph] for row in together}:
            alike = [shards for shards in possible[graph] if teams.shared_axes(graph, shards) == axis]
            covered = {
                shards
                for shards in alike
                if any(
                    all(a <= b for a, b in zip(figures[each], figures[shards], strict=True))
                    for each in own & set(alike)
                )
            }
            for (kind, size), choices in zip(cells, rows[graph], strict=True):
                among = [each for each in choices if each.shards in alike]
                for figures_of in _least({teams.compared(each) for each in among}):
                    ways = {each.shards for each in among if teams.compared(each) == figures_of}
                    if not ways & covered:
                        shards = [sorted(way) for way in ways]
                        yield f"{graph}: shards {shards} have {figures_of} on {kind} at {size} and are left out"


def _is_narrowed(
    teams: Teams, rows: dict[str, list[list[Choice]]], cells: list[tuple[str, int]], searched: list[Split]
) -> bool:
    """Whether there are too many combinations, and in each one searched all layers have least of the same figure."""
    each_has = 5 if teams.again else 4
    wanted = (*PREFERRED, 4) if teams.again else PREFERRED
    count, preferred = 1, [set(wanted) for _ in searched]
    for graph, first in teams.firsts.items():
        every = {each.shards for each in rows[graph][0]}
        figures = {shards: _figures(teams, first, rows[graph], cells, shards) for shards in every}
        groups: dict[tuple[Along | None, ...], list[Cuts]] = {}
        for shards in every:
            groups.setdefault(teams.shared_axes(graph, shards), []).append(shards)
        listed = {axis: _listed(teams, rows[graph], set(alike)) for axis, alike in groups.items()}
        count *= sum(len(_least({figures[each] for each in own})) for own in listed.values())
        for split, possible in zip(searched, preferred, strict=True):
            own = split[graph]
            among = listed[teams.shared_axes(graph, own)]
            possible &= {
                k
                for k in wanted
                if sum(figures[own][k::each_has]) <= min(sum(figures[each][k::each_has]) for each in among)
            }
    return count > MOST and all(preferred)


def _listed(teams: Teams, rows: list[list[Choice]], alike: set[Cuts]) -> set[Cuts]:
    """Shards of choices that no other choice dominates on some kind at some size."""
    found: set[Cuts] = set()
    for choices in rows:
        among = [each for each in choices if each.shards in alike]
        least = set(_least({teams.compared(each) for each in among}))
        found |= {each.shards for each in among if teams.compared(each) in least}
    return found


def _beside_whole(teams: Teams, graph: str, searched: list[Split]) -> bool:
    """Whether there are shards of other graphs with which a whole graph should have been searched."""
    others = {
        name: {
            (teams.shared_axes(name, shards), teams.splits_weights(name, shards))
            for shards in (frozenset(), *(split[name] for split in searched))
        }
        for name in teams.firsts
        if name != graph
    }
    whole = {graph: teams.shared_axes(graph, frozenset())}
    rows = (dict(zip(others, row, strict=True)) for row in product(*others.values()))
    return any(
        any(cut for _, cut in row.values()) and teams.agrees(whole | {name: axes for name, (axes, _) in row.items()})
        for row in rows
    )


def _least(points: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [p for p in points if not any(q != p and all(a <= b for a, b in zip(q, p, strict=True)) for q in points)]


def _figures(
    teams: Teams, layer: int, rows: list[list[Choice]], cells: list[tuple[str, int]], shards: Cuts
) -> tuple[int, ...]:
    """What shards are compared in, for every kind and size; bytes are in 1024ths of the layer's."""
    found: list[int] = []
    for (kind, size), choices in zip(cells, rows, strict=True):
        cost = layer_costs(teams.question, kind, size)[layer]
        best = min((each for each in choices if each.shards == shards), key=lambda each: each.order)
        wholes = teams.question.parameters[layer], cost.saved
        found += best.four[:2]
        found += [round(Fraction(1024 * own, max(whole, 1))) for own, whole in zip(best.four[2:], wholes, strict=True)]
        found += teams.compared(best)[4:]
    return tuple(found)
