"""The critical path in words: what the step is spent on, one after the other.

::

    0F0 ─▷ 1F0 1F1 1B0 … 1B5 ─▷ 0B5 0U
    │ fill │     steady      │ drain │ update

The *steady* part lies between the first and the last forward or backward on the stage that the path spends most time
on; before it the pipeline fills, behind it it drains, and reductions and updates stand by themselves. Every moment of
the step belongs to exactly one item of the path, so the times add up to the step time.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pipeplan.analysis.explain.setting import Setting
from pipeplan.analysis.explain.use import is_card
from pipeplan.core.schedule import Kind
from pipeplan.core.timeline import Flight, Span

Phase = Literal["fill", "steady", "drain", "end"]
WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRADIENT: "input gradient",
    Kind.WEIGHT_GRADIENT: "weight gradient",
    Kind.REDUCE: "reduction",
    Kind.UPDATE: "update",
}


@dataclass(frozen=True, slots=True)
class Portion:
    """Equal things on the critical path, taken together.

    Attributes
    ----------
    phase : {'fill', 'steady', 'drain', 'end'}
    what : str
        ``'forward'``, ``'backward'``, …, ``'transfer'``, or ``'wait'`` for a wire that another tensor holds.
    where : str
        A stage, a hop from device to device, or the wire waited for.
    count : int
    time : int
        Nanoseconds.
    stage : int or None
        For actions.
    """

    phase: Phase
    what: str
    where: str
    count: int
    time: int
    stage: int | None = None


def portions(setting: Setting) -> tuple[Portion, ...]:
    """The critical path, merged; the times sum to the step time.

    Raises
    ------
    ValueError
        If the time line's path does not fill the step.
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


def timed(setting: Setting) -> Iterator[tuple[Span | Flight, Span | Flight | None, int]]:
    """Every item of the path, the next one, and how long it lasts until that begins."""
    path = setting.timeline.critical
    around = zip([None, *path[:-1]], path, [*path[1:], None], strict=True)
    starts = [_begin(before, item, after) for before, item, after in around]
    for i, item in enumerate(path):
        last = i + 1 == len(path)
        yield item, None if last else path[i + 1], (setting.step if last else starts[i + 1]) - starts[i]


def _begin(before: Span | Flight | None, item: Span | Flight, after: Span | Flight | None) -> int:
    """When an item begins to count.

    A streamed tensor whose last byte leaves with the end of its action counts from there, unless it matters because
    its first byte took a wire from the next one.
    """
    if isinstance(item, Flight) and isinstance(before, Span) and not isinstance(after, Flight):
        return before.end if item.end == before.end else item.start
    return item.start


def _phases(path: Sequence[Span | Flight], times: Sequence[int]) -> list[Phase]:
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

    def phase(i: int, item: Span | Flight) -> Phase:
        if isinstance(item, Span) and not item.action.kind.per_micro_batch:
            return "end"
        return "fill" if i < first else "steady" if i <= last else "drain"

    return [phase(i, item) for i, item in enumerate(path)]


def _name(setting: Setting, item: Span | Flight, after: Span | Flight | None) -> tuple[str, str, int | None]:
    if isinstance(item, Span):
        return WORDS[item.action.kind], setting.stage(item.action.stage), item.action.stage
    if isinstance(after, Flight):  # the next tensor could not leave before this one had
        shared = set(setting.transfer(item).resources) & set(setting.transfer(after).resources)
        wire = next((name for name in sorted(shared, key=lambda name: (not is_card(name), name))), setting.hop(item))
        return "wait", wire, None
    return "transfer", setting.hop(item), None
