"""Sources of a result's costs: measured, imported or estimated, with micro-batch sizes and relative speeds.

A proof is about these numbers, so it is only as reliable as they are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.job import Job
from pipeplan.core.model import Model, Provenance
from pipeplan.core.units import format_time
from pipeplan.core.wording import some
from pipeplan.costs.layers import gradient_bytes, item_size, optimizer_bytes, profiles_for

ROOFLINE = "roofline estimates"


@dataclass(frozen=True, slots=True)
class Source:
    """Source of the costs of one kind of device.

    Attributes
    ----------
    device : str
    how : str
        ``'measured'``, ``'imported'`` or ``'analytic'`` (the roofline).
    origin : str
        The measuring tool or the imported source, with the date where it is known.
    profiled : tuple of int
        Micro-batch sizes that have costs of their own; empty for the roofline, which needs none.
    interpolated, extrapolated : tuple of int
        Searched sizes that lie between those, or outside them.
    speed : float
        Speed relative to the kind whose costs are used.
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
        """Whether some of the costs were not measured on this kind of device."""
        return self.how == "analytic" or bool(self.extrapolated) or self.speed != 1.0

    @property
    def text(self) -> str:
        """Text like ``'measured 2026-11-20 on Tesla V100, interpolated for micro-batches of 3'``."""
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
    """Sources of each kind's costs; ``links``: whether there are transfers, too; ``assumed``: the assumed optimiser.

    ``uncounted``: layers of estimated time that have operations of which nothing is counted. ``kept``: bytes of memory
    for each parameter. ``teams``: what splitting an operator takes where that was not measured.
    """

    sources: tuple[Source, ...]
    links: bool
    assumed: str = ""
    uncounted: tuple[str, ...] = ()
    kept: str = ""
    teams: str = ""

    @property
    def estimated(self) -> bool:
        """Whether any of them is an estimate."""
        return any(source.estimated for source in self.sources)

    @property
    def name(self) -> str:
        """Noun for the numbers that a proof is based on: ``'estimates'``, ``'measurements'`` or ``'costs'``."""
        if self.estimated:
            return "estimates" + (f", which leave out operations of {self._layers()}" if self.uncounted else "")
        measured = all(source.how == "measured" and not source.interpolated for source in self.sources)
        return "measurements" if measured else "costs"

    def lines(self) -> list[str]:
        """Return the lines of text of an answer: the sources, and the optimiser if it was assumed."""
        lines = [f"costs: {self.as_text()}", *(line for line in (self.assumed, self.kept, self.teams) if line)]
        if self.uncounted:
            lines.append(
                f"too short: times of {self._layers()}, as nothing is counted for some of their operations (uncounted "
                "in the model); profile them on the device, or register formulas and profile again"
            )
        return lines

    def _layers(self) -> str:
        """Return text like ``'layers moe.0, moe.1'``."""
        return f"layer{'s' * (len(self.uncounted) > 1)} {some(self.uncounted, 4)}"

    def as_text(self) -> str:
        """Return one line of text; kinds with costs of the same source are listed together."""
        by_text: dict[str, list[str]] = {}
        for source in self.sources:
            by_text.setdefault(source.text, []).append(source.device)
        texts = []
        for text, names in by_text.items():
            kinds = " and ".join(names)
            if text.startswith(ROOFLINE):
                texts.append(f"{text} of {kinds}")
            else:
                texts.append(text if len(by_text) == 1 else f"{kinds}: {text}")
        return "; ".join([*texts, *(["transfers as the cluster states its links"] if self.links else [])])

    def as_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "in_words": self.as_text(),
            "estimated": self.estimated,
            "assumed": self.assumed,
            "kept": self.kept,
            "teams": self.teams,
            "uncounted": list(self.uncounted),
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


def bytes_per_parameter(model: Model, job: Job) -> str:
    """Return text like ``'2 + 2 + 12 bytes for each parameter: bfloat16 weights and gradients, state of adam'``."""
    job, item = job.of(model), item_size(model.dtype)
    gradients = gradient_bytes(item, model.dtype, job.gradient_bytes)
    state = optimizer_bytes(item, model.dtype, job.optimizer, job.state_bytes)
    given = {"gradients": job.gradient_bytes, "state": job.state_bytes}
    stated = " and ".join(name for name, value in given.items() if value is not None)
    return (
        f"{item} + {gradients} + {state} bytes for each parameter: {model.dtype} weights, gradients, state of "
        f"{job.optimizer}{f', {stated} as stated' * bool(stated)}"
    )


def splitting(cluster: Cluster) -> str:
    """Return what splitting an operator takes on kinds where that was not measured; empty if there are none.

    The source of a kind says "measured" if its `shard_overhead` was, as that of a measured machine does.
    """
    kinds = {device.kind.name: device.kind for device in cluster.devices}.values()
    stated = [f"{format_time(kind.shard_overhead)} longer on {kind.name}" for kind in kinds if not _measured(kind)]
    taken = f"teams: each operator that they split takes {' and '.join(stated)}"
    return f"{taken}, as stated, not measured (shard_overhead)" if stated else ""


def _measured(kind: DeviceKind) -> bool:
    return "measured" in kind.source


def sources(model: Model, cluster: Cluster, sizes: Sequence[int], job: Job | None = None) -> Costs:
    """Return the sources of the costs of a search over these micro-batch sizes, and bytes that a job's plans keep."""
    kinds = {kind.name: kind for kind, _ in cluster.counts}
    found = tuple(_source(model, kind, sizes) for kind in kinds.values())
    estimated = any(not profiles_for(model, kind) for kind in kinds.values())
    uncounted = tuple(model.uncounted) if estimated else ()
    kept = "" if job is None else bytes_per_parameter(model, job)
    return Costs(found, links=len(cluster.devices) > 1, uncounted=uncounted, kept=kept)


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
    """Return text like ``'measured 2026-11-20 on Tesla V100 (torch 2.13.0)'``."""
    source, when = provenance.source, f" {provenance.when}" if provenance.when else ""
    torch = provenance.versions.get("torch", "")
    versions = f" (torch {torch})" if torch and torch not in source else ""
    if provenance.how == "analytic":
        return f"estimates{when}: {source}{versions}"
    link = " from" if provenance.how == "imported" else "," if source.startswith("calibrated") else " on"
    return f"{provenance.how}{when}{link} {source}{versions}"
