"""Says which devices wait for what when an order cannot finish."""

from pipeplan.simulate.numbers import NOTHING, SHOWN
from pipeplan.simulate.program import Program
from pipeplan.simulate.run import UNKNOWN, Trace


def deadlock(program: Program, trace: Trace) -> str | None:
    """The error's text, or None if every action ran."""
    stuck = [lane for lane, order in enumerate(program.lanes) if trace.reached[lane] < len(order)]
    if not stuck:
        return None
    lines = [f"  {_wait(program, trace, lane)}" for lane in stuck[:SHOWN]]
    if len(stuck) > SHOWN:
        lines.append(f"  and {len(stuck) - SHOWN} more")
    done = sum(start != UNKNOWN for start in trace.starts)
    return "\n".join(
        [
            f"the order cannot finish: {done} of {len(program.actions)} actions run, then everybody waits:",
            *lines,
            "Move what is waited for ahead of what waits in its device's list.",
        ]
    )


def _wait(program: Program, trace: Trace, lane: int) -> str:
    n = len(program.actions)
    i = program.lanes[lane][trace.reached[lane]]
    signal = next((s for s in program.needs[i] if trace.signals[s] == UNKNOWN), NOTHING)
    if signal == NOTHING:
        signal, what = _missing_at_the_meeting(program, trace, i), "the same reduction"
    else:
        cause = program.actions[signal % n]
        what = f"the tensor of {cause}" if signal >= n else f"the end of {cause}"
    where = next(number for number, order in enumerate(program.lanes) if signal % n in order)
    ahead = program.lanes[where].index(signal % n) - trace.reached[where]
    stands = f"{ahead} actions further down its list" if ahead else "next in its list"
    return f"device {lane // 2} waits at {program.actions[i]} for {what}, which is {stands} on device {where // 2}"


def _missing_at_the_meeting(program: Program, trace: Trace, i: int) -> int:
    """A replica's reduction that is not next in its list, or that waits itself."""
    standing = {order[at] for order, at in zip(program.lanes, trace.reached, strict=True) if at < len(order)}
    ready = {each for each in standing if all(trace.signals[signal] != UNKNOWN for signal in program.needs[each])}
    return next(each for each in program.collectives[program.meeting_of[i]] if each not in ready)
