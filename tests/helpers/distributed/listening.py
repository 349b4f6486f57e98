"""Sockets on which a process and its descendants listen."""

import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LISTEN = "0A"


def descendants(process: int) -> Iterator[int]:
    """Yield a process, its children, theirs, and so on."""
    yield process
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from descendants(int(child))


def listening(process: int) -> dict[int, set[str]]:
    """Map each process of a tree to the addresses on which it listens for TCP."""
    found = {}
    for one in descendants(process):
        inodes = set(_inodes(one))
        found[one] = {address for inode, address in _open(one) if inode in inodes}
    return found


def _inodes(process: int) -> Iterator[str]:
    with suppress(OSError):
        for name in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                seen = re.fullmatch(r"socket:\[(\d+)\]", str(name.readlink()))
                if seen is not None:
                    yield seen[1]


def _open(process: int) -> Iterator[tuple[str, str]]:
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with suppress(OSError):
            for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTEN:
                    words = bytes.fromhex(fields[1].partition(":")[0])  # words of four bytes, each little-endian
                    address = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                    yield fields[9], socket.inet_ntop(family, address)
