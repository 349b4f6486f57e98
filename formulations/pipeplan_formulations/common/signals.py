"""SIGINT (Ctrl-C) and SIGTERM, recorded while a search listens for them.

::

    first signal      recorded, KeyboardInterrupt     the search ends and hands back the best it has
    second signal     `listening` ends                nothing is handed back

Wrappers (a shell, ``timeout``, ``uv run``) may deliver one signal twice; what comes within `SAME` seconds is the same.
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
"""Seconds."""


class _EndAtOnce(BaseException):
    """Raised by the second signal past everything that catches the first one."""


@dataclass
class _Listener:
    received: Signals | None = None
    when: float = 0.0
    nearly: bool = False

    def handle(self, number: int, _: Any) -> None:
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
    """Whether a signal came to the search that this thread runs."""
    listener = _listener.get()
    return listener is not None and listener.received is not None


@contextmanager
def interruptible() -> Iterator[None]:
    """What fails after a signal was interrupted by it: libraries may turn a KeyboardInterrupt into errors of their own.

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
    """The first signal is recorded only: what runs now is about to hand back the answer."""
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

    Only in the main thread, and only where nobody else answers the signal or has it ignored. Inside another
    ``listening()`` it does nothing: the outer one goes on. Behind it everything is as before.

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
