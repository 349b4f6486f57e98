"""The bounds of devices with several stages each against the simulated steps of their plans."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, combinations, groupby, pairwise
from random import Random
from typing import Any

import pytest

from helpers.quick import rarely
from helpers.rows import below_rows, plans
from pipeplan.core.errors import InfeasibleError, InputError
from pipeplan.core.folding import Folding
from pipeplan.costs import folded, table
from pipeplan.costs.chain import Array
from pipeplan.costs.synchronization import Synchronization
from pipeplan.search import folded_paths
from pipeplan.search.evaluate import evaluate
from pipeplan.search.folded_paths import FoldedPaths, has_folded_paths
from pipeplan.search.nodes import folded_partitions, rows
from pipeplan.search.nodes.folded_partitions import FoldedPartitionsNode
from pipeplan.search.nodes.round_waits import FirstBackwardWaits, RoundWaits
from pipeplan.search.nodes.row_tables import RowTables
from pipeplan.search.nodes.shapes import ShapeTables, sorted_shapes
from pipeplan.search.path_cuts import read_path
from pipeplan.search.space import candidates
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve import solve
from pipeplan_formulations.partition import ChainPartition
from pipeplan_formulations.partition.spans import NEVER
from referee import questions
from referee.bridge import objects
from referee.documents import Document
from referee.placed import PLACED, SPLIT
from referee.rounds import cut_unlike, in_rounds


def asked(number: int) -> Document:
    """A random question about several stages of a device: of any families, mostly without limits."""
    random, document = Random(f"bounds in rounds {number}"), questions.question(number)
    in_rounds(random, document)
    job = document["job"]
    for name in (
        "objective",
        "intra_layer",
        "staleness",
        "slices",
        "teams",
        "strategy",
        "unlike_teams",
        "unlike_rounds",
        "pin",
        "depths",
    ):
        job.pop(name, None)
    job["schedules"] = [random.choice([*PLACED])]
    job["chunks"] = [PLACED[job["schedules"][0]][0] or random.choice((2, 2, 3))]
    nodes = document["cluster"]["nodes"]
    while sum(len(node["devices"]) for node in nodes) < random.choice((3, 4, 5, 6)):
        random.choice(nodes)["devices"].append(dict(nodes[0]["devices"][0]))
    job["zero"] = [random.choice((0, 1))]
    job |= {"overlap_reduction": random.random() < 0.8}
    if job["schedules"][0] not in SPLIT and number % 4 == 3:
        job["objective"] = "period"
    if random.random() < 0.5:
        job["replicas"] = [2]
    return document


def spaces_of(document: Document) -> Iterator[Space]:
    """The spaces of several stages of a device."""
    try:
        every = Spaces(*objects(document))
    except InputError:
        return
    for own in every.folded.values():
        yield from own


def beaten(numbers: Iterable[int]) -> Iterator[str]:
    """Simulated steps that take less than their bound."""
    for number in numbers:
        random = Random(f"plans in rounds {number}")
        for space in spaces_of(asked(number)):
            for candidate, boundaries in plans(space, random):
                bound = candidate.problem.evaluate(boundaries)
                value = evaluate(space.cluster, candidate, boundaries).value
                if value < bound:
                    yield f"question {number}: {candidate.label}, {boundaries}: {value} below the bound {bound}"


def ahead_of_all(candidate: Candidate, problem: ChainPartition) -> ChainPartition:
    """As if micro-batches passed all stages of a device before the next device had one."""
    own = {"ahead_forward": problem.forward, "ahead_backward": problem.backward}
    return replace(problem, **own) if candidate.chain.rounds > 1 else problem


def served_at_once(candidate: Candidate, problem: ChainPartition) -> ChainPartition:
    """As if a device of a V were one stage of it."""
    own = {"service_forward": problem.forward, "service_backward": problem.backward}
    return replace(problem, **own) if candidate.chain.turns else problem


@pytest.mark.parametrize(("wrong", "number"), [(ahead_of_all, 4), (served_at_once, 584)])
def test_bounds_of_whole_devices_are_noticed(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Candidate, ChainPartition], ChainPartition], number: int
) -> None:
    """What a device does of all its stages is no time of each of them."""
    problem = candidates.partition_problem
    monkeypatch.setattr(candidates, "partition_problem", lambda own, *counts: wrong(own, problem(own, *counts)))
    assert [*beaten([number])]


@pytest.mark.parametrize(
    ("room", "name", "wrong", "number"),
    [
        (Synchronization, "_first_to_run", lambda own, kind: own.kept.parameters(kind)[None], 45),
        (table, "way_ahead", folded.total, 8),
    ],
)
def test_sums_over_rounds_where_one_counts_are_noticed(
    monkeypatch: pytest.MonkeyPatch, room: Any, name: str, wrong: Any, number: int
) -> None:
    """Forwards of a run hide its later gathers, and one stage of a device holds least."""
    monkeypatch.setattr(room, name, wrong)
    assert [*beaten([number])]


def in_halves(number: int) -> Document:
    """A random question about backwards that are joined or split, whichever is shorter for some layers of a device."""
    random, document = Random(f"lb {number}"), asked(number)
    document["job"] |= {"schedules": [random.choice(("dualpipe-v", "dualpipe-v", "zb-v"))], "chunks": [2]}
    document["job"].pop("micro_batches", None)
    for profile in document["model"]["profiles"]:
        for cost in profile["costs"].values():
            first, second = random.choice((1, 2, 8)), random.choice((1, 2, 8))
            joined = max(first, random.choice((1, 2, 8, 16)))
            halves = {"input_gradient": 20 * first, "weight_gradient": 20 * second, "backward": 20 * joined}
            cost |= halves | {"forward": random.choice((0, 1, 5)), "update": 0}
    return document


def below_work(numbers: Iterable[int]) -> Iterator[str]:
    """Simulated steps that take less than the bound of all work."""
    for number in numbers:
        random = Random(number)
        for space in spaces_of(in_halves(number)):
            for candidate, boundaries in plans(space, random):
                groups, bounds = candidate.chain.groups, space.lower_bounds(candidate.chain.micro_batch)
                bound = bounds.of_stages((group[0].kind.name, len(group)) for group in groups)
                value = evaluate(space.cluster, candidate, boundaries).value
                if value < max(bound, bounds.of_any(space.cluster)):
                    yield f"question {number}: {candidate.label}, {boundaries}: {value} below the bound {bound}"


@pytest.mark.parametrize("numbers", [(44, 235, *range(20)), rarely(range(20, 320))], ids=len)
def test_no_plan_of_joined_and_split_backwards_is_below_all_work(numbers: Iterable[int]) -> None:
    """Which half is shorter is a matter of each layer, not of all layers that a device has in one place."""
    assert [*below_work(numbers)] == []


def in_rows(number: int) -> Document:
    """A random question of which rows of modes are bounded together: in loops, or with backwards that are split."""
    random, document = Random(f"in rows {number}"), in_halves(number) if number % 3 == 2 else asked(number)
    document["cluster"]["overlap"] = True
    document["job"].pop("objective", None)
    rounds, turns = random.choice(((2, False), (3, False), (1, False), (2, True), (2, True)))
    names = [name for name, (many, *turned, _) in PLACED.items() if turned == [turns] and many in (rounds, None)]
    names = [name for name in names if rounds > 1 or name in SPLIT]
    document["job"] |= {"schedules": random.sample(names, random.choice((1, len(names)))), "chunks": [rounds]}
    return document


def unlike(number: int) -> Document:
    """The same where rounds may be cut unlike, on devices of one kind."""
    document = in_rows(number)
    if max(document["job"]["chunks"]) > 1:
        cut_unlike(Random(f"unlike {number}"), document)
    return document


def whole_devices_ahead(own: RowTables) -> None:
    """As if the next device began behind all that a device does of a micro-batch."""
    own._first_forward, own._first_backward = own._forward, own._backward


def slowest_hops(own: RowTables) -> None:
    """As if every hop took as long as the slowest one."""
    own._send[...], own._latency[...] = own._send.max(initial=0), own._latency.max()


def last_weights_of_all(own: RowTables) -> None:
    """As if no weight gradient of the first device could run before its last input gradient."""
    own._first_weight = own._weight


def weights_on_the_way(own: RowTables) -> None:
    """As if the device before waited for weight gradients."""
    own._first_backward = own._first_backward + own._first_weight


def all_served_at_once(own: RowTables) -> None:
    """As if a device of a V were one stage of it."""
    own._each_of = lambda passes: passes  # type: ignore[method-assign]


def slower_around(own: RowTables) -> None:
    """As if the way from the last device to the first took twice as long."""
    assert isinstance(own._waits, RoundWaits)
    own._waits._around = 2 * own._waits._around + 3


def slower_sums_of_shared_weights(own: RowTables) -> None:
    """As if the sum of weights that the first and the last stage share took longer."""
    own._joint = 2 * own._joint + 5 * (own._joint > 0)


def fewer(place: int) -> Callable[[RowTables], None]:
    """As if a device ran fewer actions before it waits."""

    def wrong(own: RowTables) -> None:
        assert isinstance(own._waits, RoundWaits)
        counts = own._waits._counts

        def less(*asked: Any) -> list[tuple[int, ...]]:
            return [
                tuple(max(count - (number == place), 0) for number, count in enumerate(row)) for row in counts(*asked)
            ]

        own._waits._counts = less  # type: ignore[method-assign,assignment]

    return wrong


def one_more_held(own: RowTables) -> None:
    """As if devices held one more micro-batch of each stage when they hold most."""
    least = own._fullest
    own._fullest = lambda widths: least(widths) + 1  # type: ignore[method-assign]


def slower_hops_to_first_backwards(own: RowTables) -> None:
    """As if each hop before the first backward took more than twice as long."""
    assert isinstance(own._waits, FirstBackwardWaits)
    own._waits._hop = 2 * own._waits._hop + 3


def slower_ways_back(own: RowTables) -> None:
    """As if the first backward came to a device at half the speed."""
    assert isinstance(own._waits, FirstBackwardWaits)
    own._waits._back = 2 * own._waits._back


@pytest.mark.parametrize(
    ("wrong", "number"),
    [
        (one_more_held, 41),
        (slower_hops_to_first_backwards, 5),
        (slower_ways_back, 13),
        (whole_devices_ahead, 33),
        (slowest_hops, 5),
        (last_weights_of_all, 39),
        (weights_on_the_way, 5),
        (all_served_at_once, 116),
        (slower_around, 35),
        (slower_sums_of_shared_weights, 80),
        (fewer(0), 35),
        (fewer(1), 23),
        (fewer(2), 35),
        (fewer(3), 225),
    ],
)
def test_bounds_of_rows_of_more_than_the_least_are_noticed(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[RowTables], None], number: int
) -> None:
    """Rows stand for all placements and partitions, so each number is the least."""
    begin = RowTables.__init__

    def begun(own: RowTables, *asked: Any) -> None:
        begin(own, *asked)
        wrong(own)

    monkeypatch.setattr(RowTables, "__init__", begun)
    assert [*below_rows([number], in_rows, spaces_of)]


@pytest.mark.parametrize("numbers", [range(24), rarely(range(24, 280))], ids=len)
def test_no_plan_in_rounds_is_below_its_row(numbers: Iterable[int]) -> None:
    """What rows of modes are bounded by is no more than the step of any plan, nor is the least of two ways."""
    assert [*below_rows(numbers, in_rows, spaces_of)] == []


@pytest.mark.parametrize("numbers", [range(30), rarely(range(30, 280))], ids=len)
def test_no_plan_in_unlike_rounds_is_below_its_row(numbers: Iterable[int]) -> None:
    """The same of rounds that are cut unlike."""
    assert [*below_rows(numbers, unlike, spaces_of)] == []


def test_ways_ahead_of_the_mean_round_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that is cut unlike may have less before a device than its share."""
    least = folded.way_ahead

    def mean(folding: Folding, layers: Array) -> Array:
        return least(folding, layers) if folding.laid.turns else folded.total(folding, layers) // folding.rounds

    monkeypatch.setattr(table, "way_ahead", mean)
    assert [*below_rows([44], unlike, spaces_of)]


@pytest.mark.parametrize("numbers", [range(24), rarely(range(24, 180))], ids=len)
def test_no_plan_in_rounds_beats_its_bound(numbers: Iterable[int]) -> None:
    """What the partition problem says of super layers is no more than the step of their stages, family by family."""
    assert [*beaten(numbers)] == []


def shapes_beaten(numbers: Iterable[int]) -> Iterator[str]:
    """Partitions that fit and whose step is below the bound of their shape, or whose shape has none."""
    for number in numbers:
        document = asked(number)
        document["job"] |= {"schedules": ["interleaved"], "chunks": [2 + number % 2]}
        for space, size in ((own, size) for own in spaces_of(document) for size in own.sizes):
            bounds = {modes: bound for bound, _, modes in sorted_shapes(space, size)}
            for modes, _ in space.all_modes(size):
                for candidate in chain(*(space.candidates(own, size) for own in space.placing.of(modes))):
                    for inner in combinations(range(1, n := candidate.chain.layers), candidate.depth - 1):
                        fits = candidate.fits(boundaries := (0, *inner, n))
                        value = evaluate(space.cluster, candidate, boundaries).value if fits else NEVER
                        if value < bounds.get(modes, NEVER):
                            yield f"question {number}: {candidate.label}: {value} below {bounds.get(modes)}"


@pytest.mark.parametrize("numbers", [range(1_630_000, 1_630_040), rarely(range(1_630_040, 1_630_440))], ids=len)
def test_no_partition_in_rounds_is_better_than_the_bound_of_its_shape(numbers: Iterable[int]) -> None:
    """Whatever the placement; a shape without a bound has no partition that fits."""
    assert [*shapes_beaten(numbers)] == []


def test_shapes_of_whole_devices_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro-batch passes one stage of a device before the next device has it."""
    monkeypatch.setattr(ShapeTables, "_first_to_pass", lambda *_: None)
    assert [*shapes_beaten(range(1_630_000, 1_630_020))]


def in_loops(number: int) -> Document:
    """A random question of which partitions may follow by the bounds of rows."""
    random, document = Random(f"in loops {number}"), asked(number)
    document["cluster"]["overlap"] = True
    document["job"] |= {"schedules": [random.choice(("interleaved", "looped-bfs"))], "chunks": [random.choice((2, 3))]}
    return document


def step_of(document: Document) -> int | str:
    """The step of the proved plan in nanoseconds, or that there is none."""
    model, cluster, job = objects(document)
    try:
        found = solve(model, cluster, job=job, time_limit=60, gap=0)
    except (InputError, InfeasibleError) as error:
        return type(error).__name__
    assert found.bound == found.value
    return found.value


@pytest.mark.parametrize("most", [folded_partitions.LISTED, -1], ids=["listed", "in ranges"])
@pytest.mark.parametrize("numbers", [range(6), rarely(range(6, 80))], ids=len)
def test_partitions_by_rows_are_those_of_lists(
    monkeypatch: pytest.MonkeyPatch, numbers: Iterable[int], most: int
) -> None:
    """Where partitions are too many for a list of all, paths exclude most, or they are divided: to the same plan."""
    seen: list[object] = []
    every = [in_loops(number) for number in numbers]
    by_lists = [step_of(document) for document in every]
    monkeypatch.setattr(rows, "few", seen.append)
    monkeypatch.setattr(folded_partitions, "LISTED", most)
    assert [step_of(document) for document in every] == by_lists
    assert len(seen) > len(every) // 2


@pytest.mark.parametrize(
    ("most", "room", "name", "wrong", "number"),
    [
        (-1, FoldedPartitionsNode, "_others", lambda others, own: [*others(own)][1::2], 19),
        (folded_partitions.LISTED, folded_partitions, "below", lambda below, *asked: below(*asked)[:0], 19),
    ],
    ids=["in ranges", "listed"],
)
def test_partitions_that_are_left_out_are_noticed(
    monkeypatch: pytest.MonkeyPatch, most: int, room: Any, name: str, wrong: Any, number: int
) -> None:
    """As if none had its first differing cut before that of the one simulated, or none were listed."""
    document, right = in_loops(number), getattr(room, name)
    best = step_of(document)
    monkeypatch.setattr(rows, "few", lambda _: False)
    monkeypatch.setattr(folded_partitions, "LISTED", most)
    assert step_of(document) == best
    monkeypatch.setattr(room, name, lambda *asked: wrong(right, *asked))
    assert step_of(document) != best


def on_paths(number: int) -> Document:
    """A random question whose critical paths are inequalities; ends of many share weights, or memory is short."""
    random, document = Random(f"on paths {number}"), asked(number)
    document["cluster"]["overlap"] = True
    document["job"].pop("objective", None)
    model, layers = document["model"], document["model"]["layers"]
    if number % 3 == 0 and layers[0]["parameters"]:
        ends = [layers[0]["name"], layers[-1]["name"]]
        model["ties"] = [{"layers": ends, "parameters": layers[0]["parameters"]}]
    if number % 3 == 1:
        document["job"]["memory"] = int(questions._whole(model) * random.uniform(0.3, 0.9)) + 1
    return document


joint, longer, left = FoldedPaths._joint, FoldedPaths._longer.func, folded_paths._Left


def paths_of(numbers: Iterable[int]) -> Iterator[tuple[str, int, int, bool]]:
    """Critical paths of partitions on these and on others: what it is, its length, the step, and if it is their own."""
    for number in numbers:
        random = Random(f"paths in rounds {number}")
        for space in spaces_of(on_paths(number)):
            for _, own in groupby([*plans(space, random)], key=lambda plan: id(plan[0])):
                (candidate, *_), every = zip(*own, strict=True)
                steps = [evaluate(space.cluster, candidate, boundaries).value for boundaries in every]
                for found in every if has_folded_paths(candidate) else ():
                    shares = FoldedPaths(candidate, space.cluster).find(found)
                    for boundaries, step in zip(every, steps, strict=True):
                        length = sum(int(shares[d, e, a]) for d, (a, e) in enumerate(pairwise(boundaries)))
                        yield f"{number}: {candidate.label}, {found} on {boundaries}", length, step, found == boundaries


@pytest.mark.parametrize("numbers", [range(2_000_000, 2_000_060), rarely(range(2_000_060, 2_000_460))], ids=len)
def test_no_partition_is_better_than_the_critical_path_of_another(numbers: Iterable[int]) -> None:
    """Whatever the family, replicas, recomputation and shared weights; and many paths are as long as their own step."""
    every = [*paths_of(numbers)]
    assert [what for what, length, step, _ in every if length > step] == []
    assert sum(length == step for *_, length, step, own in every if own) > len(every) // 30


@pytest.mark.parametrize(
    ("room", "name", "wrong", "number"),
    [
        (
            folded_paths,
            "read_path",
            lambda *path: replace(read := read_path(*path), update=tuple(2 * u for u in read.update)),
            2_000_009,
        ),
        (
            folded_paths,
            "read_path",
            lambda *path: replace(read := read_path(*path), latency=tuple(2 * late for late in read.latency)),
            2_000_010,
        ),
        (FoldedPaths, "_joint", lambda _, chain: 2 * joint(chain), 2_000_016),
        (FoldedPaths, "_longer", property(lambda own: 2 * longer(own)), 2_000_011),
        (folded_paths, "_Left", lambda times, hides, base: left(2 * times, 2 * hides, 2 * base), 2_000_401),
        (folded_paths, "_Left", lambda times, hides, base: left(times, 0 * hides, base), 2_000_411),
    ],
    ids=["updates", "latencies", "shared weights", "recomputation", "sums", "hidden sums"],
)
def test_paths_that_count_too_much_are_noticed(
    monkeypatch: pytest.MonkeyPatch, room: Any, name: str, wrong: Any, number: int
) -> None:
    """Of each part that is not in most questions."""
    assert not any(length > step for _, length, step, _ in paths_of([number]))
    monkeypatch.setattr(room, name, wrong)
    assert any(length > step for _, length, step, _ in paths_of([number]))
