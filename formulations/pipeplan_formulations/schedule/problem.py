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

As micro-batches are equal, those of one kind and stage may be taken to run in the order 0, 1, 2, …: give the i-th
start of each kind and stage to micro-batch i. (1) to (3) say that for each operation of one kind another one ended
before it, hence that of the first i of the one kind i of the other had ended, hence that the i-th had; (4) and (5) do
not know the numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

Kind = Literal["F", "I", "W"]


class Op(NamedTuple):
    """An operation: one kind of work on one micro-batch at one stage."""

    kind: Kind
    stage: int
    micro_batch: int


Orders = tuple[tuple[Op, ...], ...]
"""A solution: what every device runs, in order."""


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

    Raises
    ------
    ValueError
        If lengths differ, a number is negative, what is taken is not what is freed, or a joined backward has a W.
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

    def __post_init__(self) -> None:
        if not self.device or self.micro_batches < 1:
            raise ValueError(f"{len(self.device)} stages and {self.micro_batches} micro-batches; give at least one")
        self._check_lengths()
        for s in range(self.stages):
            if self.taken[s] != self.freed[s] + self.freed_by_weight[s]:
                raise ValueError(
                    f"stage {s} takes {self.taken[s]} bytes a micro-batch and frees "
                    f"{self.freed[s]} + {self.freed_by_weight[s]}; both must be the same"
                )
            if not self.split[s] and (self.weight[s] or self.freed_by_weight[s]):
                raise ValueError(f"stage {s} has a joined backward, hence no W that takes time or frees bytes")

    def _check_lengths(self) -> None:
        boundaries, devices = self.stages - 1, len(self.base)
        wanted = dict.fromkeys(
            ("forward", "backward", "weight", "split", "ending", "taken", "freed", "freed_by_weight"), self.stages
        )
        wanted |= {"lag": boundaries, "lag_back": boundaries, "limit": devices}
        for name, length in wanted.items():
            values = getattr(self, name)
            if len(values) != length:
                raise ValueError(f"{name} has {len(values)} entries; {length} are needed")
            if name != "limit" and min(values, default=0) < 0:
                raise ValueError(f"{name} has a negative entry: {values}")
        if not all(0 <= d < devices for d in self.device):
            raise ValueError(f"stages lie on {self.device}; there are devices 0 to {devices - 1}")

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
    def time(self) -> dict[Kind, tuple[int, ...]]:
        """Time of each kind at each stage."""
        return {"F": self.forward, "I": self.backward, "W": self.weight}

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

    def operations(self, device: int) -> Iterator[Op]:
        """All that a device must run, by stage, kind and micro-batch."""
        for s in self.hosted[device]:
            for kind in self.kinds(s):
                for i in range(self.micro_batches):
                    yield Op(kind, s, i)

    def duration(self, op: Op) -> int:
        """Time that an operation occupies its device."""
        return self.time[op.kind][op.stage]

    @cached_property
    def work(self) -> tuple[int, ...]:
        """Time that each device is busy in a step."""
        a_micro_batch = [f + b + w for f, b, w in zip(self.forward, self.backward, self.weight, strict=True)]
        return tuple(self.micro_batches * sum(a_micro_batch[s] for s in stages) for stages in self.hosted)

    @cached_property
    def largest(self) -> int:
        """No schedule whose operations start as early as their order allows takes longer: one thing after the other."""
        return sum(self.work) + self.micro_batches * (sum(self.lag) + sum(self.lag_back)) + max(self.ending)

    @cached_property
    def possible(self) -> bool:
        """Whether there is a schedule at all: exactly if each device holds one micro-batch of every stage it hosts.

        Enough: run micro-batch after micro-batch, W as soon as it may. Needed: the I that ends before all others is one
        of the last stage; when it begins, every stage has run that micro-batch's F, and nothing is freed anywhere.
        """
        return all(sum(self.taken[s] for s in self.hosted[d]) <= self.room[d] for d in range(self.devices))
