"""Suspension of Python's garbage collector while very many small objects are made that all stay.

It looks through all of them again and again, and takes more time than whoever makes them.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Nothing is collected meanwhile; as a decorator, during a call."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
