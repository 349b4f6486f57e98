"""Python's garbage collector: suspended while very many small objects are made and kept, and called seldom.

The collector scans all of them repeatedly, which takes more time than making them.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 10_000
"""Objects after which the collector of a program of its own looks at them."""


def collect_seldom() -> None:
    """Let the collector scan new objects after `SELDOM` of them: a program keeps most of what it makes."""
    gc.set_threshold(SELDOM, *gc.get_threshold()[1:])


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
