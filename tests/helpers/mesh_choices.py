"""Random choices of the problem of a mesh."""

import random

from pipeplan.costs.sharding.copies import CopyState
from pipeplan.costs.sharding.layer_redistributions import moves_again
from pipeplan.costs.sharding.problem import MeshProblem


def drawn_choice(problem: MeshProblem, draw: random.Random) -> list[int]:
    """A signature of each operator, placements of sums, and states of tensors, each copy read by several operators."""
    choice = [draw.randrange(len(own)) for own in problem.signatures]
    strategies = problem.signatures_of(choice)
    choice += [draw.randrange(len(own.choices)) for own in problem.sums]

    def fits(tensor: str, state: CopyState) -> bool:
        readers = [
            each
            for each in problem.readers[tensor]
            if problem.takes_copy(each, tensor, state, problem.needed(each, strategies[each.name].strategy, tensor))
        ]
        is_held = tensor not in strategies or strategies[tensor].held == state.held
        again = any(moves_again(problem.graph, each) for each in readers)
        read = len(readers) > (not state.kept) and again == (state.again or state.kept)
        return is_held and (state.copy is None or read)

    for tensor, states in problem.copied:
        choice.append(draw.choice([k for k, state in enumerate(states) if fits(tensor, state)]))
    return choice
