"""Suspension of Python's garbage collector while very many small objects are made and kept.

The collector scans all of them repeatedly, which takes more time than making them.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable the garbage collector inside a ``with`` block; as a decorator, during a call."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
