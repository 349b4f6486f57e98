"""Front-first sums of a plan: what they leave exposed, their file, and what is refused of them."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.core.cluster import Link
from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.plan import Plan
from pipeplan.core.priority import Priority, Send
from pipeplan.simulate import makespan, period
from pipeplan.simulate.claims import validate_claims
from pipeplan.solve import solve

SENDS = (Send("l1", 1, 20, 30, 45), Send("l0", 2, 0, 40, 0), Send("l1", 1, 20, 30, 45))
"""The chunks of l1 are ready 20 ns before the end of the last backward, and needed 45 ns into the next step."""


def test_what_is_exposed_is_worked_out_by_hand() -> None:
    """One chunk of l1 ends at 10, both of l0 at 50, which is 50 late, and the other one of l1 at 80, which is 35."""
    own = Priority(8, SENDS)
    assert (own.ends, own.exposed, own.behind, own.binding) == ((10, 50, 80), 50, 80, ("l0",))
    assert own.chunks == {"l1": 2, "l0": 2}
    assert own.units(["norm", "l0", "l1", "l2"]) == [2, 2]
    assert (Priority(0).exposed, Priority(0).behind, Priority(0).binding) == (0, 0, ())


@lru_cache
def plan() -> Plan:
    """Two replicas of two layers of 10 and 40 ns, whose sums are `SENDS`."""
    model = model_of([10, 40], parameters=[32, 32], update=[2, 3], sizes=(1, 2))
    asked = {"depths": 1, "replicas": 2, "objective": "period", "zero": 0, "optimizer": "sgd"}
    found = solve(model, equal_devices(2, link=Link(10**9, 2)), 4, **asked).plan  # type: ignore[arg-type]
    own = Priority(
        16, tuple(replace(send, needed=min(send.needed, 12)) for send in SENDS), (("l1", 0.02),), (("l1", 1.5),)
    )
    stage = replace(found.pipeline.stages[0], buckets=(), reduce=own.exposed)
    pipeline = replace(found.pipeline, stages=(stage,))
    alone = replace(pipeline, stages=(replace(stage, reduce=own.behind),))
    return replace(
        found,
        priority=(own,),
        pipeline=pipeline,
        period=period(found.schedule, pipeline),
        step_time=makespan(found.schedule, alone),
        bound=0,
    )


def test_a_plan_and_its_file_say_so(tmp_path: Path) -> None:
    """The file has all of it; its step by itself ends with all sums, a run takes the period."""
    validate_claims(plan())
    plan().save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan()
    assert plan().step_time > plan().predicted == plan().period
    assert "front layers first" in plan().headline


def _of(**changed: object) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, priority=(replace(plan.priority[0], **changed),))  # type: ignore[arg-type]


WRONG: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "no period": (lambda plan: replace(plan, period=None), "no period"),
    "zero": (lambda plan: replace(plan, zero=3), "plan for level 0"),
    "delay": (lambda plan: replace(plan, staleness=1), "drop one of both"),
    "slices": (lambda plan: replace(plan, slices=(1, 1)), "cut into slices"),
    "stages": (lambda plan: replace(plan, priority=plan.priority * 2), "of 2 stages and has 1"),
    "order": (_of(sends=SENDS[1:]), "by its reduce"),
    "names": (_of(sends=(Send("l7", 1, 0, 0, 0),)), "not one of its layers"),
    "no chunks": (_of(sends=(Send("l0", 0, 0, 0, 0),)), "at least one"),
    "two times": (_of(sends=(Send("l1", 1, 20, 30, 12), Send("l1", 1, 0, 40, 12))), "they are one unit"),
    "turns": (_of(sends=(Send("l0", 1, 9, 40, 0), Send("l1", 1, 0, 30, 12))), "out of turn"),
    "ready": (_of(sends=(Send("l1", 1, 2000, 30, 12),)), "before the end of a backward"),
    "all is lost": (_of(lost=(("l0", 1.0),)), "above 0 and below 1"),
    "lost elsewhere": (_of(lost=(("l5", 0.1),)), "of which they sum nothing"),
    "price elsewhere": (_of(prices=(("l5", 1.0),)), "a price of 'l5'"),
    "lost twice": (_of(lost=(("l0", 0.1), ("l0", 0.2))), "once is enough"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_contradicts_itself_is_refused(wrong: str) -> None:
    """Every claim about the sums has a check with words of its own."""
    change, why = WRONG[wrong]
    with pytest.raises(PlanError, match=why):
        validate_claims(change(plan()))


def test_a_file_says_which_entry_is_wrong(tmp_path: Path) -> None:
    """A share of all is no loss."""
    plan().save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"share": 0.02', '"share": 1.5'))
    with pytest.raises(InputError, match=r"priority\[0\].lost\[0\].share"):
        Plan.load(tmp_path / "plan.json")
