"""Times of the operators of a layer, whole and split: what the layer takes on one device, shared out.

The time of a layer on one device is known, measured or estimated. It is shared out to the operators in proportion to a
roofline of each, and a split operator takes less by its own roofline. What a kind of device adds to every pass of a
layer (`DeviceKind.overhead`) stays.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import LayerCost
from pipeplan.core.operators import Operator, OperatorGraph, Weight

PASSES = ("forward", "backward", "input_gradient", "weight_gradient")
PICOSECONDS = 10**12

Parts = Mapping[str, int]
"""Into how many parts devices split loops."""


@dataclass(frozen=True)
class Rooflines:
    """A layer on a kind of device at a micro-batch size.

    Attributes
    ----------
    graph : OperatorGraph
    cost : LayerCost
        The layer on one device.
    parameters : int
        Bytes of its parameters, as the model counts them.
    kind : DeviceKind
    rates : tuple of float or None
        Operations per second and bytes per second of the kind; None where these are not known, and operations alone
        share out the time.
    micro_batch : int
    """

    graph: OperatorGraph
    cost: LayerCost
    parameters: int
    kind: DeviceKind
    rates: tuple[float, float] | None
    micro_batch: int

    def passes(self, operator: Operator, parts: Parts, by_keys: int = 1) -> list[int]:
        """Return the nanoseconds of an operator in each of `PASSES`.

        ``by_keys``: of so many devices each has a part of the queries of attention, and all keys and values.
        """
        return [
            share(
                getattr(self.cost, name) - self.constant(name),
                self._estimate(operator, parts, name, by_keys),
                self._wholes[name],
            )
            for name in PASSES
        ]

    def least(self, operator: Operator, parts: int, names: Sequence[str] = PASSES) -> list[int]:
        """Return the least nanoseconds of these passes of an operator in at most so many parts, whatever is split."""
        return [
            share(
                getattr(self.cost, name) - self.constant(name),
                self._least(operator, parts, name),
                self._wholes[name],
            )
            for name in names
        ]

    def alone(self, name: str) -> int:
        """Return the nanoseconds of a pass of all operators by their rooflines alone, whatever the layer takes."""
        return -(-self._wholes[name] // 1000)

    def update(self, own: int) -> int:
        """Return the nanoseconds in which ``own`` bytes of weights are updated."""
        return share(self.cost.update, own, self.parameters)

    def saved(self, name: str, parts: int) -> int:
        """Return the bytes per micro-batch of what an operator makes, of which a device keeps one of ``parts``."""
        total = sum(self._kept.values())
        if not total and name == self.graph.operators[-1].name:
            return self.cost.saved
        return share(self.cost.saved, self._kept.get(name, 0) // parts, total)

    def constant(self, name: str) -> int:
        """Nanoseconds of a pass that do not depend on how it is split."""
        passes = 2 if name == "backward" and self.cost.input_gradient and self.cost.weight_gradient else 1
        whole: int = getattr(self.cost, name)
        return min(whole, passes * self.kind.overhead) if self._wholes[name] else whole

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of every tensor for one sample."""
        return {**self.graph.inputs} | {each.name: each.output for each in self.graph.operators}

    @cached_property
    def counted(self) -> tuple[Weight, ...]:
        """The weights that make up the layer's parameters."""
        return self.graph.counted(self.parameters)

    @cached_property
    def _kept(self) -> dict[str, int]:
        """Bytes of what is kept until the backward, for one sample."""
        return {each.name: each.output for each in self.graph.operators if each.kept}

    @cached_property
    def _wholes(self) -> dict[str, int]:
        """For each pass the sum over whole operators, by which it is shared out."""
        return {name: sum(self._estimate(each, {}, name) for each in self.graph.operators) for name in PASSES}

    def _estimate(self, operator: Operator, parts: Parts, name: str, by_keys: int = 1) -> int:
        """Roofline of a pass of an operator, in picoseconds; without rates its operations.

        With a causal mask the device that has the last of T parts of the queries has the most work: 2 T − 1 of the T²
        squares of queries and keys, where a square on the diagonal counts half.
        """
        if name == "backward":
            halves = ("input_gradient", "weight_gradient")
            return sum(self._estimate(operator, parts, half, by_keys) for half in halves)
        causal = operator.attention is not None and operator.attention.causal
        flops = int(getattr(operator, f"{name}_flops")) * self.micro_batch
        share, devices = (2 * by_keys - 1, by_keys) if causal and by_keys > 1 else (1, 1)
        devices *= prod(parts.values())
        if self.rates is None:
            return flops * share * 1000 // devices
        if name == "weight_gradient" and not operator.weights:
            return 0
        peak, bandwidth = self.rates
        moved = sum(weight.size // split(parts, weight.loops) for weight in operator.weights)
        for source, axes in operator.reads.items():
            moved += self.micro_batch * self.sizes[source] // split(parts, axes)
        moved += self.micro_batch * operator.output // split(parts, operator.makes)
        if operator.attention is not None and by_keys > 1:
            keys, others = self.micro_batch * operator.attention.keys, prod(parts.values()) // by_keys
            moved += keys // others - keys // (others * by_keys)
        return round(PICOSECONDS * max(flops * share / (devices * peak), moved / bandwidth))

    def _least(self, operator: Operator, parts: int, name: str) -> int:
        """Lower bound on `_estimate` of at most so many parts: of operations, and of each tensor, one of them."""
        if name == "backward":
            return sum(self._least(operator, parts, half) for half in ("input_gradient", "weight_gradient"))
        flops = int(getattr(operator, f"{name}_flops")) * self.micro_batch
        if self.rates is None:
            return flops * 1000 // parts
        if name == "weight_gradient" and not operator.weights:
            return 0
        peak, bandwidth = self.rates
        sizes = [weight.size for weight in operator.weights]
        sizes += [self.micro_batch * size for size in (*map(self.sizes.__getitem__, operator.reads), operator.output)]
        moved = sum(size // parts for size in sizes)
        return round(PICOSECONDS * max(flops / (parts * peak), moved / bandwidth))


def rates_of(kind: DeviceKind, dtype: str) -> tuple[float, float] | None:
    """Return the operations and bytes per second that a kind of device reaches; None where these are not known."""
    peak = kind.peak.get(dtype)
    if peak is None or kind.bandwidth is None:
        return None
    return kind.efficiency * peak, kind.efficiency * kind.bandwidth


def split(parts: Parts, axes: Iterable[str]) -> int:
    """Return into how many parts a tensor with these axes is split."""
    return prod(parts[loop] for loop in {*axes} & {*parts})


def share(whole: int, part: int, total: int) -> int:
    """Return the part of a whole that falls to ``part`` of ``total``, rounded up; all 0 where the total is."""
    return -(-whole * part // total) if total else 0
