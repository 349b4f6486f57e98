"""What the answer to a question without a plan says would fit: the least that does, and options that do."""

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from helpers.instances import model_of
from helpers.quick import rarely
from pipeplan import Cluster, InfeasibleError, InputError, Job, remedies, solve
from pipeplan.core.cluster import DeviceKind, Link, Node, Overlap
from pipeplan.core.model import Model, Tie
from pipeplan.core.units import parse_bytes
from pipeplan.search.alternatives import changes
from pipeplan.search.space.spaces import Spaces

Question = tuple[Model, Cluster, Job]


def drawn(seed: int) -> Question:
    """A chain of up to four layers on up to six devices; what is saved need not be in proportion to samples."""
    draw = Random(f"said to fit {seed}")
    n = draw.randint(1, 4)
    numbers = {name: [draw.randint(0, 30) for _ in range(n)] for name in ("saved", "output", "parameters")}
    sizes, always = draw.choice([(1, 2, 4), (2, 4), (1,)]), draw.choice([0, 0, 20])
    bare = model_of([draw.randint(1, 40) for _ in range(n)], **numbers, sizes=sizes)
    spaces = [draw.choice([0, draw.randint(0, 40)]) for _ in range(n)]

    def more(profile: Any) -> Any:
        rows = zip(profile.costs, spaces, strict=True)
        return replace(profile, costs=tuple(replace(c, workspace=w, saved=c.saved + always) for c, w in rows))

    model = replace(bare, profiles=tuple(map(more, bare.profiles)))
    if n > 1 and draw.random() < 0.25 and model.layers[0].parameters:
        shared = Tie(("l0", f"l{n - 1}"), draw.randint(1, model.layers[0].parameters))
        model = replace(model, ties=(shared,))
    node = Node(("unit",) * draw.randint(1, 3), Link(10**9, 0))
    kinds = {"unit": DeviceKind("unit", runtime=draw.choice([0, 0, 7]))}
    cluster = Cluster("n", kinds, (node,) * draw.randint(1, 2), Link(10**9, 3), draw.choice(list(Overlap)))
    asked: dict[str, Any] = {"optimizer": draw.choice(["sgd", "adam"])}
    asked |= draw.choice([{}, {}, {"depths": draw.randint(1, 3)}, {"replicas": draw.randint(1, 2)}])
    asked |= draw.choice([{}, {}, {"schedules": draw.choice(["gpipe", "1f1b-sno", "any"])}, {"equal_replicas": True}])
    asked |= draw.choice([{}, {}, {"zero": draw.randint(0, 3)}, {"recompute": draw.choice(["none", "full"])}])
    asked |= draw.choice([{}, {}, {"micro_batches": 4}, {"no_cut_after": ("l0",)}, {"order": "given"}])
    return model, cluster, Job(4, **asked)


def refusal(question: Question, memory: int) -> str | None:
    """Why no plan fits into so many bytes; None if one does."""
    model, cluster, job = question
    try:
        solve(model, cluster, job=replace(job, memory=memory), time_limit=20, workers=1)
    except InfeasibleError as error:
        return str(error)
    return None


def least(question: Question) -> int | None:
    """The least bytes with which a plan fits, by halving; None if none does with any."""
    low, high = -1, 2000
    if refusal(question, high) is not None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if refusal(question, middle) is None else (middle, high)
    return high


def with_least(seed: int) -> tuple[Question, int] | None:
    """A drawn question and the least bytes with which a plan fits; None if it is refused or none are needed."""
    try:
        question = drawn(seed)
        enough = least(question)
    except InputError:
        return None
    return (question, enough) if enough else None


@pytest.mark.parametrize("seed", [0, 1, 3, 4, *map(rarely, (2, *range(5, 40)))])
def test_what_is_said_to_fit_is_the_least_that_does(seed: int) -> None:
    """Of memory, in the message of `solve` and in the remedies of `explain`; of options, the plan with that memory."""
    known = with_least(seed)
    if known is None:
        return
    question, enough = known
    model, cluster, job = question
    for memory in {enough - 1, enough // 2}:
        text = refusal(question, memory)
        assert text is not None
        said = re.search(r"What would fit: (?:--memory |devices of )(\S+)", text)
        assert said is None or parse_bytes(said[1]) == enough
        below = re.search(r"devices of at least (\S+ B)", text)
        assert below is None or parse_bytes(below[1].replace(" ", "")) <= enough
        for option, need in re.findall(r"(?<=[:;] )([^:;]+): a plan fits, with (\d+) B per device", text):
            named = option.split(" and ")
            changed = {
                key: value
                for change in changes(_spaces(question, memory))
                if change.option in named
                for key, value in change.changed.items()
            }
            assert refusal((model, cluster, replace(job, **changed)), changed.get("memory") or int(need)) is None


def _spaces(question: Question, memory: int) -> Spaces:
    model, cluster, job = question
    return Spaces(model, cluster, replace(job, memory=memory))


@pytest.mark.parametrize("seed", [100, 101, *map(rarely, range(102, 112))])
def test_the_smallest_remedy_of_memory_is_the_least_that_fits(seed: int) -> None:
    """`explain` states how many more bytes are needed, and whether fewer are proved not to do."""
    known = with_least(seed)
    if known is None:
        return
    question, enough = known
    model, cluster, job = question
    found = remedies(model, cluster, job=replace(job, memory=enough // 2), time_limit=10, workers=1)
    assert found is not None
    memory = next(each for each in found.remedies if each.kind == "memory")
    assert memory.number is not None and enough // 2 + memory.number >= enough
    assert not memory.smallest or enough // 2 + memory.number == enough
