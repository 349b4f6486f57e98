"""Scheduling of the thread that moves gloo's messages.

It polls a connection without a pause as long as another thread holds the connection's lock, as one does that sends or
posts a receive. If a message arrives meanwhile, and on busy cores the woken thread displaces the one with the lock,
both wait for the end of a time slice: some 2 ms, beside tens of microseconds for the message. As `SCHED_BATCH` it
displaces nobody when it wakes; it runs on an idle core, or once the core's thread waits.

What does not fit into a socket's buffer is also sent by this thread, and would wait for actions to end. So it stays as
it is where messages are larger.
"""

import os
from contextlib import suppress
from pathlib import Path

TINY = 1 << 17
"""Bytes of the largest message for which the thread steps back: with 512 KiB steps took 1.2 to 1.3 times as long."""


def schedule_messages(largest: int) -> None:
    """Set how the messages of the process group are scheduled beside actions: by the bytes of the largest message.

    Nothing changes outside Linux, or where this process has not the usual policy.
    """
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    policy = os.SCHED_BATCH if largest <= TINY else os.SCHED_OTHER
    with suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(message_thread(), policy, os.sched_param(0))


def message_thread() -> int:
    """Return the number of gloo's thread of the process group, which is older than those of other groups.

    Raises
    ------
    ProcessLookupError
        If there is none.
    """
    named = [int(file.parent.name) for file in Path("/proc/self/task").glob("*/comm") if _name(file) == "gloo_tcp_loop"]
    if not named:
        raise ProcessLookupError("gloo has no thread here")
    return min(named)


def _name(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # the thread has ended
        return ""
