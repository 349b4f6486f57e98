"""Routes of messages between teams: what is sent is received, and every member has all that it needs."""

from itertools import product

import pytest

from pipeplan.core.schedule import Action, Kind
from pipeplan_executor.runtime.program.lower import Message
from pipeplan_executor.runtime.routes import Routes
from pipeplan_executor.sharding.processes import Processes

FORWARD = Message(Action(Kind.FORWARD, 0, 0), Action(Kind.FORWARD, 1, 0), 0, 1)
BACKWARD = Message(Action(Kind.BACKWARD, 1, 0), Action(Kind.BACKWARD, 0, 0), 1, 0)


@pytest.mark.parametrize(("first", "second"), product(range(1, 6), repeat=2))
@pytest.mark.parametrize("tokens", [None, 60])
@pytest.mark.parametrize("message", [FORWARD, BACKWARD], ids=["there", "back"])
def test_every_member_gets_its_tokens_once(first: int, second: int, tokens: int | None, message: Message) -> None:
    """Sends and receives agree, and the tokens of a member come in order, each of them from the member that has it."""
    processes = Processes((first, second))
    every = {process: Routes(processes, *processes.place(process), (tokens, None)) for process in range(first + second)}
    sent: dict[tuple[int, int], list[int] | None] = {}
    for process in processes.of_rank(message.source):
        own = _own(processes, process, tokens)
        for other, part in every[process].sends(message):
            sent[process, other] = own if part is None else own[part]
    for process in processes.of_rank(message.target):
        routes = every[process].receives(message)
        found = [sent.pop((other, process)) for other, _ in routes]
        assert all(
            part is None or len(row) == part.stop - part.start for row, (_, part) in zip(found, routes, strict=True)
        )
        assert [token for row in found for token in row] == _own(processes, process, tokens)
    assert not sent


def _own(processes: Processes, process: int, tokens: int | None) -> list[int]:
    """The tokens that a process has: its part, or all."""
    rank, member = processes.place(process)
    if tokens is None:
        return list(range(8))
    length = tokens // processes.sizes[rank]
    return list(range(member * length, (member + 1) * length))


def test_uniform_teams_send_to_their_counterparts() -> None:
    """Each member sends what it has, whole or in parts, and cuts nothing."""
    processes = Processes((2, 2))
    for tokens in (None, 8):
        assert Routes(processes, 0, 1, (tokens, None)).sends(FORWARD) == ((3, None),)
        assert Routes(processes, 1, 0, (tokens, None)).receives(FORWARD) == ((0, None),)


@pytest.mark.parametrize(
    ("sizes", "said"), [((1, 1), ""), ((2, 2), " of 2 processes"), ((4, 2, 1), " of 4, 2 and 1 processes")]
)
def test_processes_say_how_many_they_are(sizes: tuple[int, ...], said: str) -> None:
    """Of all ranks once, or of each."""
    processes = Processes(sizes)
    assert processes.as_text() == said
    assert [processes.place(process)[0] for process in range(processes.count)] == [
        rank for rank, size in enumerate(sizes) for _ in range(size)
    ]
