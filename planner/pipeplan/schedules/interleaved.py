"""Interleaved 1F1B and looped BFS: several stages (chunks) per device, assigned round-robin."""

from collections.abc import Iterable, Iterator, Sequence

from pipeplan.core.schedule import Action, Kind
from pipeplan.schedules.placed import Held, Order, PlacedFamily, loop


def _interleaved(devices: int, micro_batches: int, chunks: int) -> Iterator[Order]:
    """Yield interleaved 1F1B: several stages per device (Narayanan et al., SC 2021, section 2).

    ::

        time         0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17     2 devices, 2 chunks, 4 micro-batches,
        device 0    f0 f1 F0 F1 f2 B0 f3 B1 F2 b0 F3 b1  . B2  . B3 b2 b3     F = B = 1; lower case: stages 0 and 1,
        device 1     . f0 f1 F0 B0 F1 B1 f2 b0 f3 b1 F2 B2 F3 B3 b2 b3  .     upper case: stages 2 and 3

    Micro-batches run in *rounds*; each round passes all of a device's chunks before the next one begins. Device d of p
    warms up with (v − 1) r + 2 (p − 1 − d) forwards for v chunks and rounds of r, then runs one forward, one backward,
    and so holds one more stage activation than that. With equal stages, free links and m a multiple of p, a step takes
    (m v + p − 1)(F + B), with F and B of a chunk: the bubble is 1 / v of 1F1B's.

    Rounds hold p micro-batches, or slightly more so that they divide evenly; the first ones may hold one more than the
    last. (Megatron-LM requires m to be a multiple of p; torch requires equal rounds.)

    Proof that the lists do not deadlock: let x and y be the positions of a forward and of a backward among all those of
    their device, and W = (v − 1) r. Use x + d for forwards and y + W + 2 (p − 1) − d for backwards as a potential. As
    long as rounds hold p − 1 or more, no step from an action to one that it waits for increases the potential, and the
    step from a forward to the backward before it decreases it. For m < p there is one round, and no device has more
    than its first m backwards between forwards; these all belong to its last chunk and wait for no chunk after it.

    With one chunk it is 1F1B-SO.
    """
    sizes = rounds(devices, micro_batches)
    down, up = list(_walk(sizes, range(chunks))), list(_walk(sizes, reversed(range(chunks))))
    for device in range(devices):
        forwards = [Action(Kind.FORWARD, chunk * devices + device, m) for chunk, m in down]
        backwards = [Action(Kind.BACKWARD, chunk * devices + device, m) for chunk, m in up]
        warm = min(len(forwards), (chunks - 1) * sizes[0] + 2 * (devices - 1 - device))
        pairs = (action for pair in zip(forwards[warm:], backwards, strict=False) for action in pair)
        yield (*forwards[:warm], *pairs, *backwards[len(forwards) - warm :])


def _held(devices: int, micro_batches: int, chunks: int) -> Held:
    """Return what each device holds: of one more forward than it warms up with, as many as are of each chunk."""
    sizes = rounds(devices, micro_batches)
    warm = ((chunks - 1) * sizes[0] + 2 * (devices - 1 - device) for device in range(devices))
    return tuple(_of_first(sizes, chunks, min(most + 1, micro_batches * chunks)) for most in warm)


def _of_first(sizes: Sequence[int], chunks: int, count: int) -> tuple[int, ...]:
    """Return how many of the first ``count`` forwards are of each chunk."""
    found = [0] * chunks
    for size in sizes:
        for chunk in range(chunks):
            own = min(size, count)
            found[chunk] += own
            count -= own
        if not count:
            break
    return tuple(found)


def rounds(devices: int, micro_batches: int) -> tuple[int, ...]:
    """Return the number of micro-batches of each round, the larger ones first."""
    count = max(1, micro_batches // devices)
    size, over = divmod(micro_batches, count)
    return (size + 1,) * over + (size,) * (count - over)


def _walk(sizes: Sequence[int], chunks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (chunk, micro-batch), round by round, chunk by chunk."""
    first, chunks = 0, tuple(chunks)
    for size in sizes:
        for chunk in chunks:
            for micro_batch in range(first, first + size):
                yield chunk, micro_batch
        first += size


INTERLEAVED = PlacedFamily(
    "interleaved",
    _interleaved,
    loop,
    "1F1B over several stages per device, round by round; a bubble of 1 / chunks, more activations and transfers",
    chunks=None,
    held=_held,
    at_ends=lambda devices, micro_batches: (rounds(devices, micro_batches)[0], rounds(devices, micro_batches)[-1]),
)


def _looped(devices: int, micro_batches: int, chunks: int) -> Iterator[Order]:
    """Yield looped BFS: all micro-batches through one chunk, then through the next (Lamy-Poirier, MLSys 2023).

    ::

        time         0  1  2  3  4  5  6  7  8  9 10 11 12 13     2 devices, 2 chunks, 3 micro-batches, F = B = 1;
        device 0    f0 f1 f2 F0 F1 F2  .  . B0 B1 B2 b0 b1 b2     lower case: stages 0 and 1, upper case: 2 and 3
        device 1     . f0 f1 f2 F0 F1 F2 B0 B1 B2 b0 b1 b2  .

    GPipe over several chunks: every device holds all m micro-batches of all v chunks, and the transfer from the last
    device to the first overlaps with the other micro-batches. With equal stages, free links and m ≥ p a step takes
    (m v + p − 1)(F + B), with F and B of a chunk. Backwards run in the order of the forwards (torch runs them in the
    reverse order, which takes as long).
    """
    for device in range(devices):
        stages = range(device, devices * chunks, devices)
        forwards = (Action(Kind.FORWARD, stage, m) for stage in stages for m in range(micro_batches))
        backwards = (Action(Kind.BACKWARD, stage, m) for stage in reversed(stages) for m in range(micro_batches))
        yield (*forwards, *backwards)


LOOPED_BFS = PlacedFamily(
    "looped-bfs",
    _looped,
    loop,
    "all forwards chunk by chunk, then all backwards; holds every micro-batch of every chunk",
    chunks=None,
    held=lambda devices, micro_batches, chunks: ((micro_batches,) * chunks,) * devices,
)


FAMILIES = (INTERLEAVED, LOOPED_BFS)
