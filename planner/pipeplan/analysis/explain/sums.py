"""`sums`: what a plan's front-first sums leave to wait for, in words."""

from collections.abc import Iterator

from pipeplan.core.plan import Plan
from pipeplan.core.priority import Priority
from pipeplan.core.units import format_bytes, format_time
from pipeplan.core.wording import counted
from pipeplan.search.front_first import NOTABLE, prices_text


def sums(plan: Plan) -> Iterator[str]:
    """Yield a line for each stage with sums: layers that bind and prices, or that nothing waits; what may be lost."""
    for number, own in enumerate(plan.priority):
        if own.sends:
            many = f"{counted(sum(own.chunks.values()), 'chunk')} of at most {format_bytes(own.chunk)}"
            yield f"stage {number}, {many}: {_waits(own, plan.value)}{_losses(own)}"


def _waits(own: Priority, period: int) -> str:
    if own.exposed <= NOTABLE * period:
        late = f"all but {format_time(own.exposed)} " if own.exposed else "all "
        return f"{late}hidden beside the last backward and the next forward, so nothing may be lost"
    *ahead, last = own.binding
    names = f"{', '.join(ahead)} and {last}" if ahead else last
    late = f"the next step is {format_time(own.exposed)} later, as {names} {'wait' if ahead else 'waits'} longest"
    return "; ".join(filter(None, (late, prices_text(own))))


def _losses(own: Priority) -> str:
    parts = [f"{share:.1%} of {name}" for name, share in own.lost]
    return f"; may be lost: {', '.join(parts)}" if parts else ""
