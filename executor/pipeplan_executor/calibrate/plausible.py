"""Checks of a machine's measurements: on a busy machine, waiting may take longer than what is measured."""

from collections.abc import Mapping

from pipeplan.core.units import format_bytes, format_time

MOST_BANDWIDTH = 10**12
"""Bytes per second that no two processes of a machine exchange: main memory is slower."""
LEAST_RATIO = 2.0
"""Least ratio of the time of the largest tensor to that of the smallest, which has thousands of times fewer bytes."""
LEAST_SHARE = 0.2
"""Least part of the time of the largest tensor that the fitted bandwidth explains."""


def doubt_of_exchanges(times: Mapping[int, float], bandwidth: int) -> str:
    """Return why times (ns) of exchanges by bytes, and the bandwidth fitted to them, cannot be true; empty if they can.

    Parameters
    ----------
    bandwidth : int
        Bytes per second.
    """
    small, large = min(times), max(times)
    if times[large] < LEAST_RATIO * times[small]:
        return (
            f"an exchange of {format_bytes(large)} took {_time(times[large])}, hardly longer than one of "
            f"{format_bytes(small)}, {_time(times[small])}"
        )
    explained = large * 1e9 / bandwidth
    if bandwidth > MOST_BANDWIDTH or explained < LEAST_SHARE * times[large]:
        return (
            f"exchanges of {format_bytes(small)} to {format_bytes(large)} took {_time(times[small])} to "
            f"{_time(times[large])}, to which only a link of {bandwidth / 1e9:.3g} GB/s fits"
        )
    return ""


def doubt_of_sums(times: Mapping[int, float], what: str) -> str:
    """Return why the times (ns) of collectives by bytes cannot be true; empty if they can."""
    small, large = min(times), max(times)
    if times[large] <= times[small]:
        return (
            f"{what} of {format_bytes(large)} took {_time(times[large])}, no longer than one of {format_bytes(small)}, "
            f"{_time(times[small])}"
        )
    return ""


def _time(nanoseconds: float) -> str:
    return format_time(round(nanoseconds))
