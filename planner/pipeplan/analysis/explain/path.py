"""Critical path of a step as portions of time and as text.

::

    0F0 ─▷ 1F0 1F1 1B0 … 1B5 ─▷ 0B5 0U
    │ fill │     steady      │ drain │ update

The *steady* phase lies between the first and the last forward or backward on the stage with most time on the path.
Before it the pipeline fills, after it the pipeline drains. Reductions and updates form a phase of their own. Every
moment of the step belongs to exactly one item of the path, so the times add up to the step time.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pipeplan.analysis.explain.outcome import percent
from pipeplan.analysis.explain.setting import Setting, is_card
from pipeplan.core.schedule import Kind
from pipeplan.core.timeline import Span, TransferSpan
from pipeplan.core.units import format_time

Phase = Literal["fill", "steady", "drain", "end"]
WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRADIENT: "input gradient",
    Kind.WEIGHT_GRADIENT: "weight gradient",
    Kind.REDUCE: "reduction",
    Kind.UPDATE: "update",
    Kind.GATHER: "gather",
}


@dataclass(frozen=True, slots=True)
class Portion:
    """Equal items of one phase of the critical path, merged.

    Attributes
    ----------
    phase : {'fill', 'steady', 'drain', 'end'}
    what : str
        ``'forward'``, ``'backward'``, …, ``'transfer'``, or ``'wait'`` for a link that another tensor holds.
    where : str
        A stage, a pair of devices, or the link or card waited for.
    count : int
    time : int
        Nanoseconds.
    stage : int or None
        Stage of an action; None for transfers and waits.
    """

    phase: Phase
    what: str
    where: str
    count: int
    time: int
    stage: int | None = None


def portions(setting: Setting) -> tuple[Portion, ...]:
    """Merge the critical path into portions, whose times sum to the step time.

    Raises
    ------
    ValueError
        If the critical path of the time line does not cover the step.
    """
    items = list(timed(setting))
    if sum(time for _, _, time in items) != setting.step:
        raise ValueError(f"the critical path covers {sum(t for _, _, t in items)} ns of a step of {setting.step} ns")
    phases = _phases([item for item, _, _ in items], [time for _, _, time in items])
    times: Counter[tuple[Phase, str, str, int | None]] = Counter()
    counts: Counter[tuple[Phase, str, str, int | None]] = Counter()
    for phase, (item, after, time) in zip(phases, items, strict=True):
        key = (phase, *_name(setting, item, after))
        times[key] += time
        counts[key] += 1
    order = list(get_args(Phase))
    keys = sorted(counts, key=lambda key: order.index(key[0]))  # stable: by first appearance within a phase
    return tuple(Portion(k[0], k[1], k[2], counts[k], times[k], k[3]) for k in keys)


def timed(setting: Setting) -> Iterator[tuple[Span | TransferSpan, Span | TransferSpan | None, int]]:
    """Yield every item of the path, the next item, and the nanoseconds until the next one begins."""
    path = setting.timeline.critical
    around = zip([None, *path[:-1]], path, [*path[1:], None], strict=True)
    starts = [_counted_from(before, item, after) for before, item, after in around]
    for i, item in enumerate(path):
        last = i + 1 == len(path)
        yield item, None if last else path[i + 1], (setting.step if last else starts[i + 1]) - starts[i]


def _counted_from(
    before: Span | TransferSpan | None, item: Span | TransferSpan, after: Span | TransferSpan | None
) -> int:
    """Nanosecond from which an item of the path counts.

    A streamed tensor whose last byte leaves with the end of its action counts from that end. If another transfer
    follows, it counts from its start, because its first byte occupied the link of the next transfer.
    """
    if isinstance(item, TransferSpan) and isinstance(before, Span) and not isinstance(after, TransferSpan):
        return before.end if item.end == before.end else item.start
    return item.start


def _phases(path: Sequence[Span | TransferSpan], times: Sequence[int]) -> list[Phase]:
    # centre: the stage with most time on the path; first, last: its first and last item there
    work: Counter[int] = Counter()
    for item, time in zip(path, times, strict=True):
        if isinstance(item, Span) and item.action.kind.per_micro_batch:
            work[item.action.stage] += time
    if not work:
        return ["end"] * len(path)
    centre = max(work, key=lambda stage: (work[stage], -stage))
    there = [
        i
        for i, item in enumerate(path)
        if isinstance(item, Span) and item.action.kind.per_micro_batch and item.action.stage == centre
    ]
    first, last = there[0], there[-1]

    def phase(i: int, item: Span | TransferSpan) -> Phase:
        if isinstance(item, Span) and item.action.kind in (Kind.REDUCE, Kind.UPDATE):
            return "end"
        return "fill" if i < first else "steady" if i <= last else "drain"

    return [phase(i, item) for i, item in enumerate(path)]


def _name(
    setting: Setting, item: Span | TransferSpan, after: Span | TransferSpan | None
) -> tuple[str, str, int | None]:
    if isinstance(item, Span):
        return WORDS[item.action.kind], setting.stage(item.action.stage), item.action.stage
    if isinstance(after, TransferSpan):  # the next tensor could not leave before this one had
        shared = set(setting.transfer(item).resources) & set(setting.transfer(after).resources)
        held = next((name for name in sorted(shared, key=lambda name: (not is_card(name), name))), setting.hop(item))
        return "wait", held, None
    return "transfer", setting.hop(item), None


MOST = 4
"""Most stages or pairs of devices that a line names one by one."""
TITLES = {"fill": "fill", "steady": "steady", "drain": "drain", "end": "reduce and update"}


def phase_lines(path: Sequence[Portion], step: int) -> Iterator[str]:
    """One line per phase.

    ``'steady 71.3 % (1.2 s): 14 forwards and 14 backwards on stage 2 (d2 v100), 3 waits for the link d1 to d2'``
    """
    for phase in get_args(Phase):
        own = [portion for portion in path if portion.phase == phase]
        time = sum(portion.time for portion in own)
        if time:
            share = percent(time / step)
            yield f"{TITLES[phase]} {share} ({format_time(time)}): {', '.join(_clauses(own))}"


def _clauses(own: Sequence[Portion]) -> Iterator[str]:
    """Actions by stage, then transfers and waits by place; more than `MOST` places are only counted."""
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
