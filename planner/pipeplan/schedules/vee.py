"""V-shaped schedules with two stages per device: ZB-V, V-Half, V-Min and DualPipe-V.

Device d of p runs stage d on the way down (its near stage) and stage 2 p − 1 − d on the way up (its far stage).
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator

from pipeplan.core.schedule import Action, Kind
from pipeplan.schedules.building_block import Strides, building_block, repeated
from pipeplan.schedules.placed import Held, Order, PlacedFamily, held_in_lists, vee


def spell(letters: Iterable[str], device: int, devices: int, micro_batches: int) -> Iterator[Action]:
    """Expand letters of actions, without micro-batches, to a device's list.

    ::

        'f f F I W f i w'  on device 1 of 3, vee        1F0 1F1 4F0 4I0 4W0 1F2 1I0 1W0
         │   └ upper case: the far stage, 2 p − 1 − d, which micro-batches reach on their way back
         └ lower case: the near stage, d

    Micro-batches of one kind and stage run in order, so the n-th forward is micro-batch n, the n-th B or I its
    backward, and a W belongs to the earliest I that still lacks one.

    Actions of micro-batches beyond ``micro_batches`` are omitted. Lists without deadlock stay without deadlock when
    micro-batches are omitted, so those of a longer step may be given.
    """
    forwards: Counter[int] = Counter()
    backwards: Counter[int] = Counter()
    lacking: dict[int, deque[int]] = defaultdict(deque)
    for letter in letters:
        kind, stage = Kind(letter.upper()), device if letter.islower() else 2 * devices - 1 - device
        if kind is Kind.WEIGHT_GRADIENT:
            micro_batch = lacking[stage].popleft()
        else:
            counts = forwards if kind is Kind.FORWARD else backwards
            micro_batch = counts[stage]
            counts[stage] += 1
        if kind is Kind.INPUT_GRADIENT:
            lacking[stage].append(micro_batch)
        if micro_batch < micro_batches:
            yield Action(kind, stage, micro_batch)


def _zb_v(devices: int, micro_batches: int, _chunks: int = 2) -> Iterator[Order]:
    """Yield ZB-V: two stages per device, down and up, without idle devices (Qi et al., ICLR 2024, section 6).

    ::

        time         0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18  2 devices, 3 micro-batches, F = I = W = 1;
        device 0    f0 f1 f2 F0 I0 W0 F1 I1 W1 i0 w0 F2 I2 W2 i1 w1 i2 w2  .  lower case: near stage, upper case: far
        device 1     . f0 F0 f1 F1 I0 W0 f2 i0 w0 F2 I1 W1 i1 I2 i2 w1 W2 w2  stage

    The last stage is on the first device, so a micro-batch's backward begins there without delay. Every device holds
    2 p stage activations, as many as 1F1B's first device. With equal stages, F = I = W = 1 and free links no device
    waits between its first action and its last for m ≥ 2 p − 1, and a step takes 6 m + p − 1.

    Device d of p: f until the first F can run, f and F in turn until the first I can, F I W until the first
    i can, and f i w F I W in turn. After the last f it is i w F I W, and at the end the delayed weight gradients. A
    step of fewer than 2 p − 1 micro-batches is that of 2 p − 1 without the others.
    """
    long = max(micro_batches, 2 * devices - 1)
    return (tuple(spell(_zb_v_word(d, devices, long), d, devices, micro_batches)) for d in range(devices))


def _held_in_zb_v(devices: int, micro_batches: int, chunks: int) -> Held:
    """Return what each device holds: before its first I, all its warm-up."""
    if micro_batches < 2 * devices - 1:
        return held_in_lists(_zb_v, devices, micro_batches, chunks)
    return tuple((2 * devices - 1 - device, device + 1) for device in range(devices))


def _zb_v_word(device: int, devices: int, micro_batches: int) -> str:
    after = devices - device  # devices from this one to the turn
    warm = "f" * (2 * after - 1) + "Ff" * device + "FIW" * after
    steady = "fiwFIW" * (micro_batches - 2 * devices + 1 + device) + "iwFIW" * (after - 1)
    return warm + steady + "iI" * device + "iw" * after + "W" * device + "w" * device


ZB_V = PlacedFamily(
    "zb-v",
    _zb_v,
    vee,
    "two stages per device in a V, split backwards; devices never wait, at 1F1B's peak memory",
    chunks=2,
    splits=True,
    held=_held_in_zb_v,
)


V_HALF_STRIDES = Strides(2, 1, 2, 1)


def _v_half(devices: int, micro_batches: int, _chunks: int = 2) -> Iterator[Order]:
    """Yield V-Half: half of 1F1B's peak memory (Qi et al., NeurIPS 2024, V-shape building blocks).

    ::

        time         0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18  2 devices, 3 micro-batches, F = I = W = 1;
        device 0    f0 f1 f2 F0 I0 W0 F1 i0 I1 w0 W1 F2 I2 i1 W2 i2 w1 w2  .  lower case: near stage, upper case: far
        device 1     . f0 F0 f1 F1 I0 i0 W0 f2 w0 F2 I1 i1 I2 i2 W1 w1 W2 w2  stage

    Of its building block's waves the near forwards and the far input gradients, which both run down the devices, take
    two units per device, the others one. A device holds p + 2 stage activations (p + 1 where p is odd): half of the 2 p
    that 1F1B's first device holds, plus two. With equal stages, F = I = W = 1, free links and m ≥ p a step takes
    6 m + 3 p − 7 (6 m + 1 for p = 2; 6 m + 3 p − 4 where p is odd); ZB-V takes 6 m + p − 1.
    """
    return repeated(building_block(devices, V_HALF_STRIDES), micro_batches)


V_HALF = PlacedFamily(
    "v-half",
    _v_half,
    vee,
    "two stages per device in a V, split backwards; about half of 1F1B's peak memory",
    chunks=2,
    splits=True,
)


V_MIN_STRIDES = Strides(1, 1, 1, 1)


def _v_min(devices: int, micro_batches: int, _chunks: int = 2) -> Iterator[Order]:
    """Yield V-Min: activations held as briefly as possible (Qi et al., NeurIPS 2024, V-shape building blocks).

    ::

        time         0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18  2 devices, 3 micro-batches, F = I = W = 1;
        device 0    f0 f1 f2 F0 I0 W0 F1 i0 I1 w0 W1 i1 w1 F2 I2 W2  . i2 w2  lower case: near stage, upper case: far
        device 1     . f0 F0 f1 F1 I0 i0 W0 w0 I1 i1 f2 F2 W1 w1 I2 i2 W2 w2  stage

    Every wave of its building block advances by one device per unit. A device holds 2 ⌊(p + 1) / 3⌋ + 2 stage
    activations: a third of the 2 p that 1F1B's first device holds, plus a few. With equal stages, F = I = W = 1, free
    links and m ≥ p a step takes 6 m + 4 p − 5 (6 m + 1 for p = 2; 6 m + 4 p − 7 where 3 divides p); ZB-V takes
    6 m + p − 1. There is no slack between neighbours, so unequal stages and slow links cost more than in other
    schedules.
    """
    return repeated(building_block(devices, V_MIN_STRIDES), micro_batches)


V_MIN = PlacedFamily(
    "v-min",
    _v_min,
    vee,
    "two stages per device in a V, split backwards; about a third of 1F1B's peak memory",
    chunks=2,
    splits=True,
)


def _dualpipe_v(devices: int, micro_batches: int, _chunks: int = 2) -> Iterator[Order]:
    """Yield DualPipe-V: forwards of one stage beside backwards of the other on each device (DeepSeek-AI, 2025).

    ::

        time       0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24      2 devices,
        device 0  f0 f1 f2 F0 I0 W0 F1 f3 B1━━━ F2 b0━━━ B2━━━ F3  . b1━━━ B3━━━ i2 w2 i3 w3      4 micro-batches,
        device 1   . f0 F0 f1 F1 f2 B0━━━ F2 b0━━━ f3 B1━━━ F3 b1━━━ B2━━━ b2━━━ I3 i3 W3 w3      F = I = W = 1, B = 2

    Lower case: near stage, upper case: far stage; the steady state of every device is f B F b.

    One half of DualPipe (arXiv 2412.19437), which keeps two copies of the weights, folded so that it needs one. The
    pairs f B and F b are meant to run concurrently, each hiding the transfers of the other; a list has them in
    sequence. Most backwards are joined. They are split where a gap must be filled: at the beginning, before the near
    stage's first backward is available, and in the second half of the last 2 (d + 1) on device d. Every device holds
    2 p + 1 stage activations. With equal stages, F = I = W = 1, free links and m ≥ 2 p a step takes 6 m + p − 1.

    A step of fewer than 2 p micro-batches is that of 2 p without the others (the published program refuses these).
    """
    long = max(micro_batches, 2 * devices)
    return (tuple(spell(_dualpipe_v_word(d, devices, long), d, devices, micro_batches)) for d in range(devices))


def _held_in_dualpipe_v(devices: int, micro_batches: int, chunks: int) -> Held:
    """Return what each device holds: before its first B, all its warm-up and one more near forward."""
    if micro_batches < 2 * devices:
        return held_in_lists(_dualpipe_v, devices, micro_batches, chunks)
    return tuple((2 * devices - device, device + 1) for device in range(devices))


def _dualpipe_v_word(device: int, devices: int, micro_batches: int) -> str:
    behind = devices - device - 1  # devices between this one and the turn
    warm = "ff" * behind + "fF" * (device + 1) + "IWF" * behind
    steady = "fBFb" * (micro_batches - 2 * devices + device + 1) + "BFb" * behind
    last = "Bb" * (device + 1)
    joined, split = last[: device + 1], last[device + 1 :].replace("B", "I").replace("b", "i")
    put_off = split.replace("I", "W").replace("i", "w") + "w" * behind
    drain = "".join(weight + "i" for weight in put_off[:behind]) + put_off[behind:]
    return warm + steady + joined + split + drain


DUALPIPE_V = PlacedFamily(
    "dualpipe-v",
    _dualpipe_v,
    vee,
    "two stages per device in a V, forwards beside backwards of the other stage; backwards split only at the ends",
    chunks=2,
    splits=True,
    joins=True,
    held=_held_in_dualpipe_v,
)


FAMILIES = (ZB_V, V_HALF, V_MIN, DUALPIPE_V)
