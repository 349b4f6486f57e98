"""How the C library of a local worker hands out memory, so that what a tensor frees is free.

By default glibc takes blocks of up to 32 MiB from one heap, in which freed tensors of unequal sizes leave holes: a
decoder's last stage was seen to hold 100 MiB, a third of its peak, that no tensor used. Blocks of their own go back
when they are freed. To have them costs page faults (12 % of that stage's time), but hardly any with huge pages, which
glibc asks for when told to.
"""

from pathlib import Path

OWN_BLOCK = 4 * 2**20
"""Bytes from which on a tensor gets a block of its own."""
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def allocator_settings() -> dict[str, str]:
    """Environment variables for a new worker; none without huge pages. Older glibc than 2.35 ignores them."""
    try:
        offered = "[never]" not in _HUGE_PAGES.read_text()
    except OSError:
        return {}
    return {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={OWN_BLOCK}"} if offered else {}
