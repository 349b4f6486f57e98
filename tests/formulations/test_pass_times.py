"""Times that differ by role: a device's own work, the way ahead and behind, the round trip, services."""

from random import Random

import numpy as np
import pytest

from helpers.partitions import chain_partition, without_roles
from helpers.passes import Run, Way, drawn_run
from pipeplan_formulations.allocation import ChainAllocation, Place
from pipeplan_formulations.partition import ChainPartition


def chunked(random: Random) -> Way:
    """Two or three stages on each of up to three devices, round after round or there and back."""
    devices, chunks = random.randint(1, 3), random.randint(2, 3)
    rounds = [list(range(devices)) for _ in range(chunks)]
    if random.random() < 0.5:
        rounds = [row[::-1] if number % 2 else row for number, row in enumerate(rounds)]
    device = [each for row in rounds for each in row]
    forward, backward = ([[random.randint(0, 9)] for _ in device] for _ in range(2))
    return Way(device, forward, backward, [random.randint(0, 5) for _ in device])


def sliced(random: Random) -> Way:
    """Up to three devices, and up to four slices, of which later ones take longer."""
    devices, slices = random.randint(1, 3), random.randint(1, 4)
    times = [[sorted(random.randint(0, 9) for _ in range(slices)) for _ in range(devices)] for _ in range(2)]
    return Way(list(range(devices)), *times, [random.randint(0, 5) for _ in range(devices)])


def tables(way: Way) -> dict[str, object]:
    """Tables of one layer for each device that runs the way, with the times of each role."""
    devices = len(set(way.device))
    own, first, mean = (np.zeros((2, devices), np.int64) for _ in range(3))
    for table, rows in enumerate((way.forward, way.backward)):
        for device in range(devices):
            stages = [rows[stage] for stage, place in enumerate(way.device) if place == device]
            own[table, device] = sum(map(sum, stages))
            first[table, device] = min(stages[0])
            mean[table, device] = sum(map(sum, stages)) // len(stages)
    names = ("forward", "backward")
    found: dict[str, object] = dict(zip(names, own, strict=True))
    found |= {f"ahead_{name}": row for name, row in zip(names, first, strict=True)}
    if len(way.device) > devices:
        return found | {f"service_{name}": row for name, row in zip(names, mean, strict=True)}
    return found | {"round_trip": "ahead"}


def most_before(way: Way, run: Run, device: int) -> int:
    """k of the warm-up: so many micro-batches take at least as long as a stage's forwards before its first backward."""
    counts = [0]
    for stage in {action[1] for action in run.order[device]}:
        actions = [action for action in run.order[device] if action[1] == stage]
        first = next(place for place, action in enumerate(actions) if action[0] == "B")
        before = sum(way.forward[stage][action[3]] for action in actions[:first])
        whole = sum(way.forward[stage])
        counts.append(-(-before // whole) if whole else first)
    return max(counts)


def as_partition(way: Way, micro_batches: int, endings: list[int], held: list[int]) -> ChainPartition:
    """The partition problem with a layer for each device."""
    devices = len(endings)
    rows = {
        name: np.tile(row, (devices, 1)) if isinstance(row, np.ndarray) else row for name, row in tables(way).items()
    }
    return chain_partition(
        **rows,
        micro_batches=micro_batches,
        latency=np.array(way.latency[: devices - 1], np.int64),
        update=np.tile(endings, (devices, 1)),
        warm_up=np.array(held),
        alternating=True,
        received=np.zeros(devices - 1, np.int64),
    )


def as_allocation(way: Way, micro_batches: int, endings: list[int]) -> ChainAllocation:
    """The allocation problem with a layer for each device, without links."""
    devices = len(endings)
    rows = {name: row[None] if isinstance(row, np.ndarray) else row for name, row in tables(way).items()}
    return ChainAllocation(
        **rows,
        update=np.array([[endings]]),
        limit=np.array([1]),
        units=np.array([devices]),
        node=np.array([devices]),
        micro_batches=micro_batches,
        in_flight_rule="full",
        alternating=False,
    )


@pytest.mark.parametrize("kind", [chunked, sliced])
def test_no_run_ends_before_the_value(kind) -> None:
    """Chunks and slices in any order take at least the value, some no longer; without roles it would be too much."""
    met = beaten = 0
    for seed in range(300):
        random = Random(f"{kind.__name__} {seed}")
        way, micro_batches = kind(random), random.randint(1, 5)
        devices = len(set(way.device))
        endings = [random.randint(0, 20) for _ in range(devices)]
        run = drawn_run(way, micro_batches, endings, random)
        held = [most_before(way, run, device) for device in range(devices)]
        problem, boundaries = as_partition(way, micro_batches, endings, held), tuple(range(devices + 1))
        value = problem.evaluate(boundaries)
        stages = tuple(Place(s, s + 1, 0, 1) for s in range(devices))
        apart = as_allocation(way, micro_batches, endings).evaluate(stages)
        assert max(value, apart) <= run.makespan, seed
        met += value == run.makespan
        beaten += without_roles(problem).evaluate(boundaries) > run.makespan
    assert met > 5
    assert beaten > 5


def test_a_round_trip_counts_every_chunk_and_one_slice() -> None:
    """One micro-batch through two stages on each of two devices, and through two devices in two slices."""
    own = {"forward": np.full((2, 2), 4), "backward": np.full((2, 2), 8), "micro_batches": 1}
    ahead = {"ahead_forward": np.full((2, 2), 2), "ahead_backward": np.full((2, 2), 4)}
    chunks = chain_partition(**own, **ahead, service_forward=np.full((2, 2), 2), service_backward=np.full((2, 2), 4))
    assert chunks.evaluate((0, 1, 2)) == 2 * (4 + 8)
    slices = chain_partition(**own, **ahead, round_trip="ahead")
    assert slices.evaluate((0, 1, 2)) == (2 + 4) + (4 + 8)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ahead_forward": [[1, 1]]}, "ahead_backward is missing"),
        ({"service_forward": [[1, 3]], "service_backward": [[1, 1]]}, "layer 1 is 3, but forward is 2"),
        ({"ahead_forward": [[1, 1]], "ahead_backward": [[9, 1]]}, "layer 0 is 9, but backward is 4"),
        ({"round_trip": "none"}, "choose own or ahead"),
        ({"ahead_weight": [[1, 1]]}, "without weight"),
        ({"ahead_weight": [[1, 9]], "weight": np.array([[1, 1]])}, "layer 1 is 9, but weight is 1"),
        ({"ahead_forward": [[1]], "ahead_backward": [[1]]}, "expected"),
    ],
)
def test_roles_that_do_not_fit_are_refused(fields, words) -> None:
    """Half a role, more than the device's own work, an unknown round trip, and weight gradients without a split."""
    arrays = {name: np.array(value) if isinstance(value, list) else value for name, value in fields.items()}
    with pytest.raises(ValueError, match=words):
        chain_partition([[2, 2]], [[4, 4]], **arrays)


def test_equal_tables_change_nothing() -> None:
    """Tables of roles that equal the device's own give the value without them, as long as nothing is recomputed."""
    rng = np.random.default_rng(0)
    forward, backward = rng.integers(1, 9, (2, 3, 6))
    plain = chain_partition(forward, backward)
    roles = {
        f"{role}_{name}": table
        for role in ("ahead", "service")
        for name, table in zip(("forward", "backward"), (forward, backward), strict=True)
    }
    for trip in ("own", "ahead"):
        same = chain_partition(forward, backward, round_trip=trip, **roles)
        assert same.evaluate((0, 2, 4, 6)) == plain.evaluate((0, 2, 4, 6))
        assert same.lower_bound() == plain.lower_bound()
