"""From what a cluster file says of its kinds of device to the kinds: ``use``, overrides, relative speeds."""

from dataclasses import dataclass
from typing import Any

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.wording import hint
from pipeplan.io.device_file import catalogue

TIMING = ("peak", "bandwidth", "efficiency", "overhead")
"""The figures that an analytic estimate uses; a kind that overrides one of them has lost its namesake's profile."""


@dataclass(frozen=True)
class Speed:
    """What a file says of one kind."""

    figures: dict[str, Any]
    use: str | None
    timed_as: str | None
    relative_to: str | None
    factor: float | None


def resolve_kinds(entries: dict[str, Speed]) -> tuple[dict[str, DeviceKind], list[str]]:
    """The kinds by name, and what is wrong with the others."""
    kinds: dict[str, DeviceKind] = {}
    complaints: list[str] = []
    for name in entries:
        _resolve(name, entries, kinds, complaints, ())
    return kinds, complaints


def _resolve(
    name: str, entries: dict[str, Speed], kinds: dict[str, DeviceKind], complaints: list[str], above: tuple[str, ...]
) -> DeviceKind | None:
    """The kind called ``name``; ``above`` are the kinds whose speed is being looked for."""
    if name in kinds:
        return kinds[name]
    if name in above:
        circle = " → ".join((*above[above.index(name) :], name))
        complaints.append(f"devices.{name}.speed.relative_to: the speeds go round in a circle ({circle})")
        return None
    entry = entries[name]
    if entry.timed_as is not None and entry.relative_to is not None:
        complaints.append(f"devices.{name}: timed_as and speed.relative_to say the same; give one of them")
        return None
    figures: dict[str, Any] = {}
    timed_as = entry.timed_as
    factor = 1.0 if entry.factor is None else entry.factor
    if entry.use is not None:
        base = catalogue().get(entry.use)
        if base is None:
            known = hint(entry.use, catalogue()) or f"; it has {', '.join(catalogue()) or 'no kinds at all'}"
            complaints.append(f"devices.{name}.use: {entry.use!r} is not in the catalogue of devices{known}")
            return None
        figures |= _figures(base)
        if timed_as is None and entry.use != name and not any(field in entry.figures for field in TIMING):
            timed_as = entry.use
    if entry.relative_to is not None:
        reference = entry.relative_to
        other = catalogue().get(reference)
        if reference in entries and reference != name:
            other = _resolve(reference, entries, kinds, complaints, (*above, name))
            if other is None:
                return None
        elif other is None and (meant := hint(reference, [*entries, *catalogue()])):
            complaints.append(f"devices.{name}.speed.relative_to: {reference!r} is not known{meant}")
            return None
        # A name that is neither here nor in the catalogue may still be one that a profile bears.
        timed_as = reference
        if other is not None:
            figures |= {field: getattr(other, field) for field in TIMING}
            timed_as = other.timed_as or other.name
            factor *= other.speed
    kinds[name] = DeviceKind(name=name, timed_as=timed_as, speed=factor, **(figures | entry.figures))
    return kinds[name]


def _figures(kind: DeviceKind) -> dict[str, Any]:
    fields = (*TIMING, "memory", "runtime", "price", "on_chip", "source")
    return {field: getattr(kind, field) for field in fields}
