"""Profiles: measured costs of layers, of whole sequences and of token slices, and where the numbers come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from pipeplan.core.figures import MOST_SAMPLES, plain, whole
from pipeplan.core.layers import LayerCost
from pipeplan.core.parts import each_a, mapping, printable


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a profile's numbers.

    Attributes
    ----------
    how : {'measured', 'imported', 'analytic'}
    source : str
        The device, the file, or the estimate.
    when : str
        Date of a measurement.
    versions : mapping of str to str
        Of the packages with which it was measured.

    Examples
    --------
    >>> pipeplan.Provenance("imported", "graph.txt").how
    'imported'
    """

    how: Literal["measured", "imported", "analytic"]
    source: str
    when: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        each_a((self.how, self.source, self.when), str, "how, source and when of a provenance")
        versions = mapping(self.versions, "versions of a provenance")
        each_a((*versions, *versions.values()), str, "versions of a provenance")


@dataclass(frozen=True, slots=True)
class Profile:
    """Costs of every layer on one kind of device at one micro-batch size.

    Attributes
    ----------
    device : str
        Name of the kind of device.
    micro_batch : int
        Samples.
    costs : tuple of LayerCost
        One for each layer of the model, in nanoseconds and bytes.
    provenance : Provenance

    Examples
    --------
    >>> cost = pipeplan.LayerCost(1_000, 2_000, 1_000, 1_000, saved=8, output=4, workspace=0, update=50)
    >>> pipeplan.Profile("unit", 1, (cost, cost), pipeplan.Provenance("imported", "by hand")).micro_batch
    1
    """

    device: str
    micro_batch: int
    costs: tuple[LayerCost, ...]
    provenance: Provenance

    def __post_init__(self) -> None:
        printable(self.device, "the device of a profile")
        whole(self.micro_batch, f"the micro-batch of the profile for {self.device!r}", 1, MOST_SAMPLES)
        _check(self.costs, self.provenance, f"profile for {self.device!r}")
        plain(self)


@dataclass(frozen=True, slots=True)
class SliceProfile:
    """Costs of every layer for the first and for the last of equal token slices of a sequence.

    Attributes
    ----------
    device : str
        Name of the kind of device.
    micro_batch : int
        Samples.
    tokens : int
        Of a slice.
    first, last : tuple of LayerCost
        One for each layer of the model: of the slice with no tokens before it, and of that with all others before it.
        ``saved`` includes the slice's keys and values.
    provenance : Provenance

    Examples
    --------
    >>> one, more = (pipeplan.LayerCost(t, 2 * t, t, t, saved=8, output=4) for t in (1_000, 1_200))
    >>> origin = pipeplan.Provenance("imported", "by hand")
    >>> pipeplan.SliceProfile("unit", 1, 64, (one,), (more,), origin).tokens
    64
    """

    device: str
    micro_batch: int
    tokens: int
    first: tuple[LayerCost, ...]
    last: tuple[LayerCost, ...]
    provenance: Provenance

    def __post_init__(self) -> None:
        what = f"slices measured on {printable(self.device, 'the device of measured slices')!r}"
        whole(self.micro_batch, f"the micro-batch of {what}", 1, MOST_SAMPLES)
        whole(self.tokens, f"the tokens of {what}", 1)
        for name in ("first", "last"):
            _check(getattr(self, name), self.provenance, f"{name} of {what}")
        plain(self)


def _check(costs: tuple[LayerCost, ...], provenance: Provenance, what: str) -> None:
    each_a(costs, LayerCost, f"costs of the {what}")
    each_a((provenance,), Provenance, f"provenance of the {what}")
    numbers: dict[int, int] = {}  # like layers have the same object, which is checked once
    for number, cost in enumerate(costs):
        numbers.setdefault(id(cost), number)
    for number in numbers.values():
        for each in fields(LayerCost):
            whole(getattr(costs[number], each.name), f"{each.name} of layer {number} in the {what}")
        plain(costs[number])
