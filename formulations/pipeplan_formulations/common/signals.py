"""Handling of SIGINT (Ctrl-C) and SIGTERM during a search.

::

    first signal      recorded, KeyboardInterrupt     the search ends and returns its best solution
    second signal     `listening` ends                no solution is returned

Wrappers (a shell, ``timeout``, ``uv run``) may deliver one signal twice, so a second signal within `DUPLICATE` seconds
is ignored.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from signal import SIG_DFL, SIGINT, SIGTERM, Signals, default_int_handler, getsignal, signal
from threading import current_thread, main_thread
from typing import Any

HANDLED = (SIGINT, SIGTERM)
DUPLICATE = 0.5
"""Seconds in which a second signal counts as a duplicate of the first."""


class _EndAtOnce(BaseException):
    """Raised by the second signal; not caught by handlers of KeyboardInterrupt."""


@dataclass
class _Listener:
    """The first signal and its moment; ``nearly`` is true in a `nearly_done` block."""

    received: Signals | None = None
    when: float = 0.0
    nearly: bool = False

    def handle(self, number: int, _: Any) -> None:
        """Record the first signal and raise; end at once on a later one."""
        now = time.monotonic()
        if self.received is None:
            self.received, self.when = Signals(number), now
            if self.nearly:
                return
            raise KeyboardInterrupt
        if now - self.when > DUPLICATE:
            raise _EndAtOnce


_listener: ContextVar[_Listener | None] = ContextVar("listener", default=None)  # threads begin without one


def received() -> bool:
    """True if the search in this thread received a signal."""
    listener = _listener.get()
    return listener is not None and listener.received is not None


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn any error after a signal into KeyboardInterrupt, because libraries may raise errors of their own instead.

    Raises
    ------
    KeyboardInterrupt
        Instead of any other error, if a signal was received.
    """
    try:
        yield
    except Exception as error:
        if received():
            raise KeyboardInterrupt from error
        raise


@contextmanager
def nearly_done() -> Iterator[None]:
    """Only record the first signal in this block, because the answer is about to be returned."""
    listener = _listener.get()
    before = listener is not None and listener.nearly
    if listener is not None:
        listener.nearly = True
    try:
        yield
    finally:
        if listener is not None:
            listener.nearly = before


@contextmanager
def listening() -> Iterator[None]:
    """Record SIGINT and SIGTERM, and raise KeyboardInterrupt for the first one.

    This applies only in the main thread, and only to signals that have their default handler. Inside another
    ``listening()`` it does nothing, and the outer one continues. Afterwards all handlers are restored.

    Raises
    ------
    KeyboardInterrupt
        For the second signal; for the first one if the block does not catch it.
    """
    if current_thread() is not main_thread() or _listener.get() is not None:
        yield
        return
    listener = _Listener()
    with ExitStack() as stack:
        stack.callback(_listener.reset, _listener.set(listener))
        for number in HANDLED:
            before = getsignal(number)
            if before in (SIG_DFL, default_int_handler):
                stack.callback(signal, number, before)
                signal(number, listener.handle)
        try:
            yield
        except _EndAtOnce:
            raise KeyboardInterrupt from None
