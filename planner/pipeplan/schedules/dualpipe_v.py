"""DualPipe-V: two stages a device in a V, forwards of one beside backwards of the other (DeepSeek-AI, 2025).

::

    time       0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24      2 devices,
    device 0  f0 f1 f2 F0 I0 W0 F1 f3 B1━━━ F2 b0━━━ B2━━━ F3  . b1━━━ B3━━━ i2 w2 i3 w3      4 micro-batches,
    device 1   . f0 F0 f1 F1 f2 B0━━━ F2 b0━━━ f3 B1━━━ F3 b1━━━ B2━━━ b2━━━ I3 i3 W3 w3      F = I = W = 1, B = 2

Lower case: near stage, upper case: far stage; the steady state of every device is f B F b.

One half of DualPipe (arXiv 2412.19437), which keeps two copies of the weights, folded so that it needs one. The pairs
f B and F b are meant to run at the same time, each hiding the transfers of the other; a list has them in a row. Most
backwards are joined; they are split where a gap is to be filled: at the beginning, before the near stage's first
backward is there, and in the second half of the last 2 (d + 1) on device d. Every device holds 2 p + 1 stage
activations. With equal stages, F = I = W = 1, free links and m ≥ 2 p a step takes 6 m + p − 1.

A step of fewer than 2 p micro-batches is that of 2 p without the others (the published program refuses these).
"""

from collections.abc import Iterator

from pipeplan.schedules.placed import Order, PlacedFamily, vee
from pipeplan.schedules.words import spell


def orders(devices: int, micro_batches: int, _chunks: int = 2) -> Iterator[Order]:
    """Each device's actions."""
    long = max(micro_batches, 2 * devices)
    return (tuple(spell(_word(d, devices, long), d, devices, micro_batches)) for d in range(devices))


def _word(device: int, devices: int, micro_batches: int) -> str:
    behind = devices - device - 1  # devices between this one and the turn
    warm = "ff" * behind + "fF" * (device + 1) + "IWF" * behind
    steady = "fBFb" * (micro_batches - 2 * devices + device + 1) + "BFb" * behind
    last = "Bb" * (device + 1)
    joined, split = last[: device + 1], last[device + 1 :].replace("B", "I").replace("b", "i")
    put_off = split.replace("I", "W").replace("i", "w") + "w" * behind
    drain = "".join(weight + "i" for weight in put_off[:behind]) + put_off[behind:]
    return warm + steady + joined + split + drain


FAMILY = PlacedFamily(
    "dualpipe-v",
    orders,
    vee,
    "two stages a device in a V, forwards beside backwards of the other stage; backwards split only at the ends",
    chunks=2,
    splits=True,
)
