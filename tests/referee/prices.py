"""Prices of stages: times, bytes, tensors and sums of gradients, sharded or whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import ceil, lcm

from . import slices
from .buffers import Unit, with_collectives
from .costs import ITEM, Costs, Groups, gradient_bytes, state_bytes
from .documents import Device, Question
from .rings import occupancy, ring, still_to_sum, sum_of_copies, wait_for_gathers, waits_in_turn


@dataclass(frozen=True)
class Stage:
    """One replica of a stage, as the simulation needs it."""

    forward: int
    backward: int
    input_gradient: int
    weight_gradient: int
    update: int
    reduce: int
    gather: int
    resident: int
    held: int
    workspace: int
    forward_workspace: int
    runtime: int
    limit: int | None
    slices: dict[str, list[int]] | None = None

    def need(self, in_flight: int, lanes: int) -> int:
        """Bytes with so many micro-batches in flight; on a second lane a forward runs beside the backward."""
        beside = self.forward_workspace if lanes == 2 else 0
        return self.runtime + self.resident + in_flight * self.held + self.workspace + beside


@dataclass(frozen=True)
class Way:
    """A tensor's way: how long it keeps its link resources busy, how much later it is there, and these resources."""

    occupancy: int
    latency: int
    resources: tuple[str, ...]


class Prices:
    """Costs of one question, looked up once each."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._tables: dict[tuple[str, int], list[Costs]] = {}
        self._choices: dict[tuple[object, ...], tuple[int, ...] | None] = {}

    def state(self, kind: str) -> list[int]:
        """Bytes of each layer's optimiser state on a kind of device."""
        return [state_bytes(self.question, parameters) for parameters in self.question.parameters_on(kind)]

    def table(self, kind: str, size: int) -> list[Costs]:
        """Every layer on a kind of device at a micro-batch size."""
        if (kind, size) not in self._tables:
            rows = slices.costs_of(self.question, kind, size)
            gradients = [more for _, more in self.keys(kind, size)]
            self._tables[kind, size] = [
                replace(row, saved=row.saved + more) for row, more in zip(rows, gradients, strict=True)
            ]
        return self._tables[kind, size]

    def keys(self, kind: str, size: int) -> list[tuple[int, int]]:
        """Bytes of each layer's keys and values of a slice, and of their gradients; of whole sequences none."""
        question = self.question
        if question.slices == 1:
            return [(0, 0)] * question.n
        own = question.slicing.get("keys", {}).get((kind, size))
        kept = [size * each for each in own or (sum(layer["keys"].values()) for layer in question.slicing["layers"])]
        return [(each, slices.gradient_bytes(each, question.dtype)) for each in kept]

    def again_held(self, kind: str, size: int, i: int) -> int:
        """Bytes that a layer holds which is computed again: its output, keys and room for the gradients of these."""
        return self.table(kind, size)[i].output + sum(self.keys(kind, size)[i])

    def of_slices(self, kind: str, size: int, i: int) -> tuple[list[int], list[int]]:
        """Nanoseconds of a layer's forward and backward, for each slice."""
        forward, backward, *_ = self.passes_of_slices(kind, size, i)
        return forward, backward

    def passes_of_slices(self, kind: str, size: int, i: int) -> list[list[int]]:
        """The same, and of the two parts of the backward."""
        row, count = self.table(kind, size)[i], self.question.slices
        times = row.forward, row.backward, row.input_gradient, row.weight_gradient
        if count == 1:
            return [[time] for time in times]
        shares = slices.shares_of(self.question, kind, size, i)
        return [slices.times(*each, count) for each in zip(times, shares, strict=True)]

    def _stage_slices(
        self, kind: str, size: int, own: Sequence[int], again: Sequence[int]
    ) -> dict[str, list[int]] | None:
        if self.question.slices == 1:
            return None
        rows = {i: self.passes_of_slices(kind, size, i) for i in own}
        count = range(self.question.slices)
        repeated = [sum(rows[i][0][k] for i in again) for k in count]
        every = {name: [sum(rows[i][n][k] for i in own) for k in count] for n, name in enumerate("FBIW")}
        return every | {name: [a + b for a, b in zip(every[name], repeated, strict=True)] for name in "BI"}

    def sent(self, groups: Groups, size: int, layers: Sequence[Sequence[int]], s: int) -> int:
        """Bytes that come to stage s: every output of an earlier layer read here or later, as the sender states.

        Where teams differ in size, the smaller parts are sent.
        """
        kinds = groups[s - 1][0].kind, groups[s][0].kind
        both = [self._crossing(kind, size, layers, s) for kind in kinds]
        return both[0] if len(set(map(self.question.team, kinds))) == 1 else min(both)

    def received(self, groups: Groups, size: int, layers: Sequence[Sequence[int]], s: int) -> int:
        """Bytes of these that stage s keeps: what is sent, or where teams differ in size, its own parts."""
        if s == 0:
            return 0
        before, own = groups[s - 1][0].kind, groups[s][0].kind
        alike = self.question.team(before) == self.question.team(own)
        return self._crossing(before if alike else own, size, layers, s)

    def _crossing(self, kind: str, size: int, layers: Sequence[Sequence[int]], s: int) -> int:
        before = {i for own in layers[:s] for i in own}
        read = {source for own in layers[s:] for i in own for source in self.question.reads[i]}
        table = self.table(kind, size)
        return sum(table[i].output for i in before & read)

    def resident(self, groups: Groups, layers: Sequence[Sequence[int]], s: int) -> int:
        """Weights, gradients and optimiser state of a stage's layers, and of copies of what others share."""
        level, count, kind = self.question.level, len(groups[s]), groups[s][0].kind
        parameters, state = self.question.parameters_on(kind), self.state(kind)
        share, of_gradients, of_weights = (count if level > shared else 1 for shared in range(3))
        gradients = [gradient_bytes(self.question, size) for size in parameters]
        whole = parameters if level == 2 and count > 1 else [0] * self.question.n  # beside the share
        of_weights = count if level == 2 else of_weights
        own = sum(
            whole[i] - (-parameters[i] // of_weights) - (-gradients[i] // of_gradients) - (-state[i] // share)
            for i in layers[s]
        )
        copies = [size for tied, size in self.question.ties if _copied(tied, groups, layers, s)]
        own += sum(-(-self.question.frozen[i] // (count if level == 3 else 1)) for i in layers[s])
        own += sum(size for tied, size in self.question.frozen_ties if _copied(tied, groups, layers, s))
        own += sum(
            size + gradient_bytes(self.question, size) - (-state_bytes(self.question, size) // share) for size in copies
        )
        again = [parameters[i] + gradients[i] for i in layers[s]]  # the second version, and its gradients
        again += [size + gradient_bytes(self.question, size) for size in copies]
        return own + sum(again if self.question.job["staleness"] else ())

    def recomputed(
        self, groups: Groups, size: int, layers: Sequence[Sequence[int]], s: int, in_flight: int, lanes: int
    ) -> tuple[int, ...] | None:
        """The layers that a stage computes again: of all sets with which it fits, one of the least forward time."""
        mode, own = self.question.job["recompute"], tuple(layers[s])
        kind = groups[s][0].kind
        limit = self.question.limit(kind)
        received = self.received(groups, size, layers, s)
        fixed = self.resident(groups, layers, s) + self.question.runtime(kind)
        key = groups[s], size, own, received, fixed, in_flight, lanes
        if key not in self._choices:
            table, waits = self.table(kind, size), self.forward_waits(groups, size, s, range(self.question.n))
            sets: Iterator[tuple[int, ...]] = _subsets(own)
            if mode == "none":
                sets = iter([()])
            elif mode == "full":
                sets = iter([own])
            best: tuple[int, tuple[int, ...]] | None = None
            for again in sets:
                held = received + sum(self.again_held(kind, size, i) if i in again else table[i].saved for i in own)
                peak = self.workspace(table, own, again, len(groups[s]))
                peak += (lanes - 1) * max(table[i].workspace for i in own)
                if limit is None or fixed + in_flight * held + peak <= limit:
                    cost = sum(table[i].forward + waits[i] for i in again)
                    if best is None or cost < best[0]:
                        best = cost, again
                    if not again:
                        break
            self._choices[key] = None if best is None else best[1]
        return self._choices[key]

    def stage(
        self, groups: Groups, size: int, layers: Sequence[Sequence[int]], s: int, again: Sequence[int], reduce: int
    ) -> Stage:
        """The numbers of a stage."""
        kind, own, question = groups[s][0].kind, layers[s], self.question
        table = self.table(kind, size)
        share = len(groups[s]) if question.level else 1
        update = sum(-(-table[i].update // share) for i in own)
        for tied, bytes_ in question.ties:
            if _copied(tied, groups, layers, s):
                whole = question.parameters_on(kind)[tied[0]]
                update += -(-(table[tied[0]].update * bytes_ // whole) // share)
        update += self._lost(groups, s, own) if question.job["staleness"] else 0
        received = self.received(groups, size, layers, s)
        full = question.job["recompute"] == "full"  # then the backward's own waits are all
        every = range(question.n)  # what is computed again waits as if its stage began with the first layer
        waits = dict.fromkeys(own, 0) if full else self.forward_waits(groups, size, s, every)
        repeated = sum(table[i].forward + waits[i] for i in again)
        forward, backward = self.passes(groups, size, s, own)
        parted = [i for i in own if table[i].input_gradient + table[i].weight_gradient]
        unparted = sum(table[i].backward for i in own if i not in parted) if parted else 0
        return Stage(
            forward=forward,
            backward=backward + repeated,
            input_gradient=sum(table[i].input_gradient for i in own) + unparted + repeated,
            weight_gradient=sum(table[i].weight_gradient for i in own),
            update=update,
            reduce=reduce,
            gather=self.gather(groups, size, layers, s),
            resident=self.resident(groups, layers, s),
            held=received + sum(self.again_held(kind, size, i) if i in again else table[i].saved for i in own),
            workspace=self.workspace(table, own, again, len(groups[s])),
            forward_workspace=max(table[i].workspace for i in own),
            runtime=question.runtime(kind),
            limit=question.limit(kind),
            slices=self._stage_slices(kind, size, own, again),
        )

    def _lost(self, groups: Groups, s: int, own: Sequence[int]) -> int:
        """Nanoseconds of work that are not done beside another batch's sums and gathers, of each layer by itself."""
        kind, around = groups[s][0].kind, ring(self.question, groups, (s,))
        ways = 2 if self.question.level else 1  # sums and gathers, or one collective of both
        around, pace = replace(around, halves=2 // ways), self.pace(kind)
        times = [around.moves(self.question.parameters_on(kind)[i]) for i in own]
        return ways * sum(time - ceil(pace * time) for time in times)

    def gather(self, groups: Groups, size: int, layers: Sequence[Sequence[int]], s: int) -> int:
        """Nanoseconds for which the first forwards wait for what other replicas have updated; copies come first."""
        question, kind, own = self.question, groups[s][0].kind, layers[s]
        if question.level not in (1, 2) or len(groups[s]) == 1 or question.job["objective"] == "bottleneck":
            return 0
        if question.level == 2:
            return sum(self._waits(groups, size, s, own).values())
        half = replace(ring(question, groups, (s,)), halves=1)
        copies = [half.moves(bytes_) for tied, bytes_ in question.ties if _copied(tied, groups, layers, s)]
        pace = self._pace_at_ends(kind)
        hides = pace and not question.job["staleness"]
        hidden, parameters = (
            [self.of_slices(kind, size, i)[0][0] if hides else 0 for i in own],
            question.parameters_on(kind),
        )
        waits = wait_for_gathers([done(half.moves(parameters[i]), pace) for i in own], hidden, half.latency)
        return sum(time + half.latency for time in copies if time) + waits

    def forward_waits(self, groups: Groups, size: int, s: int, own: Sequence[int]) -> dict[int, int]:
        """Nanoseconds that each layer's forward takes longer because weights are gathered in every pass."""
        if self.question.level < 3 or len(groups[s]) == 1:
            return dict.fromkeys(own, 0)
        return self._waits(groups, size, s, own)

    def _waits(self, groups: Groups, size: int, s: int, own: Sequence[int]) -> dict[int, int]:
        """Nanoseconds that each layer's forward takes longer if weights are gathered one layer ahead."""
        waits = dict.fromkeys(own, 0)
        gathers, _, _, pace, base = self._collectives(groups, size, s, own)
        table, units = self.table(groups[s][0].kind, size), sorted(gathers)
        for before, i in zip([None, *units], units, strict=False):
            waits[i] = gathers[i]
            if pace and before is not None:  # gathered while the unit before computes
                alone = sum(table[k].forward for k in own if before <= k < i)
                waits[i] = max(gathers[i], alone + gathers[i] - done_beside(gathers[i], pace, base)) - alone
        return waits

    def _units(self, own: Sequence[int]) -> list[set[int]]:
        """Layers of a stage that are gathered and summed together, as they share weights; others are alone."""
        frozen = self.question.frozen if self.question.level == 3 else [0] * self.question.n
        units = [{i} for i in own if self.question.parameters[i] or frozen[i]]
        for tied in self.question.sharing:
            shared = set(tied) & set(own)
            meets = [unit for unit in units if unit & shared]
            if not meets:  # of another stage, or frozen and whole at level 2
                continue
            units = [unit for unit in units if unit not in meets] + [shared.union(*meets)]
        return units

    def _bytes(self, unit: set[int]) -> int:
        return sum(self.question.parameters[i] for i in unit)

    def _moved(self, unit: set[int]) -> int:
        """Bytes of a unit that are gathered: at level 3 those of frozen weights too."""
        return self._bytes(unit) + (sum(self.question.frozen[i] for i in unit) if self.question.level == 3 else 0)

    def _returns(self, unit: set[int], table: Sequence[Costs]) -> bool:
        """Whether a unit has a backward: frozen layers above all trained ones have none."""
        full = self.question.job["recompute"] == "full"
        backward = any(table[i].backward + (table[i].forward if full else 0) for i in unit)
        return bool(self._bytes(unit)) or backward

    def _collectives(
        self, groups: Groups, size: int, s: int, own: Sequence[int]
    ) -> tuple[dict[int, int], dict[int, int], dict[int, int], Fraction, int]:
        """Nanoseconds of each unit's gathers by its first and its last layer, and sum; others' pace beside, and base.

        A sum comes at the first layer. It is of gradients only, so frozen weights have none. Beside the base nothing is
        late.
        """
        units, around = self._units(own), ring(self.question, groups, (s,))
        table = self.table(groups[s][0].kind, size)
        firsts = {min(unit): around.unit(self._moved(unit)) for unit in units}
        lasts = {max(unit): around.unit(self._moved(unit)) for unit in units if self._returns(unit, table)}
        sums = {min(unit): around.unit(self._bytes(unit)) for unit in units if self._bytes(unit)}
        pace = self.pace(groups[s][0].kind) if around.link.unit_overlap else Fraction(0)
        return firsts, lasts, sums, pace, (around.members - 1) * around.link.latency + around.link.unit_overhead

    def pace(self, kind: str) -> Fraction:
        """How much of its work alone a kind of device does while a collective runs; 0 if it does not run meanwhile."""
        if not self.question.job["overlap_reduction"] or self.question.overlap == "none":
            return Fraction(0)
        return Fraction(str(self.question.kinds[kind].get("speed_beside_collectives", 1)))

    def _pace_at_ends(self, kind: str) -> Fraction:
        """The same beside sums and gathers at the ends of a step; those of other batches take all of their time."""
        return Fraction(1) if self.question.job["staleness"] else self.pace(kind)

    def passes(self, groups: Groups, size: int, s: int, own: Sequence[int]) -> tuple[int, int]:
        """Nanoseconds of a stage's forward and backward; sharded ones wait for gathers and for sums."""
        question, kind = self.question, groups[s][0].kind
        table = self.table(kind, size)
        repeats = question.job["recompute"] == "full"
        plain = sum(table[i].forward for i in own), sum(table[i].backward for i in own)
        if question.level < 2 or len(groups[s]) == 1:
            return plain
        gathers, again, sums, pace, base = self._collectives(groups, size, s, own)
        gathers = gathers if question.level == 3 else dict.fromkeys(gathers, 0)
        again = again if question.level == 3 else dict.fromkeys(again, 0)
        if not pace:
            return plain[0] + sum(gathers.values()), plain[1] + sum(again.values()) + sum(sums.values())
        # Forward: a gather leaves when the unit before its own begins.
        units, now, there = sorted(gathers), 0, 0
        for i in own:
            if i in gathers:
                ahead = units.index(i)
                now = max(now, there) if ahead else now + gathers[i]
                gather = gathers[units[ahead + 1]] if ahead + 1 < len(units) else 0
                there, now = now + gather, now + gather - done_beside(gather, pace, base)
            now += table[i].forward
        forward, now, ends = now, 0, 0
        # Backward: when a unit begins or ends, the next one's gather leaves, then the sum of the one behind.
        units = sorted(sums | again)
        for i in reversed(own):
            if i in units:
                place = units.index(i)
                now = now + again.get(i, 0) if i == units[-1] else max(now, ends)
                gather = again.get(units[place - 1], 0) if place else 0
                behind = 0 if i == units[-1] else sums.get(units[place + 1], 0)
                ends = now + gather + behind
                now = ends - done_beside(gather, pace, base) - done_beside(behind, pace, base)
            now += table[i].backward + (table[i].forward if repeats else 0)
        backward = max(now, ends) + (sums.get(units[0], 0) if units else 0)
        return forward, backward - (plain_again(table, own) if repeats else 0)

    def workspace(self, table: Sequence[Costs], own: Sequence[int], again: Sequence[int], replicas: int) -> int:
        """Bytes beside what a stage holds while one of its actions runs; sharded ones have buffers of collectives too.

        What a layer saves that is computed again counts while it computes.
        """
        alone = {i: table[i].workspace + (table[i].saved if i in again else 0) for i in own}
        if self.question.level < 2 or replicas == 1:
            return max(alone.values())
        units = [
            Unit(sorted(unit), self._bytes(unit), self._moved(unit), self._returns(unit, table))
            for unit in self._units(range(self.question.n))
        ]
        item, every = ITEM[self.question.dtype], self.question.level == 3
        return max(with_collectives(i, size, units, replicas, item, every) for i, size in alone.items())

    def reductions(self, groups: Groups, size: int, layers: Sequence[Sequence[int]], halved: bool = False) -> list[int]:
        """Nanoseconds that each stage sums gradients: among its replicas, and with stages that share weights.

        Where sums may begin before the last backward has ended, what is left of them then, and of the work that was
        not done beside sums and gathers. Weights that stages share
        are summed behind it; what the first of their layers takes of the stage's own sums is left out then, or all of
        it stays and the rest is added: whichever takes longer.
        """
        question = self.question
        if question.level > 1:
            return [0] * len(groups)
        rings = [ring(question, groups, (s,)) for s in range(len(groups))]
        if question.level and question.job["objective"] != "bottleneck":
            rings = [replace(each, halves=1) for each in rings]
        ends = question.job["objective"] != "bottleneck"
        paces = [self._pace_at_ends(group[0].kind) if ends else Fraction(0) for group in groups]
        parts = [question.parameters_on(group[0].kind) for group in groups]
        whole_moves = [{i: rings[s].moves(parts[s][i]) for i in own} for s, own in enumerate(layers)]
        moves = [{i: done(time, paces[s]) for i, time in own.items()} for s, own in enumerate(whole_moves)]
        late = [sum(own.values()) - sum(moves[s].values()) for s, own in enumerate(whole_moves)]
        if question.level:  # as much once more, beside the gathers
            late = [2 * time for time in late]
        hidden = [{i: self.hidden(groups[s][0].kind, size, i, halved) for i in own} for s, own in enumerate(layers)]

        def left(s: int, own: dict[int, int]) -> int:
            return still_to_sum([own[i] for i in layers[s]], [hidden[s][i] for i in layers[s]], rings[s].latency)

        apart = [dict(own) for own in moves]
        more, joint = [0] * len(layers), [0] * len(layers)
        for tied, shared in question.ties:
            members = _keepers(tied, groups, layers)
            if len(members) < 2:
                continue
            time, home, whole = (
                sum_of_copies(question, groups, members, shared),
                members[0],
                parts[members[0]][tied[0]],
            )
            with_them, without = (done(rings[home].moves(bytes_), paces[home]) for bytes_ in (whole, whole - shared))
            known = max(with_them - without, 0)
            apart[home][tied[0]] = max(apart[home][tied[0]] - known, 0)
            for s in members:
                joint[s] += time
                more[s] += time if s != home else max(time - known, 0)
        found = [max(left(s, moves[s]) + more[s], left(s, apart[s]) + joint[s]) + late[s] for s in range(len(layers))]
        if halved or len(set(groups)) == len(groups):
            return found
        behind = [found[s] - left(s, apart[s]) for s in range(len(layers))]
        for device in set(groups):
            own = [s for s, group in enumerate(groups) if group == device]
            rows = [([apart[s][i] for i in layers[s]], [hidden[s][i] for i in layers[s]]) for s in own]
            waits = waits_in_turn(rows, rings[own[0]].latency)
            for s, wait in zip(own, waits, strict=True):
                found[s] = wait + behind[s]
        return found

    def hidden(self, kind: str, size: int, layer: int, halved: bool = False) -> int:
        """Nanoseconds of a layer's last backward beside which gradients of later layers may be summed.

        Of backwards that are all ``halved`` the last part of a list is a weight gradient.
        """
        job, table = self.question.job, self.table(kind, size)
        if not self.pace(kind) or job["objective"] == "bottleneck" or job["staleness"]:
            return 0
        row, (forward, backward) = table[layer], self.of_slices(kind, size, layer)
        whole = backward[0] + (forward[0] if job["recompute"] == "full" else 0)
        if halved:
            return self.passes_of_slices(kind, size, layer)[3][0]
        if "any" in job["schedules"] and any(each.weight_gradient for each in table):
            return min(whole, row.weight_gradient)
        return whole

    def tied(self, groups: Groups, layers: Sequence[Sequence[int]]) -> list[set[int]]:
        """Disjoint sets of stages whose reductions are one collective."""
        found: list[set[int]] = []
        for tied, _ in self.question.ties:
            members = {*_keepers(tied, groups, layers)}
            if len(members) > 1:
                meets = [group for group in found if group & members]
                found = [group for group in found if group not in meets] + [members.union(*meets)]
        return found

    def ways(self, groups: Groups, size: int, layers: Sequence[Sequence[int]]) -> list[list[tuple[Way, Way]]]:
        """For each boundary and each remainder of a micro-batch's number: the way there, and the way back."""
        found = []
        for s in range(len(groups) - 1):
            sent = self.sent(groups, size, layers, s + 1)
            turns = lcm(len(groups[s]), len(groups[s + 1]))
            pairs = [(groups[s][m % len(groups[s])], groups[s + 1][m % len(groups[s + 1])]) for m in range(turns)]
            found.append([(self.way(a, b, sent), self.way(b, a, sent)) for a, b in pairs])
        return found

    def way(self, source: Device, target: Device, size: int) -> Way:
        """What so many bytes keep busy between two devices; nothing on one device."""
        if source == target:
            return Way(0, 0, ())
        link = self.question.link(source, target)
        if source.node == target.node:
            resources: tuple[str, ...] = (f"{source.number}>{target.number}",)
        else:
            resources = (f"out {source.node}", f"in {target.node}")
        return Way(occupancy(link, size), link.latency, resources)


def done(time: int, pace: Fraction) -> int:
    """Nanoseconds of a pass that are done while a collective of this time runs beside it; all of them if none may be.

    (Then the collective is waited for, and no work is late because of it.)
    """
    return ceil(pace * time) if pace else time


def done_beside(time: int, pace: Fraction, base: int) -> int:
    """`done` beside a collective of which ``base`` slows nothing down."""
    return base + done(time - base, pace) if time else 0


def plain_again(table: Sequence[Costs], own: Sequence[int]) -> int:
    """Nanoseconds of all forwards again; a stage that recomputes everything adds them by itself."""
    return sum(table[i].forward for i in own)


def _keepers(tied: Sequence[int], groups: Groups, layers: Sequence[Sequence[int]]) -> list[int]:
    """The stages that keep the weights of a tie: of those with its layers on the same devices the first one."""
    first: dict[object, int] = {}
    for s, own in enumerate(layers):
        if set(tied) & set(own):
            first.setdefault(groups[s], s)
    return list(first.values())


def _copied(tied: Sequence[int], groups: Groups, layers: Sequence[Sequence[int]], s: int) -> bool:
    """Whether a stage keeps the weights of a tie, but has not its first layer, whose own they are."""
    return tied[0] not in layers[s] and s in _keepers(tied, groups, layers)


def _subsets(own: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(own) + 1):
        yield from combinations(own, count)
