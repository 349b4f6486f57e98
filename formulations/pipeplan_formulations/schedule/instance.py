r"""Problem definition of pipeline scheduling: the order in which each device runs its forwards and backwards.

S stages lie on devices in any placement, possibly several on one device. M equal micro-batches pass the stages
0, 1, …, S − 1 forward and back again. For each micro-batch i every stage s runs

    F_s(i)   forward
    I_s(i)   gradient of its inputs; if the backward is not split, the whole backward B_s(i)
    W_s(i)   gradient of its weights; only if the backward is split

::

    device 0   F0 F1 F2 ·· ·· I0 F3 W0 I1 …          F_0(i) ─lag─▶ F_1(i) ─lag─▶ F_2(i)
    device 1      F0 F1 F2 I0 F3 W0 I1 …                                            │
    device 2         F0 I0 F1 W0 I1 …         W_0(i) ◀─ I_0(i) ◀─lag─ I_1(i) ◀─lag─ I_2(i)

A device runs one operation at a time, without interruption. With C(·) the end of an operation and A(·) its start:

::

    inputs    A(F_s(i)) ≥ C(F_{s−1}(i)) + lag_{s−1}
              A(I_s(i)) ≥ C(F_s(i)),  and  A(I_s(i)) ≥ C(I_{s+1}(i)) + back_s
              A(W_s(i)) ≥ C(I_s(i))

F_s(i) takes ``taken_s`` bytes at its start, I_s(i) frees ``freed_s`` at its end and W_s(i) ``freed_by_weight_s`` at its
end. On every device, at all times,

    memory limit    base_d + bytes held by its stages ≤ limit_d.

After the last of its operations stage s reduces gradients and updates for ``ending_s``, which occupies no device. The
objective is the time of a synchronous step, from the first forward to the last end anywhere:

    step time    max over s of   max_i C(F_s(i), I_s(i), W_s(i)) + ending_s.

A device with two lanes runs its F on one lane and I and W on the other, concurrently; both lanes share one memory.

A *link resource*, for short *resource*, carries one transfer at a time; several boundaries may share it. If a tensor
occupies resources, there is a transfer: A_s(i) for the output of F_s(i), G_s(i) for that of I_s(i). A transfer that
needs several resources takes all of them at once, for ``occupancy``. With A(·) and C(·) as above, and likewise for G
between I_s and I_{s−1},

    transfers    A(A_s(i)) ≥ A(F_s(i)) + ready_s,   A(F_{s+1}(i)) ≥ C(A_s(i)) + lag_s

::

    overlap     ready_s                   the sending device
    copy        forward_s                 continues at once
    stream      0                         continues at once; the tensor is sent while it is computed
    none        forward_s − occupancy_s   is busy until its tensor has been sent:  C(F_s(i)) = C(A_s(i))

so under none, without waiting for a resource, F takes ``forward``, which includes the transfer.

Without loss of generality the operations of one kind and stage run in the order 0, 1, 2, …, because micro-batches are
equal: give the i-th start of each kind and stage to micro-batch i. By inputs and transfers each operation of one kind
has another one that ended (for ``ready``: began) before it. So for the first i of one kind, i of the other had ended,
hence the i-th had. Memory limit, step time, lanes and resources do not depend on the numbers. Under none a transfer
keeps its forward: no other forward of the stage starts between the two.

============  ========================================================================================================
of            functions
============  ========================================================================================================
inputs        `PipelineSchedule.inputs`, `objective.timed`, `precedence`, `cpsat_model._order`
memory limit  `objective.peaks`, `precedence.Admission`, `cpsat_model._memory`
step time     `objective.makespan`, `objective.evaluate`; lower bounds in `bounds.lower_bound`
transfers     `PipelineSchedule.ready`, `objective.FirstCome`, `objective.Listed`, `cpsat_model._arrives`
============  ========================================================================================================
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from pipeplan_formulations.common.dependencies import OF_MICRO_BATCHES

Kind = Literal["F", "I", "W", "A", "G"]
"""F forward, I input gradient, W weight gradient; on links A (activations sent by F) and G (gradients sent by I)."""
Row = tuple[Kind, int]
"""All operations of one kind at one stage."""
Overlap = Literal["copy", "stream", "none"]

_OF_STAGES = ("forward", "backward", "weight", "split", "ending", "taken", "freed", "freed_by_weight")
_OF_BOUNDARIES = ("lag", "lag_back")
_OF_TRANSFERS = ("occupancy", "occupancy_back", "resources", "resources_back")


class Op(NamedTuple):
    """One operation: a kind of work on one micro-batch at one stage. A transfer belongs to the sending stage."""

    kind: Kind
    stage: int
    micro_batch: int


Orders = tuple[tuple[Op, ...], ...]
"""Solution: the operations of every device, in order. If tensors occupy resources, one more list of all transfers may
follow: each resource serves its own transfers in that order. Without it resources serve first come, first served.

On a device with two lanes a forward starts after the end of all operations of the other lane that precede it in the
list."""


@dataclass(frozen=True)
class PipelineSchedule:
    """One instance; the module's docstring defines each term. Times are integers of one unit, as are sizes.

    Attributes
    ----------
    device : tuple of int, length S
        Device of each stage.
    micro_batches : int
        M ≥ 1.
    forward, backward, weight : tuple of int, length S
        Time of F, of I (or B if not split) and of W (0 if not split).
    split : tuple of bool, length S
    lag, lag_back : tuple of int, length S − 1
        Delay between stage s and s + 1, forward and back. It occupies no device.
    ending : tuple of int, length S
    taken, freed, freed_by_weight : tuple of int, length S
        taken = freed + freed_by_weight.
    base, limit : tuple of int, one for each device
    two_lanes : tuple of bool, one for each device
        Empty if no device has two lanes.
    overlap : 'copy', 'stream' or 'none'
        Behaviour of a device while it sends a tensor that occupies resources.
    occupancy, occupancy_back : tuple of int, length S − 1
        Time that the tensors between s and s + 1 occupy their resources, forward and back; ``lag`` comes after it.
        0 for tensors that occupy no resource. Empty if all are 0.
    resources, resources_back : tuple of tuple of int, length S − 1
        Identifiers of the link resources that these tensors occupy. Empty for none.

    Raises
    ------
    ValueError
        If lengths differ, a number is negative, the bytes taken are not the bytes freed, a joined backward has a W, a
        tensor occupies resources for no time or no resource for some time, or a device waits for tensors with two
        lanes, or for longer than its operation takes.
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
    resources: tuple[tuple[int, ...], ...] = ()
    resources_back: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.device or self.micro_batches < 1:
            raise ValueError(f"{self.stages} stages and {self.micro_batches} micro-batches; give at least one")
        self._check_lengths()
        for s in range(self.stages):
            if self.taken[s] != self.freed[s] + self.freed_by_weight[s]:
                raise ValueError(
                    f"stage {s} takes {self.taken[s]} bytes per micro-batch and frees "
                    f"{self.freed[s]} + {self.freed_by_weight[s]}; both must be the same"
                )
            if not self.split[s] and (self.weight[s] or self.freed_by_weight[s]):
                raise ValueError(f"stage {s} has a joined backward, hence no W that takes time or frees bytes")
        if self.overlap not in ("copy", "stream", "none"):
            raise ValueError(f"overlap is copy, stream or none, not {self.overlap!r}")
        if self.overlap == "none" and any(self.two_lanes):
            raise ValueError("a device with two lanes does not wait while it sends; its overlap is copy or stream")
        self._check_transfers("", self.forward)
        self._check_transfers("_back", self.backward[1:])

    def _check_lengths(self) -> None:
        devices, boundaries = len(self.base), self.stages - 1
        wanted = dict.fromkeys(_OF_STAGES, self.stages) | dict.fromkeys(_OF_BOUNDARIES, boundaries) | {"limit": devices}
        for name, length in wanted.items():
            values = getattr(self, name)
            if len(values) != length:
                raise ValueError(f"{name} has {len(values)} entries; {length} are needed")
            if name != "limit" and min(values, default=0) < 0:
                raise ValueError(f"{name} has a negative entry: {values}")
        for name, length in (dict.fromkeys(_OF_TRANSFERS, boundaries) | {"two_lanes": devices}).items():
            values = getattr(self, name)
            if values and len(values) != length:
                raise ValueError(f"{name} has {len(values)} entries; {length} or none are needed")
        if not all(0 <= d < devices for d in self.device):
            raise ValueError(f"stages lie on {self.device}; there are devices 0 to {devices - 1}")

    def _check_transfers(self, direction: str, senders: tuple[int, ...]) -> None:
        times, resources = getattr(self, f"occupancy{direction}"), getattr(self, f"resources{direction}")
        if bool(times) != bool(resources):
            raise ValueError(f"occupancy{direction} and resources{direction} belong together; give both or none")
        for s, (sender, time, own) in enumerate(zip(senders, times, resources, strict=False)):
            if time < 0 or (time > 0) != bool(own) or len(set(own)) < len(own):
                raise ValueError(
                    f"occupancy{direction} of boundary {s} is {time} on resources {own}; give a time above 0 and "
                    "each resource once, or 0 and no resource"
                )
            if self.overlap == "none" and time > sender:
                raise ValueError(
                    f"occupancy{direction} of boundary {s} is {time} and its sender takes {sender}; without overlap "
                    "that includes the time of its tensor"
                )

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return len(self.device)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.base)

    @cached_property
    def hosted(self) -> tuple[tuple[int, ...], ...]:
        """Stages of each device, in ascending order."""
        return tuple(tuple(s for s in range(self.stages) if self.device[s] == d) for d in range(self.devices))

    @cached_property
    def room(self) -> tuple[int, ...]:
        """Bytes available on each device for its stages: limit − base."""
        return tuple(limit - base for limit, base in zip(self.limit, self.base, strict=True))

    @cached_property
    def plain(self) -> bool:
        """True if no device has two lanes and no tensor occupies link resources."""
        return not any(self.two_lanes) and not self.sent

    @cached_property
    def inputs(self) -> dict[Row, tuple[tuple[Row, int], ...]]:
        """Predecessors by inputs: for each row the rows that end before it on a micro-batch, and the lags."""
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
        """Time of each kind at each stage; under overlap none the least time of F and I that send."""
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
        """Transfer of each F and I whose tensors occupy resources."""
        pairs: tuple[tuple[Kind, Kind], ...] = ("F", "A"), ("I", "G")
        return {(kind, s): (link, s) for s in range(self.stages) for kind, link in pairs if self.time[link][s]}

    @cached_property
    def ready(self) -> dict[Row, int]:
        """Least time from the start of the sending operation to the start of each transfer."""
        whole = 0 if self.overlap == "stream" else 1
        part = 1 if self.overlap == "none" else 0
        return {row: whole * self.time[kind][s] - part * self.time[row[0]][s] for (kind, s), row in self.sent.items()}

    @cached_property
    def in_transit(self) -> tuple[int, ...]:
        """Least time in transit between the end of F_s and the start of F_{s+1}: the transfer, then the lag."""
        return tuple(lag + self._transit("F", s) for s, lag in enumerate(self.lag))

    @cached_property
    def in_transit_back(self) -> tuple[int, ...]:
        """Least time in transit between the end of I_{s+1} and the start of I_s."""
        return tuple(lag + self._transit("I", s + 1) for s, lag in enumerate(self.lag_back))

    def _transit(self, kind: Kind, stage: int) -> int:
        row = self.sent.get((kind, stage))
        return 0 if row is None else max(0, self.ready[row] + self.time[row[0]][stage] - self.time[kind][stage])

    @cached_property
    def unshared(self) -> "PipelineSchedule":
        """Relaxation without contention for link resources: no schedule takes longer in it.

        It has no occupancies, for any overlap: the part of a transfer after the end of its operation becomes lag.
        """
        if not self.sent:
            return self
        return replace(
            self,
            lag=self.in_transit,
            lag_back=self.in_transit_back,
            occupancy=(),
            occupancy_back=(),
            resources=(),
            resources_back=(),
        )

    def has_lanes(self, device: int) -> bool:
        """True if a device has two lanes."""
        return bool(self.two_lanes) and self.two_lanes[device]

    @cached_property
    def lanes(self) -> tuple[tuple[Row, ...], ...]:
        """Rows of each lane, device by device; on a device with two lanes that of the forwards comes first."""
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
        """Rows of transfers on each link resource."""
        found: dict[int, tuple[Row, ...]] = {}
        for kind, s in self.sent.values():
            for resource in self.resources[s] if kind == "A" else self.resources_back[s - 1]:
                found[resource] = (*found.get(resource, ()), (kind, s))
        return found

    @property
    def machines(self) -> tuple[tuple[Row, ...], ...]:
        """Rows of each lane and link resource: no two operations of one of these overlap."""
        return (*self.lanes, *self.carried.values())

    @cached_property
    def delta(self) -> dict[Kind, tuple[int, ...]]:
        """Change of the bytes held by each kind: F at its start, the others (a negative number) at their end."""
        return {
            "F": self.taken,
            "I": tuple(-f for f in self.freed),
            "W": tuple(-f for f in self.freed_by_weight),
        }

    def kinds(self, stage: int) -> tuple[Kind, ...]:
        """Kinds of operations that a stage runs for every micro-batch."""
        return ("F", "I", "W") if self.split[stage] else ("F", "I")

    def rows(self, device: int) -> tuple[Row, ...]:
        """Rows that a device runs for every micro-batch, by stage and kind."""
        return tuple((kind, s) for s in self.hosted[device] for kind in self.kinds(s))

    def all_of(self, rows: Iterable[Row]) -> list[Op]:
        """Operations (or transfers) of the rows, row by row."""
        return [Op(*row, i) for row in rows for i in range(self.micro_batches)]

    def operations(self, device: int) -> list[Op]:
        """Operations of a device, by stage, kind and micro-batch."""
        return self.all_of(self.rows(device))

    def duration(self, op: Op) -> int:
        """Time that an operation occupies its device, or a transfer its link resources."""
        return self.time[op.kind][op.stage]

    def transfer(self, op: Op) -> Op | None:
        """Transfer of the tensor that an operation sends; None if it occupies no link resources."""
        row = self.sent.get((op.kind, op.stage))
        return None if row is None else Op(*row, op.micro_batch)

    def transfers(self) -> list[Op]:
        """All transfers on link resources, by stage, kind and micro-batch."""
        return self.all_of(self.sent.values())

    def everything(self) -> list[Op]:
        """Operations of all devices, then the transfers."""
        return [*(op for d in range(self.devices) for op in self.operations(d)), *self.transfers()]

    @cached_property
    def work(self) -> tuple[int, ...]:
        """Busy time of each device in a step; with two lanes that of the longer one."""
        lanes = iter(self.micro_batches * sum(self.time[kind][s] for kind, s in rows) for rows in self.lanes)
        return tuple(max(next(lanes), next(lanes)) if self.has_lanes(d) else next(lanes) for d in range(self.devices))

    @cached_property
    def largest(self) -> int:
        """Upper bound on any schedule that starts operations as early as its order allows: one after the other."""
        a_micro_batch = sum(sum(times) for times in self.time.values()) + sum(self.lag) + sum(self.lag_back)
        return self.micro_batches * a_micro_batch + max(self.ending)

    @cached_property
    def possible(self) -> bool:
        """True if a schedule exists: exactly if each device has room for one micro-batch of every stage it hosts.

        Sufficient: run micro-batch after micro-batch, W as soon as possible. Necessary: the I that ends first is one of
        the last stage. When it begins, every stage has run that micro-batch's F, and nothing has been freed anywhere.
        """
        return all(sum(self.taken[s] for s in self.hosted[d]) <= self.room[d] for d in range(self.devices))
