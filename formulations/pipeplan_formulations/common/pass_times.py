r"""Times of a pass in their four roles: a device's own work, the way ahead and behind, the round trip, and services.

``forward`` and ``backward`` say how long a device works on a micro-batch. Where a micro-batch passes a device once,
that is also how long the stages behind wait for it, what it adds to a round trip, and how long the device serves it. It
is not where a device has several stages (*chunks*), or a micro-batch passes in *slices* of its sequence::

    two stages per device      device 0  ┃ 0 ┃   ┃ 2 ┃         own      stages 0 and 2
                               device 1      ┃ 1 ┃   ┃ 3 ┃     ahead    the least of them: device 1 begins behind one
                                                               trip     the same, but own on the device that serves
                                                               service  own

    two slices                 device 0  ┃ 0 ┃ 1 ┃             own      both slices
                               device 1      ┃ 0 ┃ 1 ┃         ahead    slice 0: device 1 begins behind it
                                                               trip     slice 0, but own on the device that serves
                                                               service  own

So each role may have tables of its own, with ahead ≤ own and service ≤ own for every layer:

- *own*: load, memory, what a device hides of its collectives, and path cuts.
- *ahead*: p, q, H and G, and V_0 behind the last backward of stage 0. With chunks, the least of each device; with
  slices, the least of a layer's slices, which is the first of an attention that looks back.
- *trip*: R. ``round_trip`` is "ahead" for slices, and for chunks in a loop; it is "own" for chunks in a V.
- *service*: the delays e that R + e adds to a round trip.

What a delay adds, T ≥ R + (own − trip)_s + (M_s − 1) x_s + E_0, holds for both; proofs are in docs/bounds/chain.md:

- *Chunks in a loop*: before the first service of a device lies the least way there, behind the last one the least way
  on, and all of one micro-batch's passes in the other direction. So it is as with slices.
- *Chunks in a V*: stage c of a device serves M_s micro-batches one by one, which pass all stages, so T ≥ R + (M_s − 1)
  x_c for each chunk c. So it does for the mean x of the chunks. Here own − trip is 0.
- *Slices*: before the first service of stage s lies the least way there, behind the last one the least way on. Between
  them lie all slices of one micro-batch in the other direction, since a backward of slice k waits for that of slice
  k + 1. So stage s counts its own F and B, every other stage those of the least slice.

Recomputation lengthens B of a device. Which of its chunks recomputes is not known, so tables that are given apart count
none of it. Each other role still counts what ``backward`` counts.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from pipeplan_formulations.common.layer_tables import Array, LayerTables, sums_before

Role = Literal["ahead", "trip", "service"]
RoundTrip = Literal["own", "ahead"]
ROLES: tuple[Role, ...] = ("ahead", "trip", "service")

# An int, an array or a linear expression.
Number = Any


class Times(NamedTuple):
    """F and B of a stage or of layers: numbers, arrays or linear expressions."""

    forward: Number
    backward: Number

    @property
    def work(self) -> Number:
        """F + B."""
        return self.forward + self.backward


@dataclass(frozen=True, kw_only=True)
class PassTables(LayerTables):
    """Layers whose times may differ by role; shapes are those of ``forward``.

    Attributes
    ----------
    ahead_forward, ahead_backward : array of int, optional
        F and B for the way ahead and behind; both or none, and at most ``forward`` and ``backward``.
    service_forward, service_backward : array of int, optional
        The same for services.
    late_forward, late_backward : array of int, optional
        F and B of the last slice, at least those ahead: those of the way through (docs/bounds/chain.md).
    round_trip : 'own' or 'ahead'
        Which times a round trip counts.
    """

    ahead_forward: Array | None = None
    ahead_backward: Array | None = None
    service_forward: Array | None = None
    service_backward: Array | None = None
    late_forward: Array | None = None
    late_backward: Array | None = None
    round_trip: RoundTrip = "own"

    def given(self, role: Role) -> Times | None:
        """The tables of a role; None if they are ``forward`` and ``backward``."""
        if role == "trip":
            return self.given("ahead") if self.round_trip == "ahead" else None
        forward, backward = getattr(self, f"{role}_forward"), getattr(self, f"{role}_backward")
        return None if forward is None else Times(forward, backward)

    def of_layers(self, role: Role) -> Times:
        """F and B of each layer in a role."""
        return self.given(role) or Times(self.forward, self.backward)

    @cached_property
    def apart(self) -> dict[Role, Times]:
        """Sums of F and B before each boundary, for the roles that have tables of their own."""
        tables = {role: self.given(role) for role in ROLES}
        return {role: Times(*map(sums_before, times)) for role, times in tables.items() if times is not None}

    @cached_property
    def late_behind(self) -> Array | None:
        """F + B of the last slice of all layers behind each boundary, the least over the rows; None without them."""
        if self.late_forward is None or self.late_backward is None:
            return None
        late = (self.late_forward + self.late_backward).min(axis=0)
        behind: Array = late.sum() - sums_before(late)
        return behind

    def in_all(self, work: Number, own: Times, many: Number, ends: Any) -> Number:
        """A device's ``work`` on so many micro-batches up to its last backward, or the way through if that is longer.

        Forwards of all, or backwards, then the last slice's way through the stages behind ``ends``.
        """
        if self.late_behind is None:
            return work
        through = own.work + (many - 1) * np.maximum(own.forward, own.backward) + self.late_behind[ends]
        return np.maximum(work, through)

    @property
    def trip_apart(self) -> bool:
        """True if R is not the last H with one more stage: a round trip counts other times than the way ahead."""
        return "ahead" in self.apart and "trip" not in self.apart

    def times(self, role: Role, own: Times, row: Any, starts: Any, ends: Any) -> Times:
        """F and B of spans in a role: ``own``, with recomputation, unless the role has tables of its own."""
        sums = self.apart.get(role)
        return own if sums is None else Times(*(table[row, ends] - table[row, starts] for table in sums))

    def roles(self, own: Times, row: Any, starts: Any, ends: Any) -> tuple[Times, Times, Times]:
        """F and B of spans ahead, in a round trip and as a service; see `times`."""
        if not self.apart:
            return own, own, own
        ahead, trip, service = (self.times(role, own, row, starts, ends) for role in ROLES)
        return ahead, trip, service

    def longer(self, own: Times, trip: Times) -> Number:
        """What a round trip takes longer through the stage that serves: own − trip; None if that is 0 everywhere."""
        if "trip" not in self.apart:
            return None
        return own.work - trip.work

    def check_roles(self) -> None:
        """Raise ``ValueError`` if a role lacks one of its tables, or a table exceeds that of the device's own work."""
        if self.round_trip not in ("own", "ahead"):
            raise ValueError(f"round_trip is {self.round_trip!r}; choose own or ahead")
        for role in ("ahead", "service", "late"):
            pair = [f"{role}_forward", f"{role}_backward"]
            missing = [name for name in pair if getattr(self, name) is None]
            if len(missing) == 1:
                raise ValueError(f"{missing[0]} is missing: {pair[0]} and {pair[1]} are given together")
            for name in pair:
                self.check_at_most(name, name.removeprefix(f"{role}_"))

    def check_at_most(self, name: str, most: str) -> None:
        """Raise ``ValueError`` if a table has an entry above that of the table ``most``."""
        table, limit = getattr(self, name), getattr(self, most)
        if table is None or limit is None or (table <= limit).all():
            return
        row, layer = (int(index[0]) for index in (table > limit).nonzero())
        raise ValueError(
            f"{name} of row {row}, layer {layer} is {int(table[row, layer])}, but {most} is {int(limit[row, layer])}: "
            "a part of a device's work takes no longer than all of it"
        )
