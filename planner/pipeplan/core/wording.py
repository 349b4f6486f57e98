"""Text of messages: suggestions for mistyped names, abbreviated lists, plurals, wrapped lines."""

import os
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import groupby
from shutil import get_terminal_size
from textwrap import wrap

WIDTH = 120
"""Most columns of wrapped lines."""


def terminal_width(default: int) -> int:
    """Return the columns of the terminal, or those that ``COLUMNS`` names; ``default`` where text goes elsewhere."""
    known = (sys.stdout is not None and sys.stdout.isatty()) or "COLUMNS" in os.environ
    return get_terminal_size((default, 0)).columns if known else default


def fitted(text: str) -> str:
    """Wrap the lines of a text that are longer than the terminal, those that continue one further to the right."""
    width = terminal_width(0)
    lines = text.splitlines()
    if not width or max(map(len, lines), default=0) <= width:
        return text
    return "\n".join(part for line in lines for part in _parts(line, width))


def _parts(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    margin = " " * (len(line) - len(line.lstrip()))
    return wrap(line, width, subsequent_indent=f"{margin}    ", drop_whitespace=True, break_on_hyphens=False)


def near(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return known names similar to ``name``, best first, ignoring case."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    return tuple(by_lower[match] for match in get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6))


def hint(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'memory'?"``, or an empty text where no known name is similar."""
    matches = near(name, known)
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""


def some(names: Sequence[str], shown: int = 3) -> str:
    """Join the first names, and count the others."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def counted(number: int, thing: str) -> str:
    """Return a number with its noun: ``'1 stage'``, ``'4 stages'``, ``'2 micro-batches'``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}{'es' if thing.endswith('ch') else 's'}"


def device_names(devices: Sequence[int], letter: str = "d", most: int = 8) -> str:
    """Name devices (``letter`` d) or teams (t): ``'d0, d1'``; of many the ends: ``'d0 … d127 (128 devices)'``."""
    if len(devices) <= most:
        return ", ".join(f"{letter}{device}" for device in devices)
    many = counted(len(devices), "device" if letter == "d" else "team")
    return f"{letter}{devices[0]} … {letter}{devices[-1]} ({many})"


def stages_of(replicas: Sequence[int]) -> str:
    """Return the stages of a plan with their replicas: ``'4 stages'``, ``'1 stage of 8 replicas'``, ``'… of 2-1-1 …'``.

    ``replicas``: of each stage. One each is not said.
    """
    widths = replicas_of(replicas)
    return counted(len(replicas), "stage") + (f" of {widths} replicas" if widths else "")


def replicas_of(replicas: Sequence[int]) -> str:
    """Return the replicas of stages, ``'8'`` or of unlike ones ``'2-1-1'``; empty for one each."""
    widths = set(replicas)
    if len(widths) > 1:
        return in_a_row(replicas)
    return "" if widths == {1} else str(replicas[0])


def in_a_row(numbers: Sequence[int], most: int = 8) -> str:
    """Join numbers as ``3-1-1``; long sequences as runs: ``2x16-1x32``."""
    if len(numbers) <= most:
        return "-".join(map(str, numbers))
    runs = [(value, len(list(run))) for value, run in groupby(numbers)]
    if len(runs) <= most:
        return "-".join(f"{value}x{length}" for value, length in runs)
    return f"{numbers[0]}…{numbers[-1]}"


def zero_suffix(level: int) -> str:
    """Return ``', ZeRO-1'``; an empty text at level 0."""
    return f", ZeRO-{level}" if level else ""


def series(parts: Iterable[object]) -> str:
    """Return parts in a row: ``'2, 4 and 8'``."""
    *before, last = map(str, parts)
    return f"{', '.join(before)} and {last}" if before else last


def teams_of(team: int) -> str:
    """Return ``'teams of 8'``, where layers may be pinned to instead of a kind of device."""
    return f"teams of {team}"


def team_suffix(
    teams: Sequence[int],
    parallelism: Sequence[str] = (),
    mesh: Sequence[int] = (),
) -> str:
    """Return ``', teams of 8'``, ``', teams of 2 x 8'`` or of unlike ones ``', teams of 4-2-1'``; empty for devices.

    By ``parallelism`` (`pipeplan.core.splits.Split`) those of one axis are ``'sequence-parallel teams'`` or
    ``'context-parallel teams'``, and all have their ``'loss split by classes'``.
    """
    if max(teams) == 1:
        return ""
    words = "context-parallel " if "context" in parallelism else "sequence-parallel " * ("sequence" in parallelism)
    if len(mesh) > 1:
        named = f", teams of {' x '.join(map(str, mesh))}"
    else:
        named = f", {words}teams of {'-'.join(map(str, teams if len(set(teams)) > 1 else teams[:1]))}"
    return named + ", loss split by classes" * ("loss" in parallelism)


def wrapped(text: str) -> list[str]:
    """Wrap a sentence to lines of `WIDTH` columns, or of those of a narrower terminal."""
    return wrap(
        text, min(WIDTH, terminal_width(WIDTH)), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def ranges(names: Sequence[str]) -> list[str]:
    """Return numbers in order, with runs of three and more abbreviated (``['1 to 4', '9']``), then other names."""
    numbers = sorted({int(name) for name in names if name.isdecimal()})
    found: list[str] = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        own = [number for _, number in run]
        found += [f"{own[0]} to {own[-1]}"] if len(own) > 2 else map(str, own)
    return [*found, *(name for name in names if not name.isdecimal())]


def listed(numbers: Sequence[int], most: int = 8) -> str:
    """Format a set of numbers: ``'1 to 8'``, ``'1, 2, 4 or 8'``, ``'1, 2, 3, 4, 6, 8, … or 512'``."""
    row = sorted(set(numbers))
    if len(row) > 2 and row[-1] - row[0] == len(row) - 1:
        return f"{row[0]} to {row[-1]}"
    shown = list(map(str, row))
    if len(row) > most:
        shown = [*shown[: most - 2], "…", shown[-1]]
    return " or ".join(part for part in (", ".join(shown[:-1]), shown[-1]) if part) if shown else "none"
