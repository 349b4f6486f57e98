"""Sources of an answer's costs: measured, imported or estimated, for which micro-batch sizes, at which speed.

A proof is about these numbers, so it is worth as much as they are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.model import Model, Provenance
from pipeplan.core.wording import some
from pipeplan.costs.layers import profiles_for

ROOFLINE = "roofline estimates"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the costs of one kind of device come from.

    Attributes
    ----------
    device : str
    how : str
        ``'measured'``, ``'imported'`` or ``'analytic'`` (the roofline).
    origin : str
        What measured them or where they were taken from, with the date where it is known.
    profiled : tuple of int
        Micro-batch sizes that have costs of their own; empty for the roofline, which needs none.
    interpolated, extrapolated : tuple of int
        Sizes that were searched and lie between those, or outside them.
    speed : float
        How many times as fast as the kind that the costs are of.
    """

    device: str
    how: str
    origin: str
    profiled: tuple[int, ...] = ()
    interpolated: tuple[int, ...] = ()
    extrapolated: tuple[int, ...] = ()
    speed: float = 1.0

    @property
    def estimated(self) -> bool:
        """Whether some of the costs stand for what nobody measured on this kind of device."""
        return self.how == "analytic" or bool(self.extrapolated) or self.speed != 1.0

    @property
    def words(self) -> str:
        """``'measured 2026-11-20 on Tesla V100, interpolated for micro-batches of 3'``."""
        parts = [self.origin]
        if self.speed != 1.0:
            parts.append(f"taken as {self.speed:g} times as fast")
        for what, sizes in (("interpolated", self.interpolated), ("extrapolated", self.extrapolated)):
            if sizes:
                known = some(tuple(map(str, self.profiled)), 8)
                parts.append(
                    f"{what} for micro-batches of {some(tuple(map(str, sizes)), 8)} (there are those of {known})"
                )
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Costs:
    """Where each kind's costs come from; ``links``: whether tensors travel, too."""

    sources: tuple[Source, ...]
    links: bool

    @property
    def estimated(self) -> bool:
        """Whether any of them is an estimate."""
        return any(source.estimated for source in self.sources)

    @property
    def name(self) -> str:
        """What a proof is a proof for: ``'estimates'``, ``'measurements'`` or ``'costs'``."""
        if self.estimated:
            return "estimates"
        measured = all(source.how == "measured" and not source.interpolated for source in self.sources)
        return "measurements" if measured else "costs"

    def in_words(self) -> str:
        """One line; kinds whose costs are of one sort stand together."""
        words: dict[str, list[str]] = {}
        for source in self.sources:
            words.setdefault(source.words, []).append(source.device)
        texts = []
        for text, names in words.items():
            kinds = " and ".join(names)
            if text.startswith(ROOFLINE):
                texts.append(f"{text} of {kinds}")
            else:
                texts.append(text if len(words) == 1 else f"{kinds}: {text}")
        return "; ".join([*texts, *(["transfers as the cluster states its links"] if self.links else [])])

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "in_words": self.in_words(),
            "estimated": self.estimated,
            "kinds": [
                {
                    "device": source.device,
                    "how": source.how,
                    "origin": source.origin,
                    "speed": source.speed,
                    "profiled": list(source.profiled),
                    "interpolated": list(source.interpolated),
                    "extrapolated": list(source.extrapolated),
                }
                for source in self.sources
            ],
        }


def sources(model: Model, cluster: Cluster, sizes: Sequence[int]) -> Costs:
    """Where the costs of a search come from that looks at these micro-batch sizes."""
    kinds = {device.kind.name: device.kind for device in cluster.devices}
    found = tuple(_source(model, kind, sizes) for kind in kinds.values())
    return Costs(found, links=len(cluster.devices) > 1)


def _source(model: Model, kind: DeviceKind, sizes: Iterable[int]) -> Source:
    profiles = profiles_for(model, kind)
    if not profiles:
        return Source(kind.name, "analytic", f"{ROOFLINE} at {100 * kind.efficiency:g} % of the peaks")
    origins = {_origin(profile.provenance): profile.provenance.how for profile in profiles.values()}
    hows = set(origins.values())
    low, high = min(profiles), max(profiles)
    between = [size for size in sizes if size not in profiles]
    return Source(
        kind.name,
        hows.pop() if len(hows) == 1 else "analytic" if "analytic" in hows else "imported",
        some(tuple(origins), 4),
        tuple(sorted(profiles)),
        tuple(size for size in between if low < size < high),
        tuple(size for size in between if not low < size < high),
        kind.speed,
    )


def _origin(provenance: Provenance) -> str:
    """``'measured 2026-11-20 on Tesla V100 (torch 2.13.0)'``."""
    source, when = provenance.source, f" {provenance.when}" if provenance.when else ""
    torch = provenance.versions.get("torch", "")
    versions = f" (torch {torch})" if torch and torch not in source else ""
    if provenance.how == "analytic":
        return f"estimates{when}: {source}{versions}"
    link = " from" if provenance.how == "imported" else "," if source.startswith("calibrated") else " on"
    return f"{provenance.how}{when}{link} {source}{versions}"
