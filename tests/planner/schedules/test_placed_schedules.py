"""Families that place several stages on a device and split backwards."""

import inspect
from collections.abc import Iterator
from random import Random

import pytest

from helpers.placed import equal_stages, placed
from pipeplan.core.errors import InputError
from pipeplan.core.pipeline import Stage
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.validate import validate_schedule
from pipeplan.schedules import FAMILIES, PLACED, family
from pipeplan.schedules.building_block import Strides, building_block, weights_in_gaps
from pipeplan.schedules.placed import held_at_most
from pipeplan.simulate import makespan, simulate

names = pytest.mark.parametrize("name", PLACED)


def sizes(name: str, most_devices: int = 5) -> Iterator[tuple[int, int, int | None]]:
    """Devices, micro-batches and chunks of small schedules of a family."""
    for devices in range(1, most_devices + 1):
        for chunks in (1, 2, 3) if PLACED[name].chunks is None else (None,):
            for micro_batches in range(1, 3 * devices + 2) if devices % 2 == 0 or not PLACED[name].even else ():
                yield devices, micro_batches, chunks


@names
def test_every_family_writes_valid_lists(name: str) -> None:
    """Complete lists that end, on the devices that the placement says, under the family's own name."""
    for devices, micro_batches, chunks in sizes(name):
        schedule, placement = (
            PLACED[name].write(devices, micro_batches, chunks),
            PLACED[name].placement(devices, chunks),
        )
        validate_schedule(schedule, len(placement), micro_batches, placement)
        assert schedule.family == name
        assert schedule.homes == tuple(tuple(sorted(homes)) for homes in placement)
        assert len({len([s for s, homes in enumerate(placement) if d in homes]) for d in range(devices)}) == 1
        split = any(action.kind is Kind.INPUT_GRADIENT for action in schedule.actions())
        assert split <= PLACED[name].splits


@names
@pytest.mark.parametrize("latency", [0, 20])
def test_no_device_holds_more_than_it_is_said_to(name: str, latency: int) -> None:
    """Unequal stages and slow links change when things happen, not how much is held."""
    random = Random(name)
    for devices, micro_batches, chunks in sizes(name, 4):
        placement = PLACED[name].placement(devices, chunks)
        halves = [(random.randint(0, 9), random.randint(0, 9)) for _ in placement]
        stages = tuple(Stage(random.randint(0, 9), i + w, i, w, held=1) for i, w in halves)
        schedule = PLACED[name].write(devices, micro_batches, chunks)
        peaks = simulate(schedule, placed(placement, stages, latency)).peaks
        most = PLACED[name].in_flight(devices, micro_batches, chunks)
        assert all(peak <= count for peak, count in zip(peaks, most, strict=True))


@pytest.mark.parametrize("p", [2, 3, 4, 6, 7])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_interleaving_divides_the_bubble(p: int, chunks: int) -> None:
    """m v (F + B) and p − 1 pairs of a chunk more, with (v − 1) p + 2 (p − 1 − d) + 1 stage activations on device d."""
    m = 4 * p
    for name in ("interleaved", "looped-bfs"):
        pipeline = equal_stages(PLACED[name].placement(p, chunks), 2, 3, 1)
        assert makespan(PLACED[name].write(p, m, chunks), pipeline) == (m * chunks + p - 1) * 6
    held = tuple((chunks - 1) * p + 2 * (p - 1 - d) + 1 for d in range(p))
    assert PLACED["interleaved"].in_flight(p, m, chunks) == held
    assert PLACED["looped-bfs"].in_flight(p, m, chunks) == (m * chunks,) * p


def test_interleaving_with_one_chunk_is_1f1b_with_the_doubled_warm_up() -> None:
    """One stage per device leaves nothing to interleave."""
    assert PLACED["interleaved"].write(5, 13, 1).orders == FAMILIES["1f1b-so"].write((1,) * 5, 13).orders


UNIT_TIMES = {  # name: (least m, makespan, stage activations) for p devices and m micro-batches, F = I = W = 1
    "zb-h1": (lambda p: p, lambda p, m: 3 * m + p - 1, lambda p: p),
    "zb-h2": (lambda p: 2 * p - 1, lambda p, m: 3 * m + p - 1, lambda p: 2 * p - 1),
    "zb-v": (lambda p: 2 * p - 1, lambda p, m: 6 * m + p - 1, lambda p: 2 * p),
    "v-half": (
        lambda p: p,
        lambda p, m: 6 * m + max(p - 1, 3 * p - (4 if p % 2 else 7)),
        lambda p: 2 * (p // 2) + 2,
    ),
    "v-min": (
        lambda p: p,
        lambda p, m: 6 * m + (4 * p - (7 if p % 3 == 0 else 5) if p > 2 else 1),
        lambda p: 2 * ((p + 1) // 3) + 2,
    ),
    "dualpipe-v": (lambda p: 2 * p, lambda p, m: 6 * m + p - 1, lambda p: 2 * p + 1),
}


@pytest.mark.parametrize("p", range(2, 10))
@pytest.mark.parametrize("name", UNIT_TIMES)
def test_step_time_and_memory_of_split_backwards(name: str, p: int) -> None:
    """Step times and memory stated in each docstring, for equal stages with F = I = W = 1 and free links."""
    least, step, held = UNIT_TIMES[name]
    for m in (least(p), least(p) + 1, 5 * p):
        timeline = simulate(PLACED[name].write(p, m), equal_stages(PLACED[name].placement(p), 1, 1, 1))
        assert timeline.makespan == step(p, m)
        assert max(timeline.peaks) == held(p)


@pytest.mark.parametrize("p", range(2, 8))
@pytest.mark.parametrize("name", ["zb-h2", "zb-v"])
def test_zero_bubble_means_that_no_device_waits(name: str, p: int) -> None:
    """For m ≥ 2 p − 1 a device is busy from its first action to its last; with one less some device waits."""
    for m in (2 * p - 2, 2 * p - 1, 4 * p):
        timeline = simulate(PLACED[name].write(p, m), equal_stages(PLACED[name].placement(p), 1, 1, 1))
        waits = 0
        for device in range(p):
            spans = [s for s in timeline.spans if s.device == device and s.action.kind.per_micro_batch]
            waits += max(s.end for s in spans) - min(s.start for s in spans) - timeline.busy(device)
        assert (waits > 0) == (m < 2 * p - 1)


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_two_directions_halve_the_bubble(p: int) -> None:
    """2 m + p − 2 for F = B = 1 and whole units, with p micro-batches on the middle devices and a reduction."""
    for m in (p, 3 * p):
        schedule = PLACED["chimera"].write(p, m)
        timeline = simulate(schedule, equal_stages(PLACED["chimera"].placement(p), 1, 1, 0))
        assert timeline.makespan == 2 * m + p - 2
        assert max(timeline.peaks) == p
    assert schedule.as_text()[0].endswith(f"0R {p - 1}R 0U {p - 1}U")


@names
def test_pictures_are_what_runs(name: str) -> None:
    """The picture of a family is the simulator's time line of that size."""
    picture = inspect.getdoc(PLACED[name].orders).replace("━━━", " ━")
    rows = [line.split() for line in picture.splitlines() if line.startswith("    device")]
    drawn = [row[2:] for row in rows]
    devices = len(drawn)
    micro_batches = 1 + max(int(cell[1:]) for cell in drawn[0] if cell[0] in "Ff" and cell[1:].isdigit())
    chunks = None if PLACED[name].chunks else 2
    placement = PLACED[name].placement(devices, chunks)
    timeline = simulate(
        PLACED[name].write(devices, micro_batches, chunks), equal_stages(placement, 1, 1, PLACED[name].splits)
    )
    cells = [["."] * timeline.makespan for _ in range(devices)]
    for span in timeline.spans:
        if span.action.kind.per_micro_batch:
            kind = str(span.action.kind)
            letter = kind.lower() if len(placement) > devices and span.action.stage < devices else kind
            row = cells[span.device]
            row[span.start : span.end] = [f"{letter}{span.action.micro_batch}"] + ["━"] * (span.end - span.start - 1)
    assert [row[: timeline.makespan] for row in drawn] == cells


def test_building_blocks_repeat_and_the_gaps_find_room() -> None:
    """No device is wanted twice at once, whatever the number of devices, and orders that cannot end are refused."""
    for strides in (Strides(1, 1, 1, 1), Strides(2, 1, 2, 1)):
        assert all(building_block(p, strides).repeats for p in range(1, 25))
    orders = Schedule.from_text("x", ["0F0 0F1 1F0 1I0 0I0 1F1 1I1 0I1"]).orders
    written = [" ".join(map(str, order)) for order in weights_in_gaps(orders, 3)]
    assert written == ["0F0 0F1 1F0 1I0 0I0 1W0 1F1 1I1 0I1 0W0 1W1 0W1"]
    with pytest.raises(ValueError, match="with 2 stage activations per device these orders deadlock"):
        weights_in_gaps(orders, 2)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("zb-v", (0, 4), "at least one device, one micro-batch and one stage per device, not 0, 4 and 2"),
        ("interleaved", (2, 0), "not 2, 0 and 2"),
        ("interleaved", (2, 4, -1), "not 2, 4 and -1"),
        ("zb-h1", (2, 4, 2), "zb-h1 gives each device 1 of the stages, not 2"),
        ("chimera", (3, 4), "needs an even number of devices, not 3"),
    ],
)
def test_impossible_sizes_are_refused(name: str, arguments: tuple[int, ...], message: str) -> None:
    """The error says what the family needs."""
    with pytest.raises(InputError, match=message):
        PLACED[name].write(*arguments)


def test_plans_say_why_they_cannot_choose_these() -> None:
    """Asked for by name where stages have devices of their own, the error tells what there is."""
    assert not set(PLACED) & set(FAMILIES)
    with pytest.raises(InputError, match=r"'zb-v' places stages itself .*1f1b-sno.*PLACED\['zb-v'\]"):
        family("zb-v")


@pytest.mark.parametrize("name", [name for name, family in PLACED.items() if family.in_rounds])
def test_what_devices_hold_is_what_their_lists_hold(name: str) -> None:
    """The numbers stated, and those counted in lists of few micro-batches, are those of the whole lists."""
    for devices in range(1, 7):
        for many in (*range(1, 4 * devices + 2), 9 * devices):
            for chunks in [PLACED[name].chunks] if PLACED[name].chunks else (1, 2, 3):
                orders = PLACED[name].write(devices, many, chunks).orders
                assert PLACED[name].fullest(devices, many, chunks) == tuple(map(held_at_most, orders))
