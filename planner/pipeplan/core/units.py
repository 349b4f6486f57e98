"""Parse quantities with units (``80GiB``, ``300GB/s``, ``5us``) to integers, and format them.

Inside pipeplan a time is an integer of nanoseconds, a size an integer of bytes, a rate an integer per second.
"""

import re
from math import isfinite

from pipeplan.core.errors import InputError
from pipeplan.core.figures import LARGEST, shown, written

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_PREFIX = {**_DECIMAL, **_BINARY}
_TIME = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([^\s]*)\s*")


def _split(text: str | int | float, meaning: str, example: str) -> tuple[float, str]:
    match = None if isinstance(text, int) and abs(text) > LARGEST else _NUMBER.fullmatch(written(text))
    if match is None:
        raise InputError(f"{shown(text)} is not a {meaning}; write it like {example}")
    return float(match[1]), match[2]


def _whole(text: str | int | float, value: float) -> int:
    """Round a quantity in its internal unit; refuse one that is too large."""
    if not isfinite(value) or value > LARGEST:
        raise InputError(f"{shown(text)} is too large; in bytes, nanoseconds or per second it may be at most {LARGEST}")
    return round(value)


def parse_bytes(text: str | int) -> int:
    """Parse bytes from ``'16GiB'``, ``'100MB'``, ``'512B'`` or a plain integer."""
    number, unit = _split(text, "size", "16GiB, 100MB or 512B")
    prefix = unit.removesuffix("B")
    if prefix not in _PREFIX:
        raise InputError(f"{shown(text)} is not a size; write it like 16GiB, 100MB or 512B")
    return _whole(text, number * _PREFIX[prefix])


def parse_reserve(text: str | int | float) -> int | float:
    """Parse what of each device's memory is left free: a share from ``'5%'`` or 0.05, or bytes from ``'2GiB'``."""
    number, unit = _split(text, "size or a share", "2GiB or 5%")
    share = (
        text
        if isinstance(text, float)
        else number / 100
        if unit == "%"
        else number
        if not unit and 0 < number < 1
        else None
    )
    return parse_bytes(str(text)) if share is None else share


def format_reserve(reserve: int | float) -> str:
    """Format what `parse_reserve` returns: ``'5%'`` or ``'2.00 GiB'``."""
    return f"{100 * reserve:.4g}%" if isinstance(reserve, float) else format_bytes(reserve)


def parse_time(text: str | int) -> int:
    """Parse nanoseconds from ``'5us'``, ``'1.5ms'``, ``'2s'`` or a plain integer of nanoseconds."""
    number, unit = _split(text, "time", "5us, 1.5ms or 2s")
    if unit and unit not in _TIME:
        raise InputError(f"{shown(text)} is not a time; write it like 5us, 1.5ms or 2s")
    return _whole(text, number * _TIME[unit or "ns"])


def parse_bandwidth(text: str | int) -> int:
    """Parse bytes per second from ``'300GB/s'``, ``'10Gbit/s'`` or a plain integer of bytes per second."""
    number, unit = _split(text, "bandwidth", "300GB/s or 10Gbit/s")
    body = unit.removesuffix("/s")
    if unit and body == unit and not unit.endswith("bps"):
        raise InputError(f"{shown(text)} is not a bandwidth; write it like 300GB/s or 10Gbit/s")
    divisor = 1
    for suffix in ("bit", "bps"):
        if body.endswith(suffix):
            body, divisor = body.removesuffix(suffix), 8
    prefix = body.removesuffix("B")
    if prefix not in _PREFIX:
        raise InputError(f"{shown(text)} is not a bandwidth; write it like 300GB/s or 10Gbit/s")
    value = _whole(text, number * _PREFIX[prefix] / divisor)
    if value <= 0:
        raise InputError(f"{shown(text)}: a bandwidth must be above zero; leave it out for a free link")
    return value


def parse_rate(text: str | int | float) -> int:
    """Parse operations per second from ``'125TFLOP/s'``, ``'125TFLOPS'`` or a plain number."""
    number, unit = _split(text, "rate", "125TFLOP/s")
    prefix = re.sub(r"(FLOP/s|FLOPS|FLOP)$", "", unit)
    if prefix not in _DECIMAL:
        raise InputError(f"{shown(text)} is not a rate; write it like 125TFLOP/s")
    return _whole(text, number * _DECIMAL[prefix])


def format_bytes(value: int) -> str:
    """Format bytes: ``'1.50 GiB'``."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= factor:
            return f"{value / factor:.2f} {unit}"
    return f"{value} B"


def format_time(value: int | float) -> str:
    """Format nanoseconds: ``'12.3 ms'``."""
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.4g} ns"


def format_flops(value: int) -> str:
    """Format floating-point operations: ``'3.70 GFLOP'``."""
    for prefix, factor in (("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= factor:
            return f"{value / factor:.2f} {prefix}FLOP"
    return f"{value} FLOP"
