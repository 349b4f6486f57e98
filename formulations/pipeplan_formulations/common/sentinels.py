"""Sentinels: numbers that stand for a missing limit or value."""

UNLIMITED: int = 2**62
"""Larger than every time, size and count: a limit that never binds, or the value of a solution that does not exist."""
