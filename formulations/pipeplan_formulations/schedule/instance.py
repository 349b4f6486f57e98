r"""The pipeline scheduling problem: in which order does each device run its forwards and backwards?

S stages lie on devices, several on one if wished, in any placement. M equal micro-batches go forward through the stages
0, 1, …, S − 1 and back again. Of each micro-batch i every stage s runs

    F_s(i)   forward
    I_s(i)   gradient of its inputs; where the backward is not split, the whole backward B_s(i)
    W_s(i)   gradient of its weights; only where the backward is split

::

    device 0   F0 F1 F2 ·· ·· I0 F3 W0 I1 …          F_0(i) ─lag─▶ F_1(i) ─lag─▶ F_2(i)
    device 1      F0 F1 F2 I0 F3 W0 I1 …                                            │
    device 2         F0 I0 F1 W0 I1 …         W_0(i) ◀─ I_0(i) ◀─lag─ I_1(i) ◀─lag─ I_2(i)

A device runs one of them at a time, without interruption. With C(·) the end of one of them and A(·) its start:

(1)  A(F_s(i)) ≥ C(F_{s−1}(i)) + lag_{s−1}
(2)  A(I_s(i)) ≥ C(F_s(i)),  and  A(I_s(i)) ≥ C(I_{s+1}(i)) + back_s
(3)  A(W_s(i)) ≥ C(I_s(i))

F_s(i) takes ``taken_s`` bytes at its start, I_s(i) frees ``freed_s`` at its end and W_s(i) ``freed_by_weight_s`` at its
end; on every device, at all times,

(4)  base_d + what its stages hold ≤ limit_d.

After the last of its operations stage s reduces gradients and updates for ``ending_s``, which occupies no device.
What is minimised is the time of a synchronous step, from the first forward to the last end anywhere:

(5)  max over s of   max_i C(F_s(i), I_s(i), W_s(i)) + ending_s.

A device with two lanes runs its F on one and all else on the other, at the same time; its memory is one.

Where a tensor occupies wires, its way is a transfer: A_s(i) of what F_s(i) makes, G_s(i) of what I_s(i) makes. A wire
carries one transfer at a time, and several boundaries may share it; a transfer that needs several takes all of them at
once, for ``occupancy``. With A(·) and C(·) as above, and alike for G between I_s and I_{s−1},

(6)  A(A_s(i)) ≥ A(F_s(i)) + ready_s,   A(F_{s+1}(i)) ≥ C(A_s(i)) + lag_s

::

    overlap     ready_s                   a device that sends
    copy        forward_s                 goes on at once
    stream      0                         goes on at once; the tensor leaves while it is being made
    none        forward_s − occupancy_s   is busy until its tensor has left:  C(F_s(i)) = C(A_s(i))

so that under none, where no wire is waited for, F takes ``forward``, its tensor's way included.

As micro-batches are equal, those of one kind and stage may be taken to run in the order 0, 1, 2, …: give the i-th
start of each kind and stage to micro-batch i. (1) to (3) and (6) say that for each operation of one kind another one
ended (for ``ready``: began) before it, hence that of the first i of the one kind i of the other had, hence that the
i-th had; (4) and (5), lanes and wires do not know the numbers. Under none a transfer keeps its forward: no other one
of the stage starts between the two.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from pipeplan_formulations.common.dependencies import OF_MICRO_BATCHES

Kind = Literal["F", "I", "W", "A", "G"]
"""Forward, input gradient, weight gradient; and on wires the activations that F and the gradients that I sends."""
Row = tuple[Kind, int]
"""All operations of one kind at one stage."""
Overlap = Literal["copy", "stream", "none"]

_OF_STAGES = ("forward", "backward", "weight", "split", "ending", "taken", "freed", "freed_by_weight")
_OF_BOUNDARIES = ("lag", "lag_back")
_OF_WIRES = ("occupancy", "occupancy_back", "wires", "wires_back")


class Op(NamedTuple):
    """An operation: one kind of work on one micro-batch at one stage. A transfer belongs to the stage that sends."""

    kind: Kind
    stage: int
    micro_batch: int


Orders = tuple[tuple[Op, ...], ...]
"""A solution: what every device runs, in order. Where tensors occupy wires, one more list may follow, of all transfers:
each wire serves its own in that order. Without it they are served first come, first served.

A forward of a device with two lanes starts when those operations of the other lane have ended that stand ahead of it in
the list."""


@dataclass(frozen=True)
class PipelineSchedule:
    """One instance. See the module's text for the meaning of each word. Times are integers of one unit, as are sizes.

    Attributes
    ----------
    device : tuple of int, length S
        Where each stage lies.
    micro_batches : int
        M ≥ 1.
    forward, backward, weight : tuple of int, length S
        Time of F, of I (or B where not split) and of W (0 where not split).
    split : tuple of bool, length S
    lag, lag_back : tuple of int, length S − 1
        Between stage s and s + 1, forward and back. They occupy no device.
    ending : tuple of int, length S
    taken, freed, freed_by_weight : tuple of int, length S
        taken = freed + freed_by_weight.
    base, limit : tuple of int, one for each device
    two_lanes : tuple of bool, one for each device
        Empty if none has.
    overlap : 'copy', 'stream' or 'none'
        What devices do while they send what occupies wires.
    occupancy, occupancy_back : tuple of int, length S − 1
        How long the tensors between s and s + 1 occupy their wires, forward and back; then ``lag`` is what comes after.
        0 for those that occupy none. Empty for all of them 0.
    wires, wires_back : tuple of tuple of int, length S − 1
        The wires that they occupy, by any numbers. Empty for none.

    Raises
    ------
    ValueError
        If lengths differ, a number is negative, what is taken is not what is freed, a joined backward has a W, a tensor
        occupies wires for no time or no wire for some, or a device waits for tensors with two lanes, or for longer than
        its operation takes.
    """

    device: tuple[int, ...]
    micro_batches: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    split: tuple[bool, ...]
    lag: tuple[int, ...]
    lag_back: tuple[int, ...]
    ending: tuple[int, ...]
    taken: tuple[int, ...]
    freed: tuple[int, ...]
    freed_by_weight: tuple[int, ...]
    base: tuple[int, ...]
    limit: tuple[int, ...]
    two_lanes: tuple[bool, ...] = ()
    overlap: Overlap = "copy"
    occupancy: tuple[int, ...] = ()
    occupancy_back: tuple[int, ...] = ()
    wires: tuple[tuple[int, ...], ...] = ()
    wires_back: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.device or self.micro_batches < 1:
            raise ValueError(f"{self.stages} stages and {self.micro_batches} micro-batches; give at least one")
        self._check_lengths()
        for s in range(self.stages):
            if self.taken[s] != self.freed[s] + self.freed_by_weight[s]:
                raise ValueError(
                    f"stage {s} takes {self.taken[s]} bytes a micro-batch and frees "
                    f"{self.freed[s]} + {self.freed_by_weight[s]}; both must be the same"
                )
            if not self.split[s] and (self.weight[s] or self.freed_by_weight[s]):
                raise ValueError(f"stage {s} has a joined backward, hence no W that takes time or frees bytes")
        if self.overlap not in ("copy", "stream", "none"):
            raise ValueError(f"overlap is copy, stream or none, not {self.overlap!r}")
        if self.overlap == "none" and any(self.two_lanes):
            raise ValueError("a device with two lanes does not wait while it sends; its overlap is copy or stream")
        self._check_ways("", self.forward)
        self._check_ways("_back", self.backward[1:])

    def _check_lengths(self) -> None:
        devices, boundaries = len(self.base), self.stages - 1
        wanted = dict.fromkeys(_OF_STAGES, self.stages) | dict.fromkeys(_OF_BOUNDARIES, boundaries) | {"limit": devices}
        for name, length in wanted.items():
            values = getattr(self, name)
            if len(values) != length:
                raise ValueError(f"{name} has {len(values)} entries; {length} are needed")
            if name != "limit" and min(values, default=0) < 0:
                raise ValueError(f"{name} has a negative entry: {values}")
        for name, length in (dict.fromkeys(_OF_WIRES, boundaries) | {"two_lanes": devices}).items():
            values = getattr(self, name)
            if values and len(values) != length:
                raise ValueError(f"{name} has {len(values)} entries; {length} or none are needed")
        if not all(0 <= d < devices for d in self.device):
            raise ValueError(f"stages lie on {self.device}; there are devices 0 to {devices - 1}")

    def _check_ways(self, direction: str, senders: tuple[int, ...]) -> None:
        times, wires = getattr(self, f"occupancy{direction}"), getattr(self, f"wires{direction}")
        if bool(times) != bool(wires):
            raise ValueError(f"occupancy{direction} and wires{direction} belong together; give both or none")
        for s, (sender, time, own) in enumerate(zip(senders, times, wires, strict=False)):
            if time < 0 or (time > 0) != bool(own) or len(set(own)) < len(own):
                raise ValueError(
                    f"occupancy{direction} of boundary {s} is {time} on wires {own}; give a time above 0 and each wire "
                    "once, or 0 and no wire"
                )
            if self.overlap == "none" and time > sender:
                raise ValueError(
                    f"occupancy{direction} of boundary {s} is {time} and who sends takes {sender}; without overlap "
                    "that includes the time of its tensor"
                )

    @property
    def stages(self) -> int:
        """S."""
        return len(self.device)

    @property
    def devices(self) -> int:
        """How many there are."""
        return len(self.base)

    @cached_property
    def hosted(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each device, in ascending order."""
        return tuple(tuple(s for s in range(self.stages) if self.device[s] == d) for d in range(self.devices))

    @cached_property
    def room(self) -> tuple[int, ...]:
        """Bytes that each device has for what its stages hold: limit − base."""
        return tuple(limit - base for limit, base in zip(self.limit, self.base, strict=True))

    @cached_property
    def plain(self) -> bool:
        """Whether no device has two lanes and nothing occupies wires."""
        return not any(self.two_lanes) and not self.sent

    @cached_property
    def inputs(self) -> dict[Row, tuple[tuple[Row, int], ...]]:
        """(1) to (3): for each row those of which the same micro-batch ends before, and the lag between them."""
        lags: dict[Kind, tuple[int, ...]] = {"F": self.lag, "I": self.lag_back}
        return {
            (kind, s): tuple(
                ((other, s + away), lags[other][min(s, s + away)] if away else 0)
                for other, away, slices in dependencies
                if 0 <= s + away < self.stages and not slices
            )
            for s in range(self.stages)
            for kind, dependencies in OF_MICRO_BATCHES.items()
            if kind in self.kinds(s)
        }

    @cached_property
    def time(self) -> dict[Kind, tuple[int, ...]]:
        """Time of each kind at each stage; under none the least time of F and I that send."""
        nothing = (0,) * (self.stages - 1)
        return {
            "F": self.forward,
            "I": self.backward,
            "W": self.weight,
            "A": (*(self.occupancy or nothing), 0),
            "G": (0, *(self.occupancy_back or nothing)),
        }

    @cached_property
    def sent(self) -> dict[Row, Row]:
        """For each F and I whose tensors occupy wires the transfer of these."""
        found: dict[Row, Row] = {}
        for s in range(self.stages):
            if self.time["A"][s]:
                found["F", s] = "A", s
            if self.time["G"][s]:
                found["I", s] = "G", s
        return found

    @cached_property
    def ready(self) -> dict[Row, int]:
        """For each transfer how long after the start of what sends it may begin."""
        whole = 0 if self.overlap == "stream" else 1
        part = 1 if self.overlap == "none" else 0
        return {row: whole * self.time[kind][s] - part * self.time[row[0]][s] for (kind, s), row in self.sent.items()}

    @cached_property
    def away(self) -> tuple[int, ...]:
        """Least time between the end of F_s and the start of F_{s+1}: the lag, and the way there before it."""
        return tuple(lag + self._way("F", s) for s, lag in enumerate(self.lag))

    @cached_property
    def away_back(self) -> tuple[int, ...]:
        """Least time between the end of I_{s+1} and the start of I_s."""
        return tuple(lag + self._way("I", s + 1) for s, lag in enumerate(self.lag_back))

    def _way(self, kind: Kind, stage: int) -> int:
        row = self.sent.get((kind, stage))
        return 0 if row is None else max(0, self.ready[row] + self.time[row[0]][stage] - self.time[kind][stage])

    @cached_property
    def unshared(self) -> "PipelineSchedule":
        """The same where no tensor ever waits for a wire: no schedule takes longer there.

        Without occupancies under any overlap: what is left of a tensor's way when its operation ends becomes lag.
        """
        if not self.sent:
            return self
        return replace(
            self, lag=self.away, lag_back=self.away_back, occupancy=(), occupancy_back=(), wires=(), wires_back=()
        )

    def has_lanes(self, device: int) -> bool:
        """Whether a device has two lanes."""
        return bool(self.two_lanes) and self.two_lanes[device]

    @cached_property
    def lanes(self) -> tuple[tuple[Row, ...], ...]:
        """What runs on each lane, device by device; of a device with two its forwards come first."""
        found: list[tuple[Row, ...]] = []
        for d in range(self.devices):
            rows = self.rows(d)
            if self.has_lanes(d):
                found.append(tuple(row for row in rows if row[0] == "F"))
                rows = tuple(row for row in rows if row[0] != "F")
            found.append(rows)
        return tuple(found)

    @cached_property
    def carried(self) -> dict[int, tuple[Row, ...]]:
        """What passes each wire."""
        found: dict[int, tuple[Row, ...]] = {}
        for kind, s in self.sent.values():
            for wire in self.wires[s] if kind == "A" else self.wires_back[s - 1]:
                found[wire] = (*found.get(wire, ()), (kind, s))
        return found

    @property
    def machines(self) -> tuple[tuple[Row, ...], ...]:
        """Lanes and wires: of what is together in one of these nothing overlaps."""
        return (*self.lanes, *self.carried.values())

    @cached_property
    def delta(self) -> dict[Kind, tuple[int, ...]]:
        """What each kind adds to the bytes held: F at its start, the others (a negative number) at their end."""
        return {
            "F": self.taken,
            "I": tuple(-f for f in self.freed),
            "W": tuple(-f for f in self.freed_by_weight),
        }

    def kinds(self, stage: int) -> tuple[Kind, ...]:
        """What a stage runs of every micro-batch."""
        return ("F", "I", "W") if self.split[stage] else ("F", "I")

    def rows(self, device: int) -> tuple[Row, ...]:
        """What a device runs of every micro-batch, by stage and kind."""
        return tuple((kind, s) for s in self.hosted[device] for kind in self.kinds(s))

    def all_of(self, rows: Iterable[Row]) -> list[Op]:
        """Rows of operations or transfers, one after the other."""
        return [Op(*row, i) for row in rows for i in range(self.micro_batches)]

    def operations(self, device: int) -> list[Op]:
        """All that a device must run, by stage, kind and micro-batch."""
        return self.all_of(self.rows(device))

    def duration(self, op: Op) -> int:
        """Time that an operation occupies its device."""
        return self.time[op.kind][op.stage]

    def transfer(self, op: Op) -> Op | None:
        """The transfer of what an operation sends, if that occupies wires."""
        row = self.sent.get((op.kind, op.stage))
        return None if row is None else Op(*row, op.micro_batch)

    def transfers(self) -> list[Op]:
        """All that occupies wires, by stage, kind and micro-batch."""
        return self.all_of(self.sent.values())

    def everything(self) -> list[Op]:
        """The operations of all devices, then the transfers."""
        return [*(op for d in range(self.devices) for op in self.operations(d)), *self.transfers()]

    @cached_property
    def work(self) -> tuple[int, ...]:
        """Time that each device is busy in a step; of two lanes the longer."""
        lanes = iter(self.micro_batches * sum(self.time[kind][s] for kind, s in rows) for rows in self.lanes)
        return tuple(max(next(lanes), next(lanes)) if self.has_lanes(d) else next(lanes) for d in range(self.devices))

    @cached_property
    def largest(self) -> int:
        """No schedule whose operations start as early as their order allows takes longer: one thing after the other."""
        a_micro_batch = sum(sum(times) for times in self.time.values()) + sum(self.lag) + sum(self.lag_back)
        return self.micro_batches * a_micro_batch + max(self.ending)

    @cached_property
    def possible(self) -> bool:
        """Whether there is a schedule at all: exactly if each device holds one micro-batch of every stage it hosts.

        Enough: run micro-batch after micro-batch, W as soon as it may. Needed: the I that ends before all others is one
        of the last stage; when it begins, every stage has run that micro-batch's F, and nothing is freed anywhere.
        """
        return all(sum(self.taken[s] for s in self.hosted[d]) <= self.room[d] for d in range(self.devices))
