"""Integers as a file shows them: with the largest unit in which they stay exact and short.

The inverse of `pipeplan.units`: what these write, the parsers read back as the same integer.
"""

_EXACT = 2**53
"""The parsers pass through a float, so larger numbers are written without a unit."""
_DIGITS = 3
"""Decimal places that a rate may have before plain digits are easier to read."""


def written_bytes(value: int) -> int | str:
    """``'16GiB'``, ``'1568MiB'``; a size that is no multiple of a KiB stays a plain number of bytes."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value and value % factor == 0 and value // factor < _EXACT:
            return f"{value // factor}{unit}"
    return value


def written_time(value: int) -> int | str:
    """``'5us'``, ``'22.307ms'``, ``'850ns'``."""
    for unit, factor, digits in (("s", 10**9, 9), ("ms", 10**6, 6), ("us", 10**3, 3), ("ns", 1, 0)):
        if factor <= value < _EXACT:
            return f"{_decimal(value, factor, digits)}{unit}"
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
    for prefix, factor in (("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if factor <= value < _EXACT and value * 10**_DIGITS % factor == 0:
            return f"{_decimal(value, factor, _DIGITS)}{prefix}{unit}"
    return value


def _decimal(value: int, factor: int, digits: int) -> str:
    """``value / factor`` as exact decimal digits without trailing zeros."""
    whole, rest = divmod(value, factor)
    fraction = f"{rest * 10**digits // factor:0{digits}d}".rstrip("0") if digits else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
