"""A critical path as a few lines of English."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from pipeplan.analysis.explain.outcome import percent
from pipeplan.analysis.explain.path import Phase, Portion
from pipeplan.core.units import format_time

MOST = 4
"""Stages or hops that a line names one by one."""
TITLES = {"fill": "fill", "steady": "steady", "drain": "drain", "end": "reduce and update"}


def phase_lines(path: Sequence[Portion], step: int) -> Iterator[str]:
    """``'steady 71.3 % (1.2 s): 14 forwards and 14 backwards on stage 2 (d2 v100), 3 waits for the link d1 to d2'``."""
    for phase in get_args(Phase):
        own = [portion for portion in path if portion.phase == phase]
        time = sum(portion.time for portion in own)
        if time:
            share = percent(time / step)
            yield f"{TITLES[phase]} {share} ({format_time(time)}): {', '.join(_clauses(own))}"


def _clauses(own: Sequence[Portion]) -> Iterator[str]:
    """Actions by stage, then transfers and waits by place; many places of one thing are only counted."""
    stages: dict[str, list[Portion]] = defaultdict(list)
    places: dict[str, list[Portion]] = defaultdict(list)
    for portion in own:
        if portion.stage is not None:
            stages[portion.where].append(portion)
        else:
            places[portion.what].append(portion)
    if len(stages) > MOST:
        total: dict[str, int] = defaultdict(int)
        for portion in (portion for group in stages.values() for portion in group):
            total[portion.what] += portion.count
        yield f"{_counted(total.items())} on {len(stages)} stages"
    else:
        for where, group in stages.items():
            yield f"{_counted((portion.what, portion.count) for portion in group)} on {where}"
    for what, group in places.items():
        word = "wait for" if what == "wait" else what
        if len(group) > MOST:
            count = sum(portion.count for portion in group)
            yield f"{count} {'waits for busy links' if what == 'wait' else 'transfers'}"
        else:
            for portion in group:
                yield f"{portion.count} {_plural(word, portion.count)} {portion.where}"


def _counted(items: Iterable[tuple[str, int]]) -> str:
    return " and ".join(f"{count} {_plural(what, count)}" for what, count in items)


def _plural(word: str, count: int) -> str:
    if count == 1:
        return word
    head, space, rest = word.partition(" ")
    return f"{head}s{space}{rest}" if head == "wait" else f"{word}s"
