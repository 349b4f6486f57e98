"""Read and write device kinds; the shipped catalogue is ``datasets/devices.yaml``, a mapping from name to figures.

::

    v100-16gb:
      memory: 16GiB
      peak: {float32: 15.7TFLOP/s, float16: 125TFLOP/s}
      bandwidth: 900GB/s
      efficiency: 0.5
      overhead: 5us
      runtime: 500MiB
      source: data sheet DA-09079
"""

from functools import cache
from math import inf
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, RootModel

from pipeplan.core.cluster import DeviceKind
from pipeplan.io.datasets import datasets_folder
from pipeplan.io.schema import (
    Bandwidth,
    Bytes,
    Nanoseconds,
    Rate,
    Strict,
    check,
    written_bandwidth,
    written_bytes,
    written_rate,
    written_time,
)
from pipeplan.io.text import Row, lean, parse_data, read_text


def _number(value: object) -> object:
    """Convert integers to float, so that ``1`` is accepted for ``1.0``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1023 else inf
    return value


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]


class DeviceEntry(Strict):
    """Schema of the figures of one kind; see `pipeplan.DeviceKind` for their meaning and units."""

    describes = DeviceKind

    memory: Bytes | None = None
    peak: dict[str, Rate] | None = None
    bandwidth: Bandwidth | None = None
    efficiency: Annotated[Number, Field(gt=0, le=1)] | None = None
    overhead: Nanoseconds | None = None
    runtime: Bytes | None = None
    price: Annotated[Number, Field(ge=0)] | None = None
    on_chip: Bytes | None = None
    speed_beside_collectives: Annotated[Number, Field(ge=0, le=1)] | None = None
    shard_overhead: Nanoseconds | None = None
    source: str | None = None

    def figures(self) -> dict[str, Any]:
        """Return the fields that the entry sets."""
        return {name: value for name in DeviceEntry.model_fields if (value := getattr(self, name)) is not None}


class Catalogue(RootModel[Any]):
    """Schema of a file of device kinds: entries by name."""

    model_config = ConfigDict(defer_build=True)
    root: dict[str, DeviceEntry]


def read_devices(path: Path) -> dict[str, DeviceKind]:
    """Read a file of device kinds; return them by name.

    Raises
    ------
    InputError
        Naming every fault.
    """
    entries = check(Catalogue, parse_data(read_text(path), str(path)) or {}, str(path)).root
    return {name: DeviceKind(name=name, **entry.figures()) for name, entry in entries.items()}


@cache
def catalogue() -> dict[str, DeviceKind]:
    """Return the shipped device kinds by name."""
    path = datasets_folder() / "devices.yaml"
    return read_devices(path) if path.is_file() else {}


def device_fields(kind: DeviceKind) -> dict[str, Any]:
    """Return a kind's figures as in a file; default values are left out."""
    return lean(
        memory=None if kind.memory is None else written_bytes(kind.memory),
        peak=Row({name: written_rate(value) for name, value in kind.peak.items()}),
        bandwidth=None if kind.bandwidth is None else written_bandwidth(kind.bandwidth),
        efficiency=None if kind.efficiency == 0.5 else kind.efficiency,
        overhead=written_time(kind.overhead) if kind.overhead else None,
        runtime=written_bytes(kind.runtime) if kind.runtime else None,
        price=kind.price,
        on_chip=None if kind.on_chip is None else written_bytes(kind.on_chip),
        speed_beside_collectives=None if kind.speed_beside_collectives == 1 else kind.speed_beside_collectives,
        shard_overhead=written_time(kind.shard_overhead) if kind.shard_overhead else None,
        source=kind.source,
    )
