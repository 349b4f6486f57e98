"""`Slicing`: how a model's sequences are cut into token slices, and what attention takes of each layer's time.

::

    sequence      ┃ slice 0 ┃ slice 1 ┃ slice 2 ┃         forward  0 1 2, backward  2 1 0
    keys of slice 2:  0 and 1 entirely, its own up to each token

A sliced model is a model whose samples are slices: its layers have the costs of one of average work. Attention of slice
k has (2 k + 1) / S² of that of the sequence, since a query attends to no later keys; all else takes 1 / S.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from pipeplan.core.errors import InputError
from pipeplan.core.operators import SAMPLE, TOKEN
from pipeplan.core.profiles import Profile
from pipeplan.core.strategies import UNSPLIT, LayerStrategies

PASSES = ("forward", "backward", "input_gradient", "weight_gradient")
"""Times of a layer that attention has a part of."""
Shares = tuple[tuple[Fraction, ...], ...]
"""For each layer attention's share of the time of an average slice, in each of `PASSES`."""


@dataclass(frozen=True, slots=True)
class SlicedLayer:
    """What slices of a layer differ by, and keep beside what is saved.

    Attributes
    ----------
    forward, backward, input_gradient, weight_gradient : Fraction
        Attention's share of the operations of a pass, or of one part of a backward.
    keys : mapping of str to int
        Bytes of keys and values of each attention, of one slice of one sample.
    """

    forward: Fraction = Fraction(0)
    backward: Fraction = Fraction(0)
    input_gradient: Fraction = Fraction(0)
    weight_gradient: Fraction = Fraction(0)
    keys: Mapping[str, int] = field(default_factory=dict)

    def kept(self, strategies: LayerStrategies | None, sizes: tuple[int, ...]) -> int:
        """Bytes of keys and values of a slice on a device of a team, which has its part of the heads."""
        if strategies is None:
            return sum(self.keys.values())
        total = 0
        for name, size in self.keys.items():
            entries = strategies.operators[name].strategy if name in strategies.operators else ()
            for entry, devices in zip(entries, sizes, strict=bool(entries)):
                size = -(-size // devices) if entry.loop not in (UNSPLIT, TOKEN, SAMPLE) else size
            total += size
        return total


@dataclass(frozen=True, slots=True)
class Slicing:
    """The slices of a sequence: their number S, the tokens of each, and what is known of each layer.

    Slices of unlike ``lengths`` have bytes and workspaces of the longest, of ``tokens``, and times of their own.
    ``measured`` has profiles of slices of average work on kinds of device where some were measured, and ``shares`` what
    attention takes of them, by kind and micro-batch size.
    """

    count: int
    tokens: int
    layers: tuple[SlicedLayer, ...]
    lengths: tuple[int, ...] = ()
    measured: tuple[Profile, ...] = ()
    shares: Mapping[tuple[str, int], Shares] = field(default_factory=dict)

    @property
    def counted(self) -> Shares:
        """Attention's share of the operations of each layer."""
        return tuple(tuple(getattr(layer, name) for name in PASSES) for layer in self.layers)

    @property
    def cut(self) -> tuple[int, ...]:
        """Tokens of each slice."""
        return self.lengths or (self.tokens,) * self.count


def check_divides(count: int, tokens: int, name: str) -> None:
    """Refuse a number of slices that does not divide the tokens of a model's samples.

    Raises
    ------
    InputError
        With the nearest numbers that do.
    """
    if not tokens:
        raise InputError(f"samples of {name} have no tokens that are known to be computed alike, so nothing to cut")
    if tokens % count == 0:
        return
    near = sorted((each for each in range(1, tokens + 1) if tokens % each == 0), key=lambda n: (abs(n - count), n))
    raise InputError(
        f"{count} token slices (slices) do not divide the {tokens} tokens of a sample of {name}; the nearest numbers "
        f"that do are {' and '.join(map(str, sorted(near[:2])))}"
    )
