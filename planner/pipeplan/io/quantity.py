"""Integers as a file shows them: with a unit that makes them easy to read, and exact.

The inverse of `pipeplan.core.units`: what these write, the parsers read back as the same integer.
"""

_EXACT = 2**50
"""The parsers round a float, and its product with the unit: larger numbers, which that may change, have no unit."""


def written_bytes(value: int) -> int | str:
    """``'16GiB'``, ``'1568MiB'``; a size that is no multiple of a KiB stays a plain number of bytes."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value and value % factor == 0 and value // factor < _EXACT:
            return f"{value // factor}{unit}"
    return value


def written_time(value: int) -> int | str:
    """``'5us'``, ``'22.307ms'``, ``'850ns'``."""
    for digits, unit in ((9, "s"), (6, "ms"), (3, "us"), (0, "ns")):
        if 10**digits <= value < _EXACT:
            return f"{_decimal(value, digits)}{unit}"
    return value


def written_bandwidth(value: int) -> int | str:
    """``'300GB/s'``, ``'1.25GB/s'``."""
    return _rate(value, "B/s")


def written_rate(value: int) -> int | str:
    """``'125TFLOP/s'``."""
    return _rate(value, "FLOP/s")


def written_flops(value: int) -> int | str:
    """``'7.5GFLOP'``."""
    return _rate(value, "FLOP")


def _rate(value: int, unit: str) -> int | str:
    for digits, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if 10**digits <= value < _EXACT:
            return f"{_decimal(value, digits)}{prefix}{unit}"
    return value


def _decimal(value: int, digits: int) -> str:
    """``value / 10**digits`` as exact decimal digits without trailing zeros."""
    whole, rest = divmod(value, 10**digits)
    fraction = f"{rest:0{digits}d}".rstrip("0") if digits else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
