"""Description of the search space over which a bound holds, and of what lies outside it.

::

    Space ──▶ pipeplan.search.scope ──▶ Searched ──▶ as_text()     "1 to 4 stages of contiguous layers; …"
                                     └──────▶ not_searched   "several stages per device": only where it is true
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from pipeplan.core.job import SHARDED as SHARES_GRADIENTS
from pipeplan.core.job import Order, Recompute
from pipeplan.core.wording import listed, series, wrapped

CONTIGUOUS = "contiguous layers in the listed order, every layer once"
DOWNSETS = "any layers that read from no later stage, whatever the listed order; every layer once"
"""Layers that a stage may hold."""

ALONE = "one device per stage"
PACKED = "devices of one kind per stage, packed in the cluster's order"
TILED = "devices of one kind and one kind of node per stage, packed in the cluster's order or in equal tiles of nodes"
LISTED = "devices of one kind per stage, taken in the listed order"
ANYWHERE = "devices of one kind and one kind of node per stage, any of them"
EXCHANGED = ", and like devices exchanged where layers are pinned to some"
"""Devices that may share a stage."""

ANSWER = (
    "and beside these the answer's plan, which a heuristic placed otherwise ({stages}, {widths} {devices} per stage)"
)
"""A plan that is no listed one."""

FALLING = "1f1b holds any numbers of micro-batches that fall along the pipeline, from SNO's to 1.5 times SO's"
OWN = "each schedule holds what its family says"
ALL_COUNTS = "any number of micro-batches in flight where any order is searched"
"""Numbers of micro-batches that a stage holds."""

WRITTEN = "as each family writes its lists"
ANY_ORDER = (
    "as each family writes its lists, and every order of one lane per device, each stage's backwards split or joined, "
    "where all stages have the same number of replicas"
)
ENDLESS = "which only says how much a stage holds: the order does not change its load"
"""Orders of forwards and backwards."""

RECOMPUTED = {
    Recompute.NONE: "no recomputation",
    Recompute.CHOOSE: "recomputation of the layers that it takes to fit",
    Recompute.FULL: "every layer recomputed",
}

TENSOR = "tensor, sequence and context parallelism"
OTHER_TEAMS = "teams of other sizes (--teams)"
TEAMS = (
    "teams that share out the state of whole weights, equal layers of teams of one size split in unlike ways, all "
    "combinations of ways for unlike layers whose sums gain less than 0.03 % of time or memory, or are more than 32, "
    "teams over parts of several nodes, {meshes}"
)
IN_NODES = "meshes inside a node (of one axis for models without tokens they are)"
MESHES = (
    "teams as meshes, which alone split samples inside a team (--mesh-axes)",
    f"{IN_NODES}, or of several axes (--mesh-axes)",
    f"{IN_NODES}, or of more than 2 axes (--mesh-axes)",
    IN_NODES,
)
"""Those that are not searched, for the most axes that are."""
CLOSED = "teams of {sizes} devices ruled out by bounds on their work and memory, however they split layers"
LEFT = "teams of {sizes} devices only bounded by their work, which leaves them less than 0.01 % to gain"
LATE = "teams of {sizes} devices only bounded by their work, as the time was over before all their ways were known"
"""Sizes of teams whose ways to split layers were not priced, or not all."""
UNLIKE_TEAMS = (
    "stages whose teams differ in size (--unlike-teams searches them at levels 0 and 1 of ZeRO; not in a given order, "
    "with pinned layers that share weights, with teams over several nodes, nor in more than 128 mixes under any order "
    "of schedules)"
)
FROZEN_TEAMS = "teams that share out frozen weights (each device of a team holds those of its layers whole)"
UNLIKE_TIES = "layers that share weights on teams of unlike sizes"
UNLIKE_MESHES = "teams of unlike sizes of which some extend over several nodes or are meshes"
WHOLE_SEQUENCES = "tensors between layers split along tokens (sequence parallelism)"
WHOLE_PRODUCTS = "teams that run matrix products and attention on parts of the tokens (context parallelism)"
UNEVEN_QUERIES = "an early and a late part of the tokens on each device (even work under a causal mask)"
WHOLE_LOSS = "a loss of teams on logits split along their classes (vocabulary parallelism)"
UNKNOWN_LOSS = f"{WHOLE_LOSS}, as the model's loss is not known to be a cross entropy"
EXPERTS = "expert parallelism (the model has layers of experts: tokens sent to the devices that hold theirs)"
INTERLEAVED = "several stages per device (--chunks 1,2,4: interleaving)"
UNLIKE_ROUNDS = (
    "other numbers of stages per device, other families of theirs (--schedules), rounds cut unlike{unlike}, and "
    "several stages per device at levels 2 and 3 of ZeRO or on unequal replicas"
)
UNLIKE = "rounds, equal ones or unlike ones that are cut in proportion"
OTHERWISE, IN_PROPORTION = " and not in proportion", " (in proportion: --unlike-rounds)"
NOT_CONTIGUOUS = "other orders of the model's layers than the listed one"
BRANCHES = "skips sent directly to the stage that reads them, branches side by side"
ONE_MICRO_BATCH = "stages with replicas (they share the micro-batches of --batch, and there is one)"
UNLIKE_KINDS = "replicas of unlike kinds in one stage"
UNLIKE_NODES = "replicas in nodes with unlike links in one stage"
PLACEMENTS = "other placements of like devices on the nodes"
OTHER_WIDTHS = "other numbers of replicas per stage (too many to look at)"
FIRST_DEVICES = "other choices among like devices than the first of them in the cluster's order"
ONE_WIDTH = "stages that differ in their number of replicas"
OVERLAPPED = "overlapped gradient reduction"
FRONT_FIRST = "sums that go on while the next step begins, front layers first (--front-first prices plans found)"
BUCKETS_ON_CARDS = "bucket sums and tensors that share network cards (each is counted alone)"
HIDDEN_AGAIN = "gradient sums hidden under recomputed forwards"
SHARDED = "sharded gradients or parameters (ZeRO-2, ZeRO-3, FSDP)"
SHARDED_STAGES = "sharded gradients or parameters on stages that differ in their number of replicas"
SHARDED_ORDERS = "orders outside the families of one lane at levels 2 and 3 of ZeRO"
SHARDED_TIES = "sharded gradients or parameters on several stages, as layers share weights"
STATE = "shared updates and sharded optimiser state (ZeRO-1)"
UNLIKE_LEVELS = "stages of unlike levels of ZeRO"
OTHER_COUNTS = "in-flight counts of 1F1B below SNO's, above 1.5 times SO's, or not falling along the pipeline"
OTHER_ORDERS = "other orders, split backwards"
ASKED_FOR = f"{OTHER_ORDERS} (--schedules any searches them on stages of one width)"
SPLIT_ASKED_FOR = ASKED_FOR.replace("split", "also of split")
WHOLE = "split backwards on stages of equal replicas, as {why} (--schedules zb-h1,zb-v)"
UNEQUAL_ORDERS = "orders outside the listed families on stages of unequal widths"
TWO_LANES = "orders of two lanes per device outside the listed families"
OTHER_HOLDING = "schedules that hold fewer micro-batches than the listed one"
STALE = "stale weights (PipeDream, 2BW; --objective period --staleness 1 searches one step of delay)"
OLDER = "weights that are several steps old (PipeDream)"
UNEQUAL_SHARES = "replicas that share the micro-batches of a batch unequally"
SLICES = "token slices of a micro-batch (--slices)"
UNLIKE_SLICES = (
    "token slices of unequal lengths, {halves}at levels 2 and 3 of ZeRO, on stages that differ in replicas, or beside "
    "context parallelism"
)
HALVES = "with split backwards ({option} searches one family of them), "
UNEQUAL_SIZES = "micro-batches of unequal sizes"
OTHER_SIZES = "micro-batches of other or unequal sizes"
UNPROFILED_SIZES = "micro-batches of sizes that no profile covers (--extrapolate searches them), or unequal ones"
CHECKPOINTS = "recomputation that keeps less than every layer's output"
OFFLOADING = "offloading to host memory"
"""Plans that are not searched; `pipeplan.search.scope` selects the true ones, and adds those with numbers."""


@dataclass(frozen=True, slots=True)
class Searched:
    """The space over which the bound holds, and what lies outside it.

    Attributes
    ----------
    micro_batch_sizes : tuple of int
    schedules : tuple of str
    opened : int
        Number of search nodes that were expanded.
    recompute, order : str
        The job's options.
    zero : tuple of int
        Levels of ZeRO.
    teams : str
        Numbers of devices that share every layer of a stage, and in how many ways.
    sharded : str
        What plans have at levels 2 and 3 of ZeRO and need not have below; empty if these levels are not searched.
    depths, widths : str
        Numbers of stages, and of devices per stage: ``'1 to 4'``.
    partitions, replicas, in_flight, schedules_reach : str
        Layers that a stage may hold, devices that may share it, micro-batches that it holds, orders of its actions.
    unlike : bool
        Whether the devices are of several classes, so that their order is a choice.
    answer : str
        What the answer's plan has that none of these plans have, if a heuristic found it outside of them.
    restrictions : tuple of str
        Constraints that narrow the space further.
    not_searched : tuple of str
    slices : tuple of int
        Numbers of token slices; empty is whole sequences only.
    rounds : str
        Numbers of stages of each device beside one, and the families that run them; empty if it has one.
    """

    micro_batch_sizes: tuple[int, ...]
    schedules: tuple[str, ...]
    opened: int
    recompute: str
    order: str
    depths: str = ""
    widths: str = ""
    partitions: str = CONTIGUOUS
    in_flight: str = OWN
    schedules_reach: str = WRITTEN
    replicas: str = ALONE
    unlike: bool = False
    zero: tuple[int, ...] = (0,)
    teams: str = ""
    sharded: str = ""
    answer: str = ""
    restrictions: tuple[str, ...] = ()
    not_searched: tuple[str, ...] = ()
    slices: tuple[int, ...] = ()
    rounds: str = ""

    def as_text(self) -> str:
        """Describe the searched space in one sentence without its full stop."""
        return "; ".join(self.parts())

    def parts(self) -> list[str]:
        """Return the parts of that sentence: stages, devices, micro-batches, schedules and what else is searched."""
        stages = "1 stage" if self.depths == "1" else f"{self.depths} stages"
        shared = self.replicas if self.replicas == ALONE else f"{self.widths} {self.replicas}"
        parts = [f"{stages} of {self.partitions}", shared]
        parts += [self.answer] * bool(self.answer)
        if self.unlike:
            parts.append(f"unlike devices in {'any' if self.order == Order.SEARCH else 'the given'} order")
        cut = f", in {listed(self.slices)} token slices" * bool(self.slices)
        parts.append(f"micro-batches of {listed(self.micro_batch_sizes)}{cut}")
        named = [name for name in self.schedules if name != "any"]
        parts.append(f"schedule{'s' * (len(named) > 1)} {', '.join(named)}, {self.schedules_reach}")
        parts += [self.in_flight] * (self.in_flight == FALLING)
        parts.append(RECOMPUTED[Recompute(self.recompute)])
        if self.zero != (0,):
            reach = f" (from level 2 on: {self.sharded})" if self.sharded else ""
            parts.append(f"level{'s' * (len(self.zero) > 1)} {listed(self.zero)} of ZeRO{reach}")
        parts += [self.rounds] * bool(self.rounds)
        parts += [self.teams] * bool(self.teams)
        if self.restrictions:
            parts.append(f"with {', '.join(self.restrictions)}")
        return parts

    def at_levels(self, levels: tuple[int, ...], tied: bool, orders: bool) -> "Searched":
        """Return the description of the lowest of these levels of ZeRO as one of all of them.

        Parameters
        ----------
        tied : bool
            Layers share weights.
        orders : bool
            There are orders at the lowest level that are none of a family of one lane.
        """
        rest = [each for each in self.not_searched if each != STATE or 1 not in levels]
        several, sharded = self.depths != "1", ""
        if levels[-1] >= SHARES_GRADIENTS:
            rest = [each for each in rest if each != SHARDED]
            reach = ["equally many micro-batches for all replicas"]
            if several and tied:
                reach.append("on one stage")
                rest.append(SHARDED_TIES)
            elif several and not self.widths.isdigit() and "--equal-replicas" not in self.restrictions:
                reach.append("equally many replicas of all stages")
                rest.append(SHARDED_STAGES)
            if several and orders:
                reach.append("families of one lane")
                rest.append(SHARDED_ORDERS)
            sharded = ", ".join(reach)
        if several and {0, 1} <= set(levels):
            rest.append(UNLIKE_LEVELS)
        return replace(self, zero=levels, sharded=sharded, not_searched=tuple(rest))

    def with_teams(
        self,
        ways: Mapping[int, int],
        tokens: bool,
        mixes: str = "",
        loss: str = "",
        over: str = "",
        context: bool = False,
        meshes: Mapping[tuple[int, ...], int] = MappingProxyType({}),
        ties: bool = False,
        left_out: Sequence[str] = (),
        mesh_axes: int = 2,
        frozen: bool = False,
        unpriced: Mapping[str, Sequence[int]] = MappingProxyType({}),
        others: bool = False,
    ) -> "Searched":
        """Return the description with teams: for each number of devices the ways to split layers that are searched.

        A team of one device has none. ``tokens``: whether some split what passes between layers along tokens.
        ``mixes``: how the nodes are filled with teams of unlike sizes; empty if they are not.
        ``loss``: why none splits the loss; empty if some do. ``over``: which teams extend over nodes, by which links.
        ``context``: whether some run products of matrices and attention on parts of the tokens. ``meshes``: for each
        mesh, by the devices along each axis, the ways to split layers that are searched. ``ties``: whether layers share
        weights. ``left_out``: which sizes of teams are asked for and not searched, and why. ``mesh_axes``: most axes
        of a mesh. ``frozen``: whether layers have frozen weights. ``unpriced``: sizes whose ways were not priced, or
        not all, by the sentence on them. ``others``: whether the job names no sizes.
        """
        named = {sentence: series(sizes) for sentence, sizes in unpriced.items() if sizes}
        left_out = [*left_out, *(sentence.format(sizes=sizes) for sentence, sizes in named.items())]
        rest = tuple(sentence for sentence in self.not_searched if not sentence.startswith(TENSOR))
        more = (OTHER_TEAMS,) * others
        if not ways or set(ways) == {1}:
            rest = rest if named else self.not_searched
            unlike = (UNLIKE_TEAMS,) * bool(named)
            return replace(self, teams=", ".join(left_out), not_searched=(*more, *unlike, *rest))
        counts = [str(count) for team, count in ways.items() if team > 1]
        split = f"{series(counts)} {'way' if counts == ['1'] else 'ways'}"
        teams = f"teams of {series(ways)} devices, layers split in {split} and alike in all stages"
        teams += f", {over}" * bool(over)
        levels = " at levels 0 and 1 of ZeRO" * (self.zero[-1] >= SHARES_GRADIENTS)
        shapes = [f"{' x '.join(map(str, sizes))} in {count}" for sizes, count in meshes.items()]
        if shapes:
            teams += f", also as meshes of {', '.join(shapes)} {'way' if [*meshes.values()] == [1] else 'ways'}"
        teams += ", tensors between layers whole or split along tokens" * tokens
        teams += ", matrix products and attention also on parts of the tokens" * context
        teams += ", losses also on logits split along their classes" * (not loss)
        teams += "".join(f", {why}" for why in left_out)
        teams += f", stages also with teams of unlike sizes{levels} ({mixes})" * bool(mixes)
        without = [UNLIKE_TEAMS] * (not mixes and len(ways) > 1) + [UNLIKE_TIES] * bool(mixes and ties)
        without += [UNLIKE_MESHES] * bool(mixes and (over or meshes)) + [WHOLE_SEQUENCES] * (not tokens)
        without += [WHOLE_PRODUCTS] * (not context) + [UNEVEN_QUERIES] * context
        without += [loss] * bool(loss) + [FROZEN_TEAMS] * frozen
        return replace(self, teams=teams, not_searched=(TEAMS.format(meshes=MESHES[mesh_axes]), *more, *without, *rest))

    def with_slices(self, counts: tuple[int, ...], families: Sequence[str], halves: str) -> "Searched":
        """Return the description with these numbers of token slices, and the families that run them.

        ``halves``: the option that names a family of split backwards, if there is one that is not searched.
        """
        schedules = tuple(dict.fromkeys((*self.schedules, *families)))
        unlike = UNLIKE_SLICES.format(halves=HALVES.format(option=halves) if halves else "with other split backwards, ")
        rest = tuple(unlike if sentence == SLICES else sentence for sentence in self.not_searched)
        return replace(self, slices=counts, schedules=schedules, not_searched=rest)

    def with_rounds(
        self,
        families: Mapping[int, Iterable[str]],
        alone: bool,
        splits: bool = False,
        why_whole: str = "",
        unlike: bool = False,
    ) -> "Searched":
        """Return the description with these families for each number of stages of a device.

        ``alone``: whether devices have no other numbers of stages. ``splits``: whether some of these families split
        backwards. ``why_whole``: why none does, where some would by default. ``unlike``: whether rounds
        may be cut unlike.
        """
        orders = dict.fromkeys(name for row in families.values() for name in row)
        counts = listed([*families, *([] if alone else [1])])
        rounds = UNLIKE if unlike else "equal rounds"
        text = f"{counts} stages on each device, as many in each of as many {rounds}, in the order of "
        text += f"{' or '.join(orders)}, at levels 0 and 1 of ZeRO, on equal replicas"
        other = {INTERLEAVED: UNLIKE_ROUNDS.format(unlike=OTHERWISE if unlike else IN_PROPORTION)}
        other |= {ASKED_FOR: SPLIT_ASKED_FOR} if splits else {}
        rest = tuple(other.get(sentence, sentence) for sentence in self.not_searched)
        rest += (WHOLE.format(why=why_whole),) * bool(why_whole)
        schedules = tuple(dict.fromkeys((*self.schedules, *orders)))
        return replace(self, schedules=schedules, rounds=text, not_searched=rest)

    def with_answer(self, depth: int, widths: Sequence[int]) -> "Searched":
        """Return the description with a plan beside those that are listed, which is the answer."""
        stages = "1 stage" if depth == 1 else f"{depth} stages"
        devices = "device" if set(widths) == {1} else "devices"
        return replace(self, answer=ANSWER.format(stages=stages, widths=listed(widths), devices=devices))

    def without(self, sentence: str) -> "Searched":
        """Return the same description with one more sentence in ``not_searched``."""
        return replace(self, not_searched=(*self.not_searched, sentence))

    def lines(self) -> list[str]:
        """Return wrapped lines on the searched space and on what lies outside it."""
        return [
            *wrapped(f"searched (the bound holds for these plans): {self.as_text()}"),
            *wrapped(f"not searched (may be faster): {'; '.join(self.not_searched)}"),
        ]

    def as_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "depths": self.depths,
            "micro_batch_sizes": list(self.micro_batch_sizes),
            "slices": list(self.slices),
            "chunks": self.rounds,
            "schedules": list(self.schedules),
            "schedules_reach": self.schedules_reach,
            "partitions": self.partitions,
            "widths": self.widths,
            "replicas": self.replicas,
            "answer": self.answer,
            "in_flight": self.in_flight,
            "recompute": self.recompute,
            "zero": list(self.zero),
            "from_level_2": self.sharded,
            "teams": self.teams,
            "device_order": self.order,
            "wishes": list(self.restrictions),
            "opened": self.opened,
            "not_searched": list(self.not_searched),
        }
