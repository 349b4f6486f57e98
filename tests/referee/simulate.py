"""A step on paper: events in order of time.

An action runs when its lane is free and everything that it reads is there. A tensor's way keeps its links busy one
after the other: who is ready first is served first, then the lower device, then the one earlier in its list.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from .prices import Stage, Way
from .schedules import Action

END, THERE, FREE = range(3)


class DeadlockError(Exception):
    """Not every action can run."""


@dataclass
class Step:
    """Start and end of every action, by its number (device by device, in list order).

    ``turns``: of several steps one after another, in which of them each action is.
    """

    actions: list[tuple[int, Action]]
    turns: list[int]
    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)

    @property
    def time(self) -> int:
        """Nanoseconds of the step."""
        return max(self.end.values(), default=0)


def simulate(
    lists: Sequence[Sequence[Action]],
    homes: Sequence[Sequence[int]],
    stages: Sequence[Stage],
    ways: Sequence[Sequence[tuple[Way, Way]]],
    overlap: str,
    lanes: int = 1,
    tied: Sequence[set[int]] = (),
    turns: int = 1,
    together: bool = False,
    slices: int = 1,
    beside: bool = False,
) -> Step:
    """Run the lists, ``turns`` times one after another on each device; what a stage gathers comes before its list.

    Parameters
    ----------
    homes : sequence of sequence of int
        For each stage the lists of its replicas.
    ways : sequence of sequence of (Way, Way)
        For each boundary and remainder of a micro-batch's number, there and back.
    together : bool
        The replicas of a stage begin each pass together.
    slices : int
        Token slices of a micro-batch, which the lists count.
    beside : bool
        Sums and gathers are in the lists, with the number of their batch, and run beside them.
    """
    hosted: dict[int, list[int]] = defaultdict(list)
    for s, own in enumerate(homes):
        for device in own:
            hosted[device].append(s)
    gathers = [
        [("G", s, 0) for s in hosted[device] if stages[s].gather and order and not beside]
        for device, order in enumerate(lists)
    ]
    every = [
        (k, device, action)
        for device, order in enumerate(lists)
        for k in range(turns)
        for action in (*gathers[device], *order)
    ]
    step = Step([(device, action) for _, device, action in every], [k for k, _, _ in every])
    plan = _Plan(step, homes, stages, ways, lanes, tied, together, slices, beside)
    events: list[tuple[int, int, int]] = []  # time, what, action
    queue: list[tuple[int, int]] = []  # readiness, action
    resource_free: dict[str, int] = defaultdict(int)
    missing, meeting = plan.missing, plan.meeting
    lacking = [len(group) for group in plan.groups]

    def serve(i: int, ready: int) -> None:
        way = plan.way[i]
        assert way is not None
        begin = max([ready, *(resource_free[resource] for resource in way.resources)])
        for resource in way.resources:
            resource_free[resource] = begin + way.occupancy
        gone = begin + way.occupancy
        if overlap == "stream":
            gone = max(gone, step.end[i])
        heappush(events, (gone + way.latency, THERE, i))
        if overlap == "none":
            heappush(events, (gone, FREE, i))

    def send(i: int, ready: int) -> None:
        if i in plan.alone:
            serve(i, ready)
        else:
            heappush(queue, (ready, i))

    def begin(i: int, now: int) -> None:
        step.start[i], step.end[i] = now, now + plan.duration[i]
        heappush(events, (now + plan.duration[i], END, i))
        if overlap == "stream" and plan.way[i] is not None:
            send(i, now)

    def release(followers: list[int], now: int) -> None:
        for i in followers:
            missing[i] -= 1
            if missing[i]:
                continue
            group = meeting.get(i)
            if group is None:
                begin(i, now)
                continue
            lacking[group] -= 1
            if not lacking[group]:
                for each in plan.groups[group]:
                    begin(each, now)

    for i, count in enumerate(list(missing)):
        if not count:
            missing[i] = 1
            release([i], 0)
    while events or queue:
        if queue and (not events or queue[0][0] < events[0][0]):
            ready, i = heappop(queue)
            serve(i, ready)
            continue
        now, what, i = heappop(events)
        if what == THERE:
            release(plan.readers[i], now)
        elif what == FREE:
            release(plan.behind[i], now)
        else:
            release(plan.after[i], now)
            if plan.way[i] is not None and overlap != "stream":
                send(i, now)
            if overlap != "none" or plan.way[i] is None:
                release(plan.behind[i], now)
    if len(step.end) < len(step.actions):
        raise DeadlockError(f"{len(step.actions) - len(step.end)} actions wait for ever")
    return step


def period(lists: Sequence[Sequence[Action]], *rest: Any, together: bool = False, slices: int = 1) -> int:
    """Nanoseconds from step to step in a long run, rounded up, and at most those of a step; called like `simulate`."""
    for turns in (8, 32, 128):
        step = simulate(lists, *rest, turns=turns, together=together, slices=slices)
        ends = [[0] * len(lists) for _ in range(turns)]
        for i, end in step.end.items():
            row = ends[step.turns[i]]
            row[step.actions[i][0]] = max(row[step.actions[i][0]], end)
        used = [device for device, order in enumerate(lists) if order]
        for back in range(1, turns // 2):
            gains = {ends[-1][device] - ends[-1 - back][device] for device in used}
            if len(gains) == 1:
                return min(-(-gains.pop() // back), max(ends[0]))
    raise AssertionError(f"no rhythm in {turns} steps")


class _Plan:
    """What waits for what: how many things each action misses, and whom its end, its lane and its tensor release."""

    def __init__(
        self,
        step: Step,
        homes: Sequence[Sequence[int]],
        stages: Sequence[Stage],
        ways: Sequence[Sequence[tuple[Way, Way]]],
        lanes: int,
        tied: Sequence[set[int]],
        together: bool,
        slices: int,
        beside: bool,
    ) -> None:
        count = len(step.actions)
        self.missing = [0] * count
        self.after: list[list[int]] = [[] for _ in range(count)]
        self.behind: list[list[int]] = [[] for _ in range(count)]
        self.readers: list[list[int]] = [[] for _ in range(count)]
        self.duration = [_duration(stages[s], kind, lanes, m % slices) for _, (kind, s, m) in step.actions]
        self.way: list[Way | None] = [None] * count
        self.groups: list[list[int]] = []
        self.meeting: dict[int, int] = {}
        turns = step.turns
        number = {(kind, s, m, turns[i]): i for i, (_, (kind, s, m)) in enumerate(step.actions) if kind in "FBIW"}
        sums: dict[tuple[int, int], list[int]] = defaultdict(list)
        gathered: dict[tuple[int, int], list[int]] = defaultdict(list)
        last: dict[tuple[int, int], int] = {}  # device and lane
        final: dict[tuple[int, int, int], int] = {}  # device, stage and turn: the last backward in its list
        uses: dict[str, set[Way]] = defaultdict(set)
        once: dict[tuple[int, str, int], int] = {}  # of each device and batch
        size = 1 + max((m for _, (kind, _, m) in step.actions if kind == "F"), default=0)
        size //= 1 + max((m for _, (kind, _, m) in step.actions if kind == "U"), default=0)
        for i, (device, (kind, s, m)) in enumerate(step.actions):
            lane, k = int(kind in "RG" if beside else lanes == 2 and kind not in "FG"), turns[i]
            k = m if beside and kind in "RUG" else k
            if (device, lane) in last:
                self._wait(i, self.behind, last[device, lane])
            if lanes == 2 and kind in "FG" and (device, 1) in last:
                self._wait(i, self.after, last[device, 1])
            last[device, lane] = i
            if kind == "F" and s > 0:
                self._wait(i, self.readers, number["F", s - 1, m, k])
            if kind in "BI":
                self._wait(i, self.after, number["F", s, m, k])
                if s + 1 < len(stages):
                    self._wait(i, self.readers, number[("B" if ("B", s + 1, m, k) in number else "I"), s + 1, m, k])
            if kind == "W":
                self._wait(i, self.after, number["I", s, m, k])
            if kind in "BIW":
                final[device, s, k] = i
            if kind in "RU" and (device, s, turns[i]) in final:
                self._wait(i, self.after, final[device, s, turns[i]])
            if beside:
                self._wait_for_batches(i, device, (kind, s, m), size, once)
            if kind == "R":
                sums[s, k].append(i)
            if kind == "G" and beside:
                gathered[s, m].append(i)
            if kind == "F" and s + 1 < len(stages):
                self.way[i] = ways[s][m // slices % len(ways[s])][0]
            if kind in "BI" and s > 0:
                self.way[i] = ways[s - 1][m // slices % len(ways[s - 1])][1]
        alone = [{s} for s in {s for s, _ in sums} if not any(s in other for other in tied)]
        for k in sorted({k for _, k in sums}):
            for group in [*alone, *tied]:
                for i in (members := [i for s in sorted(group) for i in sums[s, k]]):
                    self.meeting[i] = len(self.groups)
                self.groups.append(members)
        meets: dict[tuple[Any, ...], list[int]] = defaultdict(list, gathered)
        for i, (_, (kind, s, m)) in enumerate(step.actions):
            if together and kind in "FBIW" and len(homes[s]) > 1:
                meets[kind, s, m // len(homes[s]), turns[i]].append(i)
        for members in meets.values():
            self.meeting |= dict.fromkeys(members, len(self.groups))
            self.groups.append(members)
        for s, row in enumerate(ways):  # a link that one pair of replicas has for itself needs no queue
            for m, pair in enumerate(row):
                for back, way in enumerate(pair):
                    for resource in way.resources:
                        uses[resource].add((s, m, back))  # type: ignore[arg-type]
        self.alone = {
            i
            for i, way in enumerate(self.way)
            if way is not None and all(len(uses[name]) == 1 for name in way.resources)
        }

    def _wait_for_batches(
        self, i: int, device: int, action: Action, size: int, once: dict[tuple[int, str, int], int]
    ) -> None:
        """Updates wait for sums, gathers for updates, and what runs with their weights for gathers.

        ``size``: micro-batches of a batch. ``once``: what was noted here.
        """
        kind, _, m = action
        awaited = {"U": ("R", m), "G": ("U", m), "F": ("G", m // size - 2)}.get(kind)
        if awaited is not None and (device, *awaited) in once:
            self._wait(i, self.after, once[device, *awaited])
        if kind in "RUG":
            once[device, kind, m] = i

    def _wait(self, i: int, whom: list[list[int]], other: int) -> None:
        self.missing[i] += 1
        whom[other].append(i)


def _duration(stage: Stage, kind: str, lanes: int, part: int) -> int:
    if kind in "RUG":
        return {"R": stage.reduce, "U": stage.update, "G": stage.gather}[kind]
    if stage.slices:
        return stage.slices[kind][part]
    if lanes == 2:  # the lanes share the arithmetic units as F to B
        return stage.forward + stage.backward
    return {"F": stage.forward, "B": stage.backward, "I": stage.input_gradient, "W": stage.weight_gradient}[kind]


def peaks(step: Step, homes: Sequence[Sequence[int]], stages: Sequence[Stage], devices: int) -> list[int]:
    """Most bytes that each device holds: what ends at an instant frees its memory before what begins takes any."""
    base, changes = [0] * devices, [[] for _ in range(devices)]  # type: ignore[var-annotated]
    for stage, own in zip(stages, homes, strict=True):
        for device in own:
            base[device] += stage.resident + (0 if base[device] else stage.runtime)
    for i, (device, (kind, s, _)) in enumerate(step.actions):
        if kind == "G":
            continue
        stage = stages[s]
        workspace = stage.forward_workspace if kind == "F" else stage.workspace
        comes = workspace + (stage.held if kind == "F" else 0)
        goes = workspace + (stage.held if kind in "BW" else 0)
        changes[device].append((step.start[i], 1, i, 0, comes))
        changes[device].append((step.end[i], int(step.start[i] == step.end[i]), i, 1, -goes))
    found = []
    for device in range(devices):
        held = most = base[device]
        for *_, change in sorted(changes[device]):
            held += change
            most = max(most, held)
        found.append(most)
    return found
