"""Numbers that stand for the absence of one."""

UNLIMITED: int = 2**62
"""Larger than every time, size and count: a limit that never binds, or the value of a solution that does not exist."""
