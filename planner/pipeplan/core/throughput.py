"""Throughput of a training step: samples, tokens and floating-point operations per second, and the share of the peak.

::

    batch · tokens of a sample / time                    tokens/s
    batch · operations of a sample / time                FLOP/s      forward and backward once: recomputing adds none
    FLOP/s / sum of the peaks of the cluster's devices   MFU         (Chowdhery et al., PaLM, 2022, appendix B)
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.model import Layer, Model
from pipeplan.core.operators import TOKEN


@dataclass(frozen=True, slots=True)
class Throughput:
    """Figures per second, and ``mfu``, the share of the peak (model FLOPs utilisation); None where they are unknown.

    ``at_least``: some operations of the model are not counted, so that ``flops`` and ``mfu`` are lower bounds.
    """

    samples: float | None = None
    tokens: float | None = None
    flops: float | None = None
    mfu: float | None = None
    at_least: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{number} {unit}" for unit, number in self.cells().items() if number) or "unlimited"

    def cells(self) -> dict[str, str]:
        """The figures as text, by their units; empty where they are unknown."""
        more = "≥ " if self.at_least else ""
        return {
            "samples/s": _number(self.samples),
            "tokens/s": _number(self.tokens),
            "TFLOP/s": "" if self.flops is None else more + _number(self.flops / 1e12),
            "MFU": "" if self.mfu is None else f"{more}{self.mfu:.1%}",
        }

    def as_json(self) -> dict[str, float | bool | None]:
        """Plain data; None where a figure is unknown."""
        tera = None if self.flops is None else self.flops / 1e12
        figures = {"samples_per_s": self.samples, "tokens_per_s": self.tokens, "tflop_per_s": tera, "mfu": self.mfu}
        return figures | ({"at_least": True} if self.at_least else {})


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What a throughput is measured by; None where it is not known.

    Attributes
    ----------
    tokens, flops : int or None
        Tokens of a sample (the longest sequence that its operators know), and floating-point operations of its forward
        and backward.
    peak : int or None
        Operations per second of all devices of the cluster together, in the model's number format.
    uncounted : bool
        Whether the sample has operations that ``flops`` leaves out.
    """

    tokens: int | None = None
    flops: int | None = None
    peak: int | None = None
    uncounted: bool = False

    def throughput(self, samples: int, time: int) -> Throughput:
        """Return the throughput of ``samples`` in ``time`` nanoseconds; nothing is known of it if they take no time."""
        if not time:
            return Throughput()
        rate = samples / time * 1e9
        flops = None if self.flops is None else rate * self.flops
        return Throughput(
            samples=rate,
            tokens=None if self.tokens is None else rate * self.tokens,
            flops=flops,
            mfu=flops / self.peak if flops is not None and self.peak is not None else None,
            at_least=self.uncounted and flops is not None,
        )


def yardstick(model: Model, cluster: Cluster) -> Yardstick:
    """Return what is known of a model's samples and a cluster's peak."""
    lengths = [each.loops.get(TOKEN, 0) for graph in model.operators.values() for each in graph.operators]
    return Yardstick(
        tokens=max(lengths, default=0) or None,
        flops=_sum(_flops(layer, model) for layer in model.layers) or None,
        peak=_sum(_peak(kind, count, model.dtype) for kind, count in cluster.counts),
        uncounted=bool(model.uncounted),
    )


def _flops(layer: Layer, model: Model) -> int | None:
    parts = [layer.work] if layer.work is not None else []
    if not parts and not layer.operators:
        return None
    every = parts or model.operators[layer.operators].operators
    return sum(each.forward_flops + each.input_gradient_flops + each.weight_gradient_flops for each in every)


def _peak(kind: DeviceKind, count: int, dtype: str) -> int | None:
    peak = kind.peak.get(dtype)
    return None if peak is None else peak * kind.team * count


def _sum(figures: Iterable[int | None]) -> int | None:
    found = list(figures)
    known = [figure for figure in found if figure is not None]
    return sum(known) if len(known) == len(found) else None


def _number(value: float | None) -> str:
    """Four digits, with commas between thousands: ``'15,830'``, ``'3.142'``."""
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
