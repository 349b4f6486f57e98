"""Settings of glibc's allocator for local workers, which return freed tensors to the system.

By default glibc takes blocks of up to 32 MiB from one heap, in which freed tensors of unequal sizes leave holes: a
decoder's last stage was measured to hold 100 MiB, a third of its peak, that no tensor used. A block of its own returns
to the system when it is freed. Such blocks cost page faults (12 % of that stage's time), but hardly any with huge
pages, which glibc requests if a setting enables them.

A profile predicts the time of a worker only if it was measured with the same allocator settings. VGG-16 in two stages
took 20 % more than predicted by a profile with the default heap, and 3 % more than by one with the worker's settings.

Smaller tensors stay in the heap. What they leave there when they are freed cannot serve a block of its own, so a rank
would have both. `return_free_memory` gives it back first.
"""

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

OWN_BLOCK = 4 * 2**20
"""Least bytes of a tensor that gets a block of its own."""
VARIABLE = "GLIBC_TUNABLES"
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def allocator_settings() -> dict[str, str]:
    """Environment variables for a new worker; none without huge pages. glibc before 2.35 ignores them."""
    try:
        offered = "[never]" not in _HUGE_PAGES.read_text()
    except OSError:
        return {}
    return {VARIABLE: f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={OWN_BLOCK}"} if offered else {}


@contextmanager
def inherited(settings: Mapping[str, str]) -> Iterator[None]:
    """Context in which new processes get these environment variables, unless the user has set them."""
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def return_free_memory() -> None:
    """Return the free pages of glibc's heap to the system; nothing happens under another C library."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def allocator_here() -> str:
    """Description of this process's allocator settings, for a profile's provenance.

    The C library reads the variable once, when a process starts; `inherited` sets it for new processes only.
    """
    setting = os.environ.get(VARIABLE)
    if setting == allocator_settings().get(VARIABLE):
        return "a worker's allocator"
    return f"{VARIABLE}={setting}" if setting else "the default allocator"
