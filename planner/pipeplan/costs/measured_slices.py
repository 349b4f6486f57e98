"""Measured token slices: what slices of any length take, from lengths that were measured; see `docs/costs.md`.

::

    tokens of a slice            128           512       2,048
    from whole sequences  d       20            60         200
    measured              m       29            66
    more than that      m - d      9 ─────────── 6 ───▶         between lengths on a line, beyond them as at the last

Of each length the first and the last slice are measured. A slice of average work takes their mean; what the last takes
longer is attention to earlier tokens.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import fields
from fractions import Fraction

from pipeplan.core.model import LayerCost, Model, Profile
from pipeplan.core.profiles import SliceProfile
from pipeplan.core.slicing import PASSES, Shares

Costs = tuple[LayerCost, ...]


def measured(
    model: Model, tokens: int, derived: Callable[[Profile, int], Costs]
) -> tuple[tuple[Profile, ...], Mapping[tuple[str, int], Shares]]:
    """Return profiles of slices of so many tokens, and attention's shares, for kinds of device with measured slices.

    Parameters
    ----------
    derived : callable
        ``derived(profile, tokens)``: what the profile of whole sequences says of slices of so many tokens.
    """
    profiles, shares = [], {}
    for profile in model.profiles:
        key = profile.device, profile.micro_batch
        known = {own.tokens: own for own in model.slice_profiles if (own.device, own.micro_batch) == key}
        if not known:
            continue
        plain, beside = derived(profile, tokens), {length: derived(profile, length) for length in known}
        rows = range(len(model.layers))
        costs = tuple(
            _cost(plain[i], {n: (_mean(own, i), beside[n][i]) for n, own in known.items()}, tokens) for i in rows
        )
        profiles.append(Profile(*key, costs, next(iter(known.values())).provenance))
        by_length = {length: _shares(own, model.tokens) for length, own in known.items()}
        shares[key] = _mixed(by_length, tokens)
    return tuple(profiles), shares


def shares_at(shares: Mapping[tuple[str, int], Shares], device: str, micro_batch: int) -> Shares:
    """Return attention's shares at a micro-batch size, from those of the measured sizes."""
    return _mixed({size: own for (name, size), own in shares.items() if name == device}, micro_batch)


def _mixed(known: Mapping[int, Shares], at: int) -> Shares:
    """Return shares on the line between those of the sizes beside it; beyond all sizes those of the last."""
    rows = [zip(*layer, strict=True) for layer in zip(*known.values(), strict=True)]
    return tuple(tuple(_on_line(dict(zip(known, each, strict=True)), at) for each in layer) for layer in rows)


def _on_line(known: Mapping[int, Fraction], at: int) -> Fraction:
    sizes = sorted(known)
    place = bisect_left(sizes, at)
    low, high = sizes[max(place - 1, 0)], sizes[min(place, len(sizes) - 1)]
    if low == high or at >= high:
        return known[high]
    return known[low] + (known[high] - known[low]) * Fraction(at - low, high - low) if at > low else known[low]


def _mean(own: SliceProfile, layer: int) -> LayerCost:
    """The costs of a slice of average work; of bytes the larger ones."""
    first, last = own.first[layer], own.last[layer]
    pairs = {each.name: (getattr(first, each.name), getattr(last, each.name)) for each in fields(LayerCost)}
    return LayerCost(**{name: sum(pair) // 2 if name in PASSES else max(pair) for name, pair in pairs.items()})


def _cost(plain: LayerCost, known: Mapping[int, tuple[LayerCost, LayerCost]], tokens: int) -> LayerCost:
    def at(name: str) -> int:
        more = {n: Fraction(getattr(own, name) - getattr(beside, name)) for n, (own, beside) in known.items()}
        value = int(getattr(plain, name))
        return max(value + round(_on_line(more, tokens)), min(value, 1))

    return LayerCost(
        **{each.name: at(each.name) for each in fields(LayerCost) if each.name != "update"}, update=plain.update
    )


def _shares(own: SliceProfile, tokens: int) -> Shares:
    """Attention's part φ of the time t of an average slice of l tokens: the last takes 2 φ t (T - l) / T longer."""

    def share(first: int, last: int) -> Fraction:
        both = first + last
        return (
            min(Fraction(max(last - first, 0) * tokens, (tokens - own.tokens) * both), Fraction(1))
            if both
            else Fraction(0)
        )

    pairs = zip(own.first, own.last, strict=True)
    return tuple(tuple(share(getattr(a, name), getattr(b, name)) for name in PASSES) for a, b in pairs)
