"""Results of a simulation: spans, transfers, the critical path, memory, and the description of a deadlock."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice, pairwise

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Stage
from pipeplan.core.schedule import Action, Kind
from pipeplan.core.timeline import Span, Step, TransferSpan
from pipeplan.simulate.program import Program
from pipeplan.simulate.run import UNKNOWN, Trace
from pipeplan.simulate.structure import NOTHING, SHOWN


def spans(program: Program, trace: Trace, numbers: Iterable[int]) -> list[Span]:
    """Return the times of these actions."""
    homes, actions, starts, ends = program.homes, program.actions, trace.starts, trace.signals
    if program.two_lanes or program.batches > 1:
        lanes = [0] * len(actions)
        for i in chain(*program.lanes[1::2]):
            lanes[i] = 1
        return [Span(homes[i], lanes[i], actions[i], starts[i], ends[i]) for i in numbers]
    return [Span(homes[i], 0, actions[i], starts[i], ends[i]) for i in numbers]


def gathers(pipeline: Pipeline) -> Iterator[Span]:
    """Yield the times in which devices wait for parameters at the begin of the step."""
    for number, (time, devices) in enumerate(zip(pipeline.begins, pipeline.placement, strict=True)):
        yield from (Span(device, 0, Action(Kind.GATHER, number), 0, time) for device in devices if time)


def transfer_spans(program: Program, trace: Trace, numbers: Iterable[int]) -> list[TransferSpan]:
    """Return the times of the tensors that these actions sent."""
    n, found = len(program.actions), []
    for i in numbers:
        kind, stage, micro_batch, part = program.actions[i]
        target = stage + 1 if kind is Kind.FORWARD else stage - 1
        found.append(TransferSpan(stage, target, micro_batch, part, trace.left[i], trace.gone[i], trace.signals[n + i]))
    return found


def critical_path(
    program: Program, trace: Trace, pipeline: Pipeline, devices: Iterable[int]
) -> tuple[Span | TransferSpan, ...]:
    """Return a longest chain of gathers, actions and transfers, in which each begins when its predecessor has ended.

    It ends on one of these devices.
    """
    n = len(program.actions)
    if not n:
        return ()
    before = [NOTHING] * n  # the previous action in the same lane
    for order in program.lanes:
        for a, b in pairwise(order):
            before[b] = a

    path: list[int] = []  # from the end: numbers of actions, and n + numbers of transfers' senders
    lanes = [order for device in devices for order in program.lanes[2 * device : 2 * device + 2]]
    last = [order[-1] for order in lanes if order]  # a path ends with the update, even if that takes no time
    i = max(last, key=trace.signals.__getitem__)
    while i != NOTHING:
        path.append(i)
        cause = _cause(program, trace, i, before)
        if cause < n:
            i = cause
            continue
        path.append(cause)
        i = cause - n
        # a transfer that waited for a link resource follows the previous transfer on it
        while not _bound_by_end(program, trace, i) and i in trace.predecessor:
            i = trace.predecessor[i]
            path.append(n + i)
    ran = iter(spans(program, trace, [i for i in path if i < n]))
    travelled = iter(transfer_spans(program, trace, [i - n for i in path if i >= n]))
    links = [next(ran) if i < n else next(travelled) for i in path]
    first = program.homes[path[-1]]  # a path begins with an action
    waits = (span for span in gathers(pipeline) if (span.device, span.end) == (first, trace.starts[path[-1]]))
    links.extend(islice(waits, 1))
    return tuple(reversed(links))


def _cause(program: Program, trace: Trace, i: int, before: Sequence[int]) -> int:
    """Return the cause of the start of action i, or of an action of the same collective.

    It is an action's number, n + the number of a transfer's sender, or `NOTHING`.
    """
    collective = program.collective_of[i]
    together = [i] if collective == NOTHING else program.collectives[collective]
    causes = (_cause_of_one(program, trace, each, before[each]) for each in together)
    return next((cause for cause in causes if cause != NOTHING), NOTHING)


def _cause_of_one(program: Program, trace: Trace, i: int, before: int) -> int:
    start = trace.starts[i]
    if before != NOTHING:
        if program.overlap is Overlap.NONE and program.channel_of[before] != NOTHING:
            if trace.gone[before] == start:
                return len(program.actions) + before  # its lane was busy sending
        elif trace.signals[before] == start:
            return before
    return next((signal for signal in program.needs[i] if trace.signals[signal] == start), NOTHING)


def _bound_by_end(program: Program, trace: Trace, i: int) -> bool:
    """Return whether a streamed tensor's last byte left at its action's end, whenever the first one did."""
    return program.overlap is Overlap.STREAM and trace.gone[i] == trace.signals[i]


def memory_lines(ran: Sequence[Span], pipeline: Pipeline) -> tuple[tuple[Step, ...], ...]:
    """Return the bytes that each device holds over time, as steps.

    ::

        held        ┌──────────────┐             F starts: +held            B ends: −held
                ┌┐  │┌┐          ┌┐│             any action runs: +workspace
        base ───┘└──┘└┴──────────┴┘└────         resident + runtime
                 U    F           B

    A split backward frees ``held − held_after_input_gradient`` at the end of I and the rest at the end of W.

    At one instant memory is freed before it is allocated. Actions that take no time are still visible: their peak is a
    separate step at the same instant.
    """
    of_device: list[list[Span]] = [[] for _ in range(pipeline.devices)]
    for span in ran:
        of_device[span.device].append(span)
    base = list(pipeline.runtime)
    for stage, devices in zip(pipeline.stages, pipeline.placement, strict=True):
        for device in devices:
            base[device] += stage.resident
    effects = [{kind: _effect(stage, kind) for kind in Kind} for stage in pipeline.stages]
    return tuple(_line(own, effects, held) for own, held in zip(of_device, base, strict=True))


def _effect(stage: Stage, kind: Kind) -> tuple[int, int]:
    """Return the bytes allocated at the start of an action, and the bytes freed at its end."""
    later = stage.held if stage.held_after_input_gradient is None else stage.held_after_input_gradient
    taken = stage.held if kind is Kind.FORWARD else 0
    freed = {Kind.BACKWARD: stage.held, Kind.INPUT_GRADIENT: stage.held - later, Kind.WEIGHT_GRADIENT: later}
    workspace = stage.forward_lane_workspace if kind is Kind.FORWARD else stage.workspace
    return workspace + taken, workspace + freed.get(kind, 0)


def _line(ran: list[Span], effects: list[dict[Kind, tuple[int, int]]], held: int) -> tuple[Step, ...]:
    """Return the memory steps of one device from its spans; ``held`` are its static bytes."""
    events: list[tuple[int, bool, int]] = []  # (time, whether after the frees of that instant, change)
    for span in ran:
        comes, goes = effects[span.action.stage][span.action.kind]
        events.append((span.start, True, comes))
        events.append((span.end, span.start == span.end, -goes))
    events.sort(key=lambda event: event[:2])

    # One step per instant, and before it a peak of actions that take no time.
    steps = [] if events and events[0][0] == 0 else [Step(0, held)]
    for time, group in groupby(events, key=lambda event: event[0]):
        peak = 0
        for _, after_frees, change in group:
            held += change
            if after_frees:
                peak = max(peak, held)
        if peak > held:
            steps.append(Step(time, peak))
        if not steps or steps[-1].held != held:
            steps.append(Step(time, held))
    return tuple(steps)


def deadlock(program: Program, trace: Trace) -> str | None:
    """Return an error text that names what each device waits for; None if every action ran."""
    stuck = [lane for lane, order in enumerate(program.lanes) if trace.reached[lane] < len(order)]
    if not stuck:
        return None
    lines = [f"  {_wait(program, trace, lane)}" for lane in stuck[:SHOWN]]
    if len(stuck) > SHOWN:
        lines.append(f"  and {len(stuck) - SHOWN} more")
    done = sum(start != UNKNOWN for start in trace.starts)
    return "\n".join(
        [
            f"the order cannot finish: {done} of {len(program.actions)} actions run, then all devices wait:",
            *lines,
            "Move each awaited action ahead of the waiting one in its device's list.",
        ]
    )


def _wait(program: Program, trace: Trace, lane: int) -> str:
    n = len(program.actions)
    i = program.lanes[lane][trace.reached[lane]]
    signal = next((s for s in program.needs[i] if trace.signals[s] == UNKNOWN), NOTHING)
    if signal == NOTHING:
        signal, what = _missing_in_collective(program, trace, i), "the same reduction"
        if program.actions[i].kind.per_micro_batch:
            what = "the same pass of another replica"
    else:
        cause = program.actions[signal % n]
        what = f"the tensor of {cause}" if signal >= n else f"the end of {cause}"
    where = next(number for number, order in enumerate(program.lanes) if signal % n in order)
    ahead = program.lanes[where].index(signal % n) - trace.reached[where]
    stands = f"{ahead} actions further down its list" if ahead else "next in its list"
    return f"device {lane // 2} waits at {program.actions[i]} for {what}, which is {stands} on device {where // 2}"


def _missing_in_collective(program: Program, trace: Trace, i: int) -> int:
    """Return a replica's action of the collective that is not next in its list, or that waits itself."""
    standing = {order[at] for order, at in zip(program.lanes, trace.reached, strict=True) if at < len(order)}
    ready = {each for each in standing if all(trace.signals[signal] != UNKNOWN for signal in program.needs[each])}
    return next(each for each in program.collectives[program.collective_of[i]] if each not in ready)
