"""Ways of teams: strategies of all layers, the question in which teams are devices, and the ways worth searching."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache, wraps
from itertools import product
from typing import Any

from . import slices
from .costs import layer_costs
from .documents import Document
from .graphs import SAMPLE, TOKEN, WHOLE, has_samples, outputs, stream, token_axis, waits
from .placements import Placements
from .rings import rings_of, shapes_of
from .strategies import Figures, Main, Row, Steps, Strategies, Times, fastest, min_of, taken
from .teams import Teams

COUNTS = (1, 4, 16, 64)
"""Numbers of micro-batches for which the fastest strategies are searched, if a step has so many."""

NAMED = {"2d": ("wo",), "2.5d": ("rwo",), "3d": ("wio", "wi", "io")}
"""What products of matrices are split by along each axis, by name: rows, with weights that are gathered or not (w, r),
outputs and inputs."""
SWAPPED = str.maketrans("io", "oi")


def once(method: Callable[..., Any]) -> Callable[..., Any]:
    """Remember what a method of `Ways` returns for a way, which is known by its identity."""

    @wraps(method)
    def remembered(self: "Ways", *given: Any) -> Any:
        key = (method.__name__, *(id(each) if isinstance(each, dict) else each for each in given))
        if key not in self.answers:
            self.answers[key] = given, method(self, *given)  # a way that is held keeps its identity
        return self.answers[key][1]

    return remembered


class Ways:
    """Teams of one size on meshes, for a question."""

    def __init__(self, teams: Teams) -> None:
        self.teams, self.team, self.name = teams, teams.team, str(teams.question.job["strategy"])
        self.answers = dict[object, tuple[Any, Any]]()
        self.strategies_of = cache(Strategies)
        nodes = {len(row) for rows in teams.homes.values() for row in rows}
        axes = teams.question.job["mesh_axes"]
        if self.name and len(nodes) == 1:
            every = [own for own in shapes_of(teams.team, 3) if len(own) in {len(row) for row in NAMED[self.name]}]
            fit = {own for own in every if rings_of(own, teams.team // min(nodes)) is not None}
            self.shapes = {own for own in fit if len(own) == max(map(len, fit))}
        elif nodes == {1}:  # inside a node
            axes = 0 if any(TOKEN in each["makes"] for g in teams.graphs.values() for each in g["operators"]) else axes
            self.shapes = {(teams.team,)} if axes else set[tuple[int, ...]]()
        else:
            every = shapes_of(teams.team, axes) if len(nodes) == 1 else ()
            count = nodes.pop() if nodes else 1
            self.shapes = {own for own in every if rings_of(own, teams.team // count) is not None}

    @property
    def _known(self) -> list[int]:
        """The layers whose operators are known."""
        return [i for i in range(self.teams.question.n) if self.teams.graph(i)]

    def layer(self, i: int, kind: str, size: int, split: Document) -> tuple[Strategies, Document]:
        """A layer, and its strategies in a way, at a size at which it is not possible those of another one."""
        sizes = tuple(split["sizes"])
        ends = _ends(tuple(split["placements"]), split["passes"], i)
        strategies = split["strategies"].get((kind, size)) or next(iter(split["strategies"].values()))
        return self.strategies_of(self.teams, sizes, i, kind, size, ends), strategies[i]

    @once
    def possible(self, split: Document) -> list[int]:
        """The micro-batch sizes whose samples the axes divide that split them."""
        return [size for size in self.teams.sizes if self._runs(split, size)]

    def _runs(self, split: Document, size: int) -> bool:
        kind = next(iter(self.teams.homes))
        for i in self._known:
            member, strategies = self.layer(i, kind, size, split)
            for each in member.operators:
                axes = [
                    n
                    for n, own in zip(member.sizes, member.loops_of(strategies, each["name"]), strict=True)
                    if own == SAMPLE
                ]
                if size % math.prod(axes):
                    return False
            if self._coordinates(i, kind, size, split) is None:
                return False
        return True

    @once
    def _coordinates(self, i: int, kind: str, size: int, split: Document) -> dict[str, int] | None:
        """What a device has of a layer in a way."""
        member, strategies = self.layer(i, kind, size, split)
        return member.coordinates(strategies)

    @once
    def document(self, split: Document) -> Document:
        """The question in which meshes are devices."""
        teams, question, possible = self.teams, self.teams.question, self.possible(split)
        own, model = teams.document(), question.document["model"]
        layers = [
            {name: layer[name] for name in ("name", "kind", "inputs", "frozen") if name in layer}
            | {"parameters": parameters}
            for layer, parameters in zip(teams.layers, self.parameters(split), strict=True)
        ]
        ties = [tie | {"parameters": self.shared(tie, split)} for tie in model.get("ties", ())]
        profiles = [
            {"device": kind, "micro_batch": size, "costs": self.costs(kind, size, split)}
            for kind in teams.links
            for size in possible
        ]
        job = own["job"] | {"micro_batches": [question.batch // size for size in possible]}
        ties = [tie for tie in ties if tie["parameters"] or tie.get("frozen")]
        sliced = {}
        if "slicing" in model:
            keys = {(kind, size): [*self._keys(kind, size, split)] for kind in teams.links for size in possible}
            sliced = {"slicing": model["slicing"] | {"keys": keys}}
        return own | {"job": job, "model": model | {"layers": layers, "profiles": profiles, "ties": ties} | sliced}

    def _keys(self, kind: str, size: int, split: Document) -> Iterator[int]:
        """Bytes of keys and values of each layer, of a slice of a sample on a device."""
        for i, layer in enumerate(self.teams.question.slicing["layers"]):
            member, strategies = self.layer(i, kind, size, split)
            loops = {each["name"]: member.loops_of(strategies, each["name"]) for each in member.operators}
            yield slices.keys_on(layer, loops, tuple(split["sizes"]))

    @once
    def parameters(self, split: Document) -> list[int]:
        """Bytes of each layer's parameters on a device."""
        kind, size, found = next(iter(self.teams.homes)), self.possible(split)[0], list(self.teams.question.parameters)
        for i in self._known:
            member, strategies = self.layer(i, kind, size, split)
            found[i] = member.device(strategies)["parameters"]
        return found

    @once
    def costs(self, kind: str, size: int, split: Document) -> Document:
        """Costs of a device's layers, by their names."""
        rows = {}
        for i, cost in enumerate(layer_costs(self.teams.question, kind, size)):
            row = dict(vars(cost))
            if self.teams.graph(i):
                member, strategies = self.layer(i, kind, size, split)
                own = member.device(strategies)
                row |= {key: own[key] for key in row}
            rows[self.teams.question.names[i]] = row
        return rows

    def shared(self, tie: Document, split: Document | None) -> int:
        """Bytes of shared weights on a device, or on one by itself."""
        first = self.teams.question.place[tie["layers"][0]]
        whole = int(tie.get("parameters", 0))
        if split is None or not self.teams.graph(first):
            return whole
        member, strategies = self.layer(first, next(iter(self.teams.homes)), self.possible(split)[0], split)
        every = own = 0
        for each in member.operators:
            loops = member.loops_of(strategies, each["name"])
            for weight in each.get("weights", ()):
                if weight.get("shared"):
                    every, own = every + weight["size"], own + weight["size"] // member.divided(weight, loops)
        return whole * own // every if every else whole

    def faults(self, split: Document) -> Iterator[str]:
        """What is wrong with a way: sizes, the layers that hand on parts, nothing split, or shared weights apart."""
        teams, sizes = self.teams, tuple(split["sizes"])
        if sizes not in self.shapes | ({(teams.team,)} if not self.name else set()):
            yield f"a mesh of {sizes} is searched, not of {self.shapes}"
            return
        by_mesh = sizes in self.shapes  # else along one axis
        if not by_mesh and any(split["passes"]) and list(split["passes"]) != teams.sequence:
            yield f"outputs of layers {split['passes']} are split along tokens, not of {teams.sequence}"
        sizes = sorted({size for _, size in split["strategies"]})
        possible = set(self.possible(split))
        lacking = possible - {*sizes} if not teams.question.job.get("usual") else set()  # bounds rule sizes out there
        if lacking or not {*sizes} <= possible:
            yield f"a way is searched at {sizes}, not at {sorted(possible)}"
            return
        if not any(self._splits(split, kind, size) for kind, size in split["strategies"]):
            yield "nothing is split" + " but the loss" * (not by_mesh)
        for kind, size in split["strategies"]:
            rows = [self.layer(i, kind, size, split) if teams.graph(i) else None for i in range(teams.question.n)]
            known = [row for row in rows if row is not None]
            on_tokens = (
                TOKEN in member.loops_of(strategies, each["name"])
                for member, strategies in known
                for each in filter(waits, member.operators)
            )
            if not teams.question.job["context_parallel"] and any(on_tokens):
                yield "products run on parts of the tokens against a wish"
            for tied in teams.question.sharing:
                cuts = [self._shared_cuts(*row) for i in tied if (row := rows[i]) is not None]
                unknown = any(rows[i] is None for i in tied)
                if any(own != cuts[0] for own in cuts) or (unknown and any(any(cut) for own in cuts for cut in own)):
                    yield f"shared weights lie in unlike ways: {cuts}"

    def _splits(self, split: Document, kind: str, size: int) -> bool:
        """Whether a way splits any operator on a kind at a micro-batch size; along one axis not only the loss."""
        by_mesh = tuple(split["sizes"]) in self.shapes
        known = (self.layer(i, kind, size, split) for i in self._known)
        return any(
            any(member.loops_of(strategies, each["name"]))
            for member, strategies in known
            for each in member.operators
            if by_mesh or each["name"] not in member.loss
        )

    def _by_name(self, splits: Sequence[Document]) -> Iterator[str]:
        """Wrong about ways of a named strategy: products that are not split by it, those of a cube by one of two."""
        rows = [row for row in NAMED[self.name] if len(row) in {len(own) for own in self.shapes}]
        named = [{row, row.translate(SWAPPED) if self.name == "3d" else row} for row in rows]
        for split in splits:
            kind, size = next(iter(self.teams.homes)), self.possible(split)[0]
            every = [self.layer(i, kind, size, split) for i in self._known]
            if not any(all(member.follows(strategies, names) for member, strategies in every) for names in named):
                yield f"products are not split by {self.name}"

    @staticmethod
    def _shared_cuts(member: Strategies, strategies: Document) -> list[tuple[object, ...]]:
        """Along each axis the dimension of each shared weight that is split, or whether gradients are parts."""
        found = []
        for each in member.operators:
            for weight in (weight for weight in each.get("weights", ()) if weight.get("shared")):
                row: list[object] = []
                for loop in member.loops_of(strategies, each["name"]):
                    groups = tuple(each.get("groups", {}).get(loop, ()))
                    ratio = tuple(own // math.gcd(*groups) for own in groups)
                    cut = (weight["loops"].index(loop), ratio) if loop and loop in weight["loops"] else ()
                    row.append(cut or ("parts" if loop and loop in each["makes"] else None))
                found.append(tuple(row))
        return found

    def unsearched(self, splits: Sequence[Document]) -> Iterator[str]:
        """Wrong about the ways that are searched: impossible ones, none at all, or none of the fastest."""
        teams, question = self.teams, self.teams.question
        cells = [(kind, size) for kind in teams.homes for size in teams.sizes]
        if any(fault for split in splits for fault in self.faults(split)):
            yield next(fault for split in splits for fault in self.faults(split))
            return
        if self.name:
            yield from self._by_name(splits)
        if question.sharing or self.name:
            return
        plain = (teams.team,)
        cases = {(sizes, (WHOLE,) * len(sizes), False): [False] * question.n for sizes in self.shapes}
        cases |= {
            (tuple(split["sizes"]), tuple(split["placements"]), False): split["passes"]
            for split in splits
            if tuple(split["sizes"]) in self.shapes
        }
        cases[plain, (WHOLE,), True] = [False] * question.n
        if any(teams.sequence):
            entry = teams.graphs[teams.graph(teams.sequence.index(True))]
            axis = token_axis(entry["operators"], stream(entry, outputs(entry)))
            axis += not any(map(has_samples, teams.graphs.values()))
            cases[plain, (axis,), True] = teams.sequence
        for kind, size in cells:
            if size not in (min(teams.sizes), max(teams.sizes)):
                continue
            found = [self._figures(kind, size, split) for split in splits if size in self.possible(split)]
            every_step = list(product(COUNTS, (1, 2) if teams.again else (1,)))
            later = (
                3
                * question.kinds[kind].get("shard_overhead", 0)
                * sum(len(teams.graphs[teams.graph(i)]["operators"]) for i in range(question.n) if teams.graph(i))
            )  # a way may split fewer layers for it
            unsplit = {sizes: self._unsplit(kind, size, sizes) for sizes in self.shapes | {plain}}
            for (sizes, placements, is_plain), passes in cases.items():
                least = self._least(kind, size, sizes, placements, passes, every_step, is_plain)
                if 0 in placements and not is_plain:  # which outputs are split is said by means
                    seen = {tuple(split["passes"]) for split in splits if tuple(split["sizes"]) == sizes}
                    others = {*seen, (False,) * question.n} - {tuple(passes)}
                    own, *rest = [
                        self._by_mean(kind, size, sizes, placements, each, every_step) for each in (passes, *others)
                    ]
                    least = {
                        step: best
                        for step, best in least.items()
                        if own and all(one and own[step] + 8 * question.n * (step[0] + 1) < one[step] for one in rest)
                    }
                for (count, times), best in least.items():
                    if count * size > question.job["batch"] or best >= taken(unsplit[sizes], count, times):
                        continue
                    whole = taken(unsplit[sizes], count, times) if later else math.inf  # which may be the best
                    have = min((taken(each, count, times) for each in found), default=whole)
                    if have > best + best // 16 + 8 * question.n * (count + 1) + count * times * later:
                        what = f"fastest strategies of {sizes} for {count} micro-batches of {times} forwards on {kind}"
                        yield f"{what} take {best} in {placements}, not {have}"

    def _figures(self, kind: str, size: int, split: Document) -> Figures:
        return _figures(self._coordinates(i, kind, size, split) for i in self._known)

    def _unsplit(self, kind: str, size: int, sizes: tuple[int, ...]) -> Figures:
        """The same if every device does everything."""
        whole = (WHOLE,) * len(sizes)
        own = {"loops": ("",) * len(sizes), "gathers": (False,) * len(sizes), "held": whole}
        rows = []
        for i in self._known:
            member = self.strategies_of(self.teams, sizes, i, kind, size, (whole, whole))
            sums = dict.fromkeys(member.bytes, whole)
            rows.append(member.coordinates({"operators": dict.fromkeys(member.makers, own), "sums": sums}))
        return _figures(rows)

    def _least(
        self,
        kind: str,
        size: int,
        sizes: tuple[int, ...],
        placements: Placements,
        passes: Sequence[bool],
        steps: Sequence[Steps],
        plain: bool,
    ) -> dict[Steps, int]:
        """The least nanoseconds of all strategies for each sort of step; nothing if there are too many strategies.

        ``plain``: of those without samples, gathered weights and, between whole ends, tokens.

        Nor where strategies that split nothing are as fast: they are no way to run a team. Layers of one graph are
        split alike; those that are ``plain`` in their main strategies, others if the same is around them.
        """
        found, alone = dict.fromkeys(steps, 0), dict.fromkeys(steps, 0)
        for graph in filter(None, dict.fromkeys(map(self.teams.graph, range(self.teams.question.n)))):
            rows = []
            for members in self._alike(graph, kind, size, sizes, placements, passes, plain):
                own, unsplit = self._of_alike(members, steps)
                if not own:
                    return {}
                rows.append((members[0].on_tokens, own))
                alone = {step: alone[step] + unsplit[step] for step in steps}
            best = _together(rows) if plain else [_sum(min_of(own.values()) for _, own in rows)]
            found = {step: found[step] + min(each[step] for each in best) for step in steps}
        return {step: best for step, best in found.items() if best < alone[step]}

    def _by_mean(
        self,
        kind: str,
        size: int,
        sizes: tuple[int, ...],
        placements: Placements,
        passes: Sequence[bool],
        steps: Sequence[Steps],
    ) -> dict[Steps, Fraction]:
        """What all layers take if each of them takes the mean of those of its graph, for each sort of step.

        Nothing if there are too many strategies.
        """
        found = dict.fromkeys(steps, Fraction())
        for i in self._known:
            ends = _ends(placements, passes, i)
            mean = self._mean(self.teams.graph(i), kind, size, sizes, ends, tuple(steps))
            if not mean:
                return {}
            found = {step: found[step] + mean[step] for step in steps}
        return found

    @once
    def _mean(
        self,
        graph: str,
        kind: str,
        size: int,
        sizes: tuple[int, ...],
        ends: tuple[Placements, Placements],
        steps: tuple[Steps, ...],
    ) -> dict[Steps, Fraction]:
        """The mean of what the layers of a graph take with these placements before and behind them."""
        layers = [i for i in self._known if self.teams.graph(i) == graph]
        own, _ = self._of_alike([Strategies(self.teams, sizes, i, kind, size, ends) for i in layers], steps)
        return {step: Fraction(least, len(layers)) for step, least in min_of(own.values()).items()}

    def _alike(
        self,
        graph: str,
        kind: str,
        size: int,
        sizes: tuple[int, ...],
        placements: Placements,
        passes: Sequence[bool],
        plain: bool,
    ) -> list[list[Strategies]]:
        """The layers of a graph, by what is around them."""
        found: dict[object, list[Strategies]] = {}
        for i in (i for i in range(self.teams.question.n) if self.teams.graph(i) == graph):
            ends = _ends(placements, passes, i)
            member = Strategies(self.teams, sizes, i, kind, size, ends)
            member.plain = plain
            found.setdefault(ends, []).append(member)
        return list(found.values())

    @staticmethod
    def _of_alike(members: list[Strategies], steps: Sequence[Steps]) -> tuple[dict[Main, Times], Times]:
        """The least of layers that are split alike, for all their main strategies; and of those that split nothing."""
        rows: dict[tuple[bool, Main], list[Row]] = {}
        alone = members[0].loss if members[0].plain else ()  # what splits only this is no way along one axis
        for strategies in members[0].choices():
            own = [row for member in members if (row := member.coordinates(strategies)) is not None]
            if len(own) == len(members):
                is_split = any(
                    any(each["loops"]) for name, each in strategies["operators"].items() if name not in alone
                )
                row = {name: sum(row[name] for row in own) for name in own[0]}, members[0].savings(strategies)
                rows.setdefault((is_split, members[0].main(strategies)), []).append(row)
        least = [(key, fastest(own, len(members), steps)) for key, own in rows.items()]
        found = {main: min_of(times for (_, own), times in least if own == main) for _, main in rows}
        return found, min_of(times for (is_split, _), times in least if not is_split)


def _ends(placements: Placements, passes: Sequence[bool], i: int) -> tuple[Placements, Placements]:
    """Placements of the tensors before and behind a layer: whole where outputs do not pass in parts."""
    whole = (WHOLE,) * len(placements)
    return placements if i and passes[i - 1] else whole, placements if passes[i] else whole


def _together(rows: Sequence[tuple[bool, dict[Main, Times]]]) -> list[Times]:
    """What layers of a graph take under the same main strategies, of which those without tokens beside have none."""
    found = []
    for main in {main for _, own in rows for main in own}:
        without = frozenset(each for each in main if TOKEN not in each[1])
        every = [own.get(main if on_tokens else without) for on_tokens, own in rows]
        if None not in every:
            found.append(_sum(times for times in every if times))
    return found


def _sum(rows: Iterable[Times]) -> Times:
    every = list(rows)
    return {step: sum(row[step] for row in every) for step in every[0]}


def _figures(rows: Iterable[dict[str, int] | None]) -> Figures:
    """What layers take of which devices have so much."""
    time = summed = again = 0
    for row in rows:
        assert row is not None
        time, summed = time + row["forward"] + row["backward"], summed + row["summed"] + row["update"]
        again += row["forward"]
    return time, summed, again
