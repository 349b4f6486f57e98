"""Profiles and measured slices in model files: costs of layers by name, and where they come from."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from pipeplan.core.figures import MOST_SAMPLES
from pipeplan.core.model import LayerCost, Profile, Provenance, SliceProfile
from pipeplan.io.schema import Bytes, Count, Nanoseconds, Strict, written_bytes, written_time
from pipeplan.io.text import Row, lean


class ProvenanceEntry(Strict):
    """Origin of a profile's numbers."""

    how: Literal["measured", "imported", "analytic"]
    """Measured by a profiler, imported from a file, or estimated."""
    source: str
    """The tool or file."""
    when: str = ""
    """Date."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of packages and drivers."""


class CostEntry(Strict):
    """One row of a profile; see `pipeplan.LayerCost`."""

    describes = LayerCost

    forward: Nanoseconds
    """Time of the forward."""
    backward: Nanoseconds
    """Time of the backward as a whole."""
    input_gradient: Nanoseconds
    """Time of the first part of a split backward."""
    weight_gradient: Nanoseconds
    """Time of the second part."""
    saved: Bytes
    output: Bytes
    workspace: Bytes = 0
    update: Nanoseconds = 0

    def cost(self) -> LayerCost:
        """Return the cost that this entry describes."""
        return LayerCost(*(getattr(self, field) for field in CostEntry.model_fields))


class ProfileEntry(Strict):
    """One profile: a cost for every layer, by name."""

    device: str
    """The kind of device."""
    micro_batch: Annotated[Count, Field(le=MOST_SAMPLES)]
    """Samples in the micro-batch that was measured."""
    provenance: ProvenanceEntry
    """Where the numbers come from."""
    costs: dict[str, CostEntry]
    """Costs of each layer by name."""


class SliceProfileEntry(Strict):
    """The first and the last of equal token slices of a sequence, measured as a pipeline runs them."""

    describes = SliceProfile

    device: str
    """The kind of device."""
    micro_batch: Annotated[Count, Field(le=MOST_SAMPLES)]
    """Samples in the micro-batch that was measured."""
    tokens: Count
    """Tokens of a slice."""
    provenance: ProvenanceEntry
    """Where the numbers come from."""
    first: dict[str, CostEntry]
    """Costs of each layer by name, for the slice with no tokens before it."""
    last: dict[str, CostEntry]
    """The same for the slice with all other tokens before it."""


def profile_of(entry: ProfileEntry, names: list[str]) -> Profile:
    """Return the profile that an entry describes, of layers with these names."""
    return Profile(entry.device, entry.micro_batch, _costs(entry.costs, names), _provenance(entry.provenance))


def slice_profile_of(entry: SliceProfileEntry, names: list[str]) -> SliceProfile:
    """Return the measured slices that an entry describes, of layers with these names."""
    ends = _costs(entry.first, names), _costs(entry.last, names)
    return SliceProfile(entry.device, entry.micro_batch, entry.tokens, *ends, _provenance(entry.provenance))


def _costs(entries: Mapping[str, CostEntry], names: list[str]) -> tuple[LayerCost, ...]:
    return tuple(entries[name].cost() for name in names)


def _provenance(entry: ProvenanceEntry) -> Provenance:
    return Provenance(entry.how, entry.source, entry.when, entry.versions)


def profile_data(profile: Profile, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the plain data of a profile."""
    origin = {"provenance": _provenance_data(profile.provenance)}
    head = {"device": profile.device, "micro_batch": profile.micro_batch}
    return head | origin | {"costs": _costs_data(profile.costs, names)}


def slice_profile_data(own: SliceProfile, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the plain data of measured slices."""
    head = {"device": own.device, "micro_batch": own.micro_batch, "tokens": own.tokens}
    ends = {"first": _costs_data(own.first, names), "last": _costs_data(own.last, names)}
    return head | {"provenance": _provenance_data(own.provenance)} | ends


def _provenance_data(source: Provenance) -> dict[str, Any]:
    return {"how": source.how, "source": source.source} | lean(when=source.when, versions=Row(source.versions))


def _costs_data(costs: Sequence[LayerCost], names: tuple[str, ...]) -> dict[str, Row]:
    return {name: _cost_data(cost) for name, cost in zip(names, costs, strict=True)}


def _cost_data(cost: LayerCost) -> Row:
    times = {
        field: written_time(getattr(cost, field))
        for field in ("forward", "backward", "input_gradient", "weight_gradient")
    }
    row = Row(**times, saved=written_bytes(cost.saved), output=written_bytes(cost.output))
    if cost.workspace:
        row["workspace"] = written_bytes(cost.workspace)
    if cost.update:
        row["update"] = written_time(cost.update)
    return row
