"""What a command of the ``pipeplan`` program is. Other packages add theirs as entry points ``pipeplan.commands``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A name, one line of help, the arguments, and what to do; ``run`` returns the exit code (0, 1 or 2)."""

    name: str
    summary: str
    configure: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
