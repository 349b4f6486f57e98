"""BaPipe-style greedy partitioner: target fill, links, memory."""

from fractions import Fraction

import pytest

from helpers.chains import make_chain
from pipeplan.baselines.partitioners import PARTITIONERS, NotApplicable
from pipeplan.baselines.partitioners.bapipe import stage_bytes, target

balance = PARTITIONERS["bapipe"].balance


def test_target_of_equal_devices_is_the_mean() -> None:
    """Four equal devices share 30 ns of work as 7.5 each."""
    assert target(make_chain([10, 5], [10, 5], devices=4)) == Fraction(15, 2)


def test_target_of_unequal_devices_gives_equal_times() -> None:
    """Speeds 1 and 2: a third of 60 ns of work on the slow one and two thirds on the fast one take 20 ns each."""
    assert target(make_chain([20, 20, 20], devices=[1, 2])) == 20


def test_stages_end_nearest_to_the_target() -> None:
    """With T* = 10, 9 is nearer than 14, and of 7 and 13, equally near, the later end is taken."""
    assert balance(make_chain([9, 5, 6], devices=2), 8) == (0, 1, 3)
    assert balance(make_chain([7, 6, 7], devices=2), 8) == (0, 2, 3)


def test_every_stage_gets_a_layer() -> None:
    """A first layer beyond the target leaves the others one layer each at least."""
    assert balance(make_chain([1, 1, 1, 50], devices=4), 8) == (0, 1, 2, 3, 4)


def test_a_fast_device_is_filled_further() -> None:
    """On speeds 1 and 3 the slow device stops at a quarter of the work."""
    assert balance(make_chain([30] * 8, devices=[1, 3]), 8) == (0, 2, 8)


def test_slow_cuts_are_merged_away() -> None:
    """T* is 8 ns, so the middle cut, 9 ns to send, is not allowed, and the cut behind it is taken."""
    allowed = make_chain([4, 4, 4, 4], devices=2, boundary=[9, 8, 2], bandwidth=10**9)
    merged = make_chain([4, 4, 4, 4], devices=2, boundary=[9, 9, 2], bandwidth=10**9)
    assert balance(allowed, 8) == (0, 2, 4)
    assert balance(merged, 8) == (0, 3, 4)


def test_the_slow_link_is_the_one_that_matters() -> None:
    """A tensor that only the second link is too slow for may still cross the first."""
    chain = make_chain([4, 4, 4, 4, 4, 4], devices=3, boundary=[1, 9, 9, 9, 1], bandwidth=[10**10, 10**9])
    assert balance(chain, 8) == (0, 2, 5, 6)


def test_too_few_cuts_leave_devices_idle() -> None:
    """If only one cut can be sent in time, two stages are used and the third device stays empty."""
    chain = make_chain([6, 6, 6], devices=3, boundary=[1, 99], bandwidth=10**9)
    assert balance(chain, 8) == (0, 1, 3, 3)
    assert balance(make_chain([6, 6], devices=3, boundary=99, bandwidth=10**9), 8) == (0, 2, 2, 2)


def test_an_overfull_stage_gives_to_its_neighbour() -> None:
    """Stage 0 holds two micro-batches in flight: 3 layers of 10 bytes need 60 of 50, so one of them moves on."""
    chain = make_chain([4] * 6, devices=2, saved=10, limit=50)
    assert balance(make_chain([4] * 6, devices=2, saved=10), 8) == (0, 3, 6)
    assert balance(chain, 8) == (0, 2, 6)
    assert stage_bytes(chain, (0, 2, 6), (2, 1)) == [40, 40]


def test_one_micro_batch_needs_less() -> None:
    """With a single micro-batch no stage holds two, and nothing has to move."""
    assert balance(make_chain([4] * 6, devices=2, saved=10, limit=50), 1) == (0, 3, 6)


def test_blocks_move_whole() -> None:
    """If the cut inside a pair of layers is too slow, the repair for memory moves the pair."""
    chain = make_chain([4] * 6, devices=2, boundary=[99, 0, 99, 0, 99], bandwidth=10**9, saved=[10] * 6, limit=[70, 99])
    assert balance(chain, 8) == (0, 2, 6)


def test_no_room_is_said_with_numbers() -> None:
    """If no neighbour has room, the stage, its bytes and its limit are named."""
    with pytest.raises(NotApplicable, match=r"stage 0 needs 60 B of 35 B under 1F1B \(2 in flight\)"):
        balance(make_chain([4] * 6, devices=2, saved=10, limit=35), 8)


def test_memory_has_all_its_parts() -> None:
    """Resident bytes, saved and received bytes in flight, the largest workspace and the runtime add up."""
    chain = make_chain(
        [1, 1, 1],
        devices=2,
        boundary=[5, 7],
        saved=[10, 20, 40],
        weights=100,
        gradients=200,
        optimizer=300,
        workspace=[3, 1, 2],
        runtime=[1000, 2000],
    )
    assert stage_bytes(chain, (0, 1, 3), (2, 1)) == [600 + 2 * 10 + 3 + 1000, 1200 + 20 + 40 + 5 + 2 + 2000]
