"""`Sharded`: a model's frontier on meshes, and one choice of it, as an object, text, JSON and CSV."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeplan.analysis.sharding.placements import PlacedCopy, PlacedLayers, PlacedOperator
from pipeplan.core.cluster import Link
from pipeplan.core.tabular import Table
from pipeplan.core.units import format_bytes, format_time
from pipeplan.core.wording import counted, wrapped
from pipeplan.costs.sharding.clusters import shape_name
from pipeplan.costs.sharding.products import Product
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.unsplit import Undivided, Unsplit, notes
from pipeplan.costs.sources import Costs

FORMAT = "pipeplan-sharding/1"
SHOWN = 9
"""Largest number of points of a frontier in the text."""
SEARCHED = (
    "the split of every operator along every axis, weights that are gathered for each pass, and the layout of every "
    "tensor between operators, in one micro-batch a step"
)
NOT_SEARCHED = (
    "recomputation, redistributed tensors that are kept for the backward or for several readers, optimiser state "
    "shared out among devices that have copies of a weight (ZeRO-1), transfers beside computation, stages of a "
    "pipeline; workspace, such as a gathered weight, is not counted as memory"
)


class FrontierPoint(NamedTuple):
    """Nanoseconds of a step and bytes of a device that no choice has less of, and the mesh that has them."""

    time: int
    memory: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Sharded:
    """The answer of `shard`.

    Attributes
    ----------
    model, cluster, optimizer : str
    batch : int
        Samples in a step.
    shapes : tuple of tuple of int
        The meshes that were searched.
    mesh : Mesh
        That of the choice.
    points : tuple of FrontierPoint
        The exact Pareto set, the fastest first; of other back ends than ``'exact'`` the choice alone.
    number : int
        The point of the choice: the fastest that fits.
    bound : int
        Nanoseconds that no choice which fits is below.
    backend : str
    limit : int or None
        Bytes that a device may use.
    layers : tuple of PlacedLayers
        How every operator is split.
    products : tuple of Product
        What each product receives, over the least.
    unsplit : tuple of Unsplit
        Operators that nothing is known about, which are whole on every device.
    undivided : tuple of Undivided
        Lengths that an axis does not divide, if one mesh was named.
    costs : Costs
    seconds : float
        On the clock, of the search.
    strategy : str
        The one that was named; empty is any.
    beside : FrontierPoint or None
        If one was named, the fastest choice that fits of any strategy on meshes of one and two axes.

    Examples
    --------
    >>> found = pipeplan.shard("gpt2-small", "4-v100-nvlink", 8, "4")
    >>> [point.time for point in found.points] == sorted(point.time for point in found.points)
    True
    """

    model: str
    cluster: str
    batch: int
    optimizer: str
    shapes: tuple[tuple[int, ...], ...]
    mesh: Mesh
    points: tuple[FrontierPoint, ...]
    number: int
    bound: int
    backend: str
    limit: int | None
    layers: tuple[PlacedLayers, ...]
    products: tuple[Product, ...]
    unsplit: tuple[Unsplit, ...]
    undivided: tuple[Undivided, ...]
    costs: Costs
    seconds: float
    strategy: str = ""
    beside: FrontierPoint | None = None

    @property
    def point(self) -> FrontierPoint:
        """The point of the choice."""
        return self.points[self.number]

    @property
    def over_least(self) -> tuple[float, float] | None:
        """Numbers that products receive over the sum of their lower bounds, and the largest ratio of one.

        Of products whose bound is not 0; None if there are none.
        """
        bounded = [each for each in self.products if each.least]
        if not bounded:
            return None
        ratio = sum(each.received for each in bounded) / sum(each.least for each in bounded)
        return ratio, max(each.received / each.least for each in bounded)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        samples = counted(self.batch, "sample")
        yield f"{self.model} on {self.cluster}, {samples} a step, {self.optimizer}: " + (
            f"step {format_time(self.point.time)} with {format_bytes(self.point.memory)} a device on mesh "
            f"{shape_name(self.mesh.sizes)}; {self.proof}"
        )
        if self.beside is not None:
            yield (
                f"the best of any strategy on one or two axes: step {format_time(self.beside.time)} with "
                f"{format_bytes(self.beside.memory)} a device on mesh {shape_name(self.beside.sizes)}"
            )
        for axis, (size, link) in enumerate(zip(self.mesh.sizes, self.mesh.links, strict=True)):
            yield f"axis {axis}   {counted(size, 'device')}   {_link(link)}"
        yield ""
        if self.backend == "exact":
            yield from self._frontier()
            yield ""
        yield from self._operators()
        yield from self._notes()

    @property
    def proof(self) -> str:
        """What is proved about the choice."""
        if self.bound >= self.point.time:
            return f"proved, no {self.strategy + ' ' * bool(self.strategy)}choice that fits is faster"
        gap = 1 - self.bound / self.point.time
        return f"proven bound {format_time(self.bound)}, gap {gap:.2%} ({self.backend})"

    def _frontier(self) -> Iterator[str]:
        fastest, leanest = self.points[0], self.points[-1]
        yield (
            f"frontier: {counted(len(self.points), 'point')}, exact, from {format_time(fastest.time)} with "
            f"{format_bytes(fastest.memory)} to {format_time(leanest.time)} with {format_bytes(leanest.memory)}"
        )
        rows = [
            (format_time(own.time), format_bytes(own.memory), shape_name(own.sizes), "the choice" * (k == self.number))
            for k, own in self._shown()
        ]
        yield Table.of_text(("step time", "memory", "mesh", ""), rows).printed()

    def _shown(self) -> list[tuple[int, FrontierPoint]]:
        """Points from end to end, and the choice."""
        last = len(self.points) - 1
        numbers = {round(i * last / (SHOWN - 1)) for i in range(SHOWN)} | {self.number}
        return [(k, self.points[k]) for k in sorted(numbers)]

    def _operators(self) -> Iterator[str]:
        """One row for each operator that has weights or multiplies, once for layers that are split alike."""
        of = {each.name: each for each in self.products}
        rows: list[Sequence[str]] = []
        for layers in self.layers:
            more = f" and {len(layers.names) - 1} more" if len(layers.names) > 1 else ""
            rows.append((f"{layers.names[0]}{more}", "", "", "", "", ""))
            rows += [_row(each, of.get(f"{layers.names[0]}/{each.name}")) for each in layers.operators if each.matters]
        heads = ("operator", "splits", "weights", "makes", "received", "over the least")
        yield Table.of_text(heads, rows).printed()
        ratios = self.over_least
        if ratios is not None:
            bounded = sum(1 for each in self.products if each.least)
            yield (
                f"products receive {ratios[0]:.3g} times the least of any algorithm in sum, {ratios[1]:.3g} times at "
                f"most (forward; the {bounded} of {counted(len(self.products), 'product')} whose least is not 0)"
            )

    def _notes(self) -> Iterator[str]:
        for note in notes(self.unsplit, self.undivided, self.mesh.sizes, self.point.time):
            yield from wrapped(note)
        yield from self.costs.lines()
        named = f"products of matrices as {self.strategy} tensor parallelism does, and otherwise " * bool(self.strategy)
        yield from wrapped(f"searched: {named}{SEARCHED}")
        yield from wrapped(f"not searched: {NOT_SEARCHED}")

    def as_json(self) -> dict[str, object]:
        """Plain data; times in seconds, placements by number of the dimension, None for whole."""
        return {
            "format": FORMAT,
            "model": self.model,
            "cluster": self.cluster,
            "batch": self.batch,
            "optimizer": self.optimizer,
            "step_time_s": self.point.time / 1e9,
            "bound_s": self.bound / 1e9,
            "strategy": self.strategy,
            "best_of_any_strategy": None if self.beside is None else _point_json(self.beside),
            "backend": self.backend,
            "memory_bytes": self.point.memory,
            "memory_limit_bytes": self.limit,
            "mesh": [
                {
                    "devices": size,
                    "bandwidth_bytes_per_s": link.bandwidth,
                    "latency_s": link.latency / 1e9,
                }
                for size, link in zip(self.mesh.sizes, self.mesh.links, strict=True)
            ],
            "meshes_searched": [list(own) for own in self.shapes],
            "frontier": [_point_json(own) for own in self.points],
            "choice": self.number,
            "layers": [
                {"names": list(own.names), "operators": [_operator_json(each) for each in own.operators]}
                for own in self.layers
            ],
            "products": [
                {
                    "operator": own.name,
                    "rows": own.rows,
                    "inputs": own.inputs,
                    "outputs": own.outputs,
                    "received": own.received,
                    "least": own.least,
                }
                for own in self.products
            ],
            "whole": [own.as_json() for own in self.unsplit],
            "undivided": [own.as_json() for own in self.undivided],
            "costs": self.costs.as_json(),
            "searched": SEARCHED,
            "not_searched": NOT_SEARCHED,
            "seconds": self.seconds,
        }

    def as_csv(self) -> str:
        """The frontier as a table."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("step_time_s", "memory_bytes", "mesh"))
        writer.writerows((own.time / 1e9, own.memory, "x".join(map(str, own.sizes))) for own in self.points)
        return text.getvalue()


def _point_json(point: FrontierPoint) -> dict[str, object]:
    return {"step_time_s": point.time / 1e9, "memory_bytes": point.memory, "mesh": list(point.sizes)}


def _link(link: Link) -> str:
    rate = "free" if link.bandwidth is None else f"{link.bandwidth / 1e9:g} GB/s"
    return f"{rate}, {format_time(link.latency)} a round"


def _row(operator: PlacedOperator, product: Product | None) -> Sequence[str]:
    places = "; ".join(
        f"{name.rpartition('.')[2]} {' | '.join('whole' if entry is None else str(entry) for entry in row)}"
        for name, row in operator.weights.items()
    )
    received = over = ""
    if product is not None:
        received = f"{product.received / 1e6:.3g} M"
        over = "-" if product.over_least is None else f"{product.over_least:.3g}"
    return (f"  {operator.name}", " | ".join(operator.splits), places, " | ".join(operator.held), received, over)


def _copy_json(copy: PlacedCopy) -> dict[str, object]:
    return {"makes": list(copy.dimensions), "for": list(copy.readers), "kept": copy.kept}


def _operator_json(each: PlacedOperator) -> dict[str, object]:
    return {
        "name": each.name,
        "kind": each.kind,
        "splits": list(each.splits),
        "makes": list(each.dimensions),
        "gradient_summed": None if each.gradient is None else list(each.gradient),
        "copy": None if each.copy is None else _copy_json(each.copy),
        "weights": {name: list(row) for name, row in each.weights.items()},
    }
