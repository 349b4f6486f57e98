"""Standard output and standard error during a command: what they cannot take does not end it.

::

    a character outside the encoding   replaced by ?
    a closed pipe (`| head`)           nothing more is written; the exit code stays
    closed, a full disk                nothing more is written; the exit code is 1 instead of 0
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO


class Stream:
    """A standard stream whose writes raise nothing.

    Attributes
    ----------
    failure : str
        Why something could not be written; empty if all was.
    """

    def __init__(self, stream: TextIO | None, descriptor: int) -> None:
        self.failure = ""
        self.closed_before = stream is None
        self._stream = stream if stream is not None else _opened(descriptor)
        self._lost = False

    def write(self, text: str) -> int:
        """Write a text as far as the stream can take it; return its length."""
        if self.closed_before and text:
            self.failure = self.failure or "it is closed"
        elif not self._lost:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding or "ascii"
                return self.write(text.encode(encoding, "replace").decode(encoding))
            except (OSError, ValueError) as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Pass on what was written."""
        if not self._lost:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._give_up(error)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError | ValueError) -> None:
        self._lost = True
        if not isinstance(error, BrokenPipeError):
            self.failure = getattr(error, "strerror", None) or str(error)
        with suppress(OSError, ValueError):  # what Python still has to write at its end raises nothing either
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


def _opened(descriptor: int) -> TextIO:
    """Open a place that discards all, under the number of a closed descriptor, so that no file gets this number."""
    null = os.open(os.devnull, os.O_RDONLY)  # a file named /dev/stdout is refused all the same
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
    return Path(os.devnull).open("w", encoding="utf-8")


@contextmanager
def tolerant_streams() -> Iterator[tuple[Stream, Stream]]:
    """Context in which ``sys.stdout`` and ``sys.stderr`` raise nothing."""
    before = sys.stdout, sys.stderr
    out, err = Stream(sys.stdout, 1), Stream(sys.stderr, 2)
    sys.stdout, sys.stderr = out, err
    try:
        yield out, err
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


def code_of(code: int, out: Stream, err: Stream) -> int:
    """Return the exit code of a command, after a line on standard error about text that was lost."""
    out.flush()
    err.flush()
    if out.failure:
        print(f"pipeplan: standard output was not written: {out.failure}", file=err)
        err.flush()
    return code or (1 if out.failure or err.failure else 0)
