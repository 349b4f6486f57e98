"""Stages that hold shares of layers: their times and bytes in proportion, rounded up."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil

from .costs import Groups, gradient_bytes
from .prices import Prices, Stage, Way

Shares = Sequence[dict[int, float]]
"""For each stage the share of every layer that it holds some of."""


def rounded_up(value: Fraction) -> int:
    """A whole number, less what the arithmetic of shares may have added."""
    return ceil(value * (1 - Fraction(1, 10**13)))


def part(shares: dict[int, float], figures: Sequence[int]) -> int:
    """What shares of layers have of a figure."""
    return rounded_up(sum((Fraction(share) * figures[i] for i, share in shares.items()), Fraction(0)))


def stages(prices: Prices, groups: Groups, size: int, held: Shares) -> list[Stage]:
    """One device a stage; weights are streamed, so times are those of the profiles."""
    question, found = prices.question, []
    crossing = crossings(prices, groups, size, held)
    for s, (group, own) in enumerate(zip(groups, held, strict=True)):
        table = prices.table(group[0].kind, size)
        gradients = [gradient_bytes(question, size) for size in question.parameters]
        columns: Iterable[Sequence[int]] = (
            question.parameters,
            gradients,
            prices.state(group[0].kind),
            question.frozen,
        )
        workspace = max(rounded_up(Fraction(share) * table[i].workspace) for i, share in own.items())
        found.append(
            Stage(
                forward=part(own, [cost.forward for cost in table]),
                backward=part(own, [cost.backward for cost in table]),
                input_gradient=0,
                weight_gradient=0,
                update=part(own, [cost.update for cost in table]),
                reduce=0,
                gather=0,
                resident=sum(part(own, figures) for figures in columns),
                held=part(own, [cost.saved for cost in table]) + (crossing[s - 1] if s else 0),
                workspace=workspace,
                forward_workspace=workspace,
                runtime=question.runtime(group[0].kind),
                limit=question.limit(group[0].kind),
            )
        )
    return found


def crossings(prices: Prices, groups: Groups, size: int, held: Shares) -> list[int]:
    """Bytes over each boundary: all that crosses in front of the layer that it divides, and a share of its output."""
    question, found = prices.question, []
    for s in range(len(groups) - 1):
        table = prices.table(groups[s][0].kind, size)
        last = max(i for own in held[: s + 1] for i in own)
        done = sum((Fraction(own.get(last, 0.0)) for own in held[: s + 1]), Fraction(0))
        cut = last if abs(done - 1) < Fraction(1, 10**9) else last - 1
        through = sum(table[i].output for i in question.crossing[cut]) if cut >= 0 else 0
        if cut < last:
            output = table[last].output
            if last < question.n - 1:
                output = min(output, sum(table[i].output for i in question.crossing[last]))
            through = rounded_up(through + done * output)
        found.append(through)
    return found


def ways(prices: Prices, groups: Groups, size: int, held: Shares) -> list[list[tuple[Way, Way]]]:
    """There and back, over each boundary."""
    found = []
    for s, sent in enumerate(crossings(prices, groups, size, held)):
        (a,), (b,) = groups[s], groups[s + 1]
        found.append([(prices.way(a, b, sent), prices.way(b, a, sent))])
    return found


def largest_load(own: Sequence[Stage], between: Sequence[Sequence[tuple[Way, Way]]], size: int) -> int:
    """Nanoseconds per sample: the largest stage or transfer of a micro-batch."""
    sends = [way.occupancy for row in between for pair in row for way in pair]
    return -(-max([stage.forward + stage.backward for stage in own] + sends) // size)
