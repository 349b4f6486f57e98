"""What the members of a team send each other in a layer: the collectives that its times are priced with."""

from collections.abc import Iterator
from typing import NamedTuple

from pipeplan.costs.teams.problem import TeamProblem
from pipeplan.costs.teams.signatures import RING, Moves, crossings, summed_weights, tensor_moves

from pipeplan.core.operators import Shards
from pipeplan.costs.sharding.exchanges import Exchange, exchange
from pipeplan.costs.sharding.ring import messages

FORWARD, BACKWARD, STEP = "forward", "backward", "step"


class Sent(NamedTuple):
    """A collective of all members of a team.

    Attributes
    ----------
    kind : Exchange
    when : str
        ``'forward'`` or ``'backward'`` of a micro-batch, or once per ``'step'``.
    tensor : str
        The operator or the input whose tensor, or its gradient, gets another layout; or whose weights are summed.
    size : int
        Bytes of the whole tensor, for a micro-batch.
    """

    kind: Exchange
    when: str
    tensor: str
    size: int


def exchanges(problem: TeamProblem, shards: Shards) -> tuple[Sent, ...]:
    """Return what members send if exactly these weights are split, in the choice that `TeamProblem.member` prices."""
    return tuple(sorted(_sent(problem, shards), key=lambda sent: (FORWARD, BACKWARD, STEP).index(sent.when)))


def _sent(problem: TeamProblem, shards: Shards) -> Iterator[Sent]:
    graph, (_, choice) = problem.graph, problem.chosen(shards)
    loops, rows = problem.in_words(choice)
    for each, loop in zip(graph.operators, loops, strict=True):
        if (size := summed_weights(each, loop)) > 0:
            yield Sent(Exchange.SUM, STEP, each.name, size)
        if loop and graph.loss is not None and each.name == graph.loss_name:
            numbers = Sent(Exchange.SUM, FORWARD, each.name, graph.loss.rows * problem.micro_batch)
            yield from (numbers, numbers)
        for kind, back, bytes_ in crossings(each, loop, each.name not in graph.without_gradient):
            if bytes_ and problem.micro_batch:
                yield Sent(kind, BACKWARD if back else FORWARD, each.name, bytes_ * problem.micro_batch)
        if loop == RING and each.attention is not None and (size := each.attention.keys * problem.micro_batch):
            has_gradient = each.name not in graph.without_gradient
            for when in (FORWARD, BACKWARD)[: 1 + has_gradient]:
                yield from [Sent(Exchange.SHIFT, when, each.name, size)] * sum(messages(problem.team, when == BACKWARD))
        for source in each.reads:
            yield from _moved(problem, source, problem.read(each, loop, source, rows[source]))
        yield from _moved(problem, each.name, problem.made(each, loop, rows[each.name]))
    for name, row in rows.items():
        yield from _moved(problem, name, tensor_moves(graph, name, row))


def _moved(problem: TeamProblem, name: str, moves: Moves | None) -> Iterator[Sent]:
    assert moves is not None, f"the fastest choice cannot move {name!r}"
    for pairs, when, gradient in zip(moves, (FORWARD, BACKWARD, BACKWARD), (False, True, False), strict=True):
        for pair in pairs:
            kind, size = exchange(*pair), problem.size(name, gradient)
            if kind is not None and size:
                yield Sent(kind, when, name, size)
