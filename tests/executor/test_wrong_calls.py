"""Wrong values of every argument of the executor's API: each is refused in words, before any process is started."""

from collections.abc import Callable, Iterator
from functools import cache
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from helpers.distributed.lasting import lasting_plan
from helpers.distributed.models import tiny_mlp
from pipeplan.core.errors import PipeplanError
from pipeplan.core.plan import Plan
from pipeplan_executor import Saving, TensorParallel, describe_machine, launch, run
from pipeplan_executor.processes import launcher

WRONG = (None, -1, nan, inf, 10**30, "", (), "x", b"x", True, 1.5, object(), [[1]], {"a": 1}, 1j, "\x1b[31m")
OPTIONS = (
    *("plan", "source", "steps", "warmup", "seed", "weights", "learning_rate", "timeout", "saving", "restarts"),
    *("device", "precision", "tensor_parallel"),
)


class StartedError(PipeplanError):
    """The call was found right."""


@cache
def plan() -> Plan:
    """A plan on two ranks."""
    return lasting_plan(2)


def calls(value: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield calls with a wrong value in each place."""
    asking: dict[str, Any] = {"plan": plan(), "source": tiny_mlp, "steps": 1}
    yield from ((f"run {name}", lambda name=name: run(**{**asking, name: value})) for name in OPTIONS)
    yield "TensorParallel", lambda: TensorParallel(value)
    yield "describe_machine", lambda: describe_machine(value)
    yield "patience", lambda: describe_machine(2, value)
    for name in ("folder", "every", "keep", "resume"):
        yield f"Saving {name}", lambda name=name: Saving(**{"folder": "runs", name: value}).check()
    for name in ("timeout", "restarts", "device"):
        yield f"launch {name}", lambda name=name: launch(plan, 2, **{name: value})
    yield "launch world", lambda: launch(plan, value)


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:12])
def test_wrong_values_are_refused_in_words(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call with a wrong value ends in an error of Python's."""

    def started(*_: object) -> None:
        raise StartedError("a process would be started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "start_local", started)
    raw: dict[str, str] = {}
    for name, call in calls(value):
        try:
            call()
        except PipeplanError as error:
            assert str(error)
        except Exception as error:
            raw[name] = f"{type(error).__name__}: {error}"
    assert not raw
