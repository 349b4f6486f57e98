"""Fixture of ranks for the tests of this folder, which import the same `helpers` as the tests."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # more ranks are started than most machines have GPUs


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave tests on three ranks to slow runs: with those of two and four they take the time of a start less."""
    own = getattr(item, "callspec", None)
    if own is not None and 3 in (own.params.get(name) for name in ("world", "results", "found")):
        item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """Map a number of ranks to the results on them: one start runs the jobs of all collected modules.

    A module's ``jobs(world, folder)`` returns its jobs on ``world`` ranks, by name, with a folder for their files.
    """
    from helpers.distributed.together import Job, done

    here = [item for item in request.session.items if item.path.is_relative_to(Path(__file__).parent)]
    modules = dict.fromkeys(item.module for item in here if hasattr(item.module, "jobs"))

    @cache
    def outcome(world: int) -> dict[str, Any] | Exception:
        jobs: dict[str, Job] = {}
        for module in modules:
            own = module.jobs(world, tmp_path_factory.mktemp("ranks"))
            assert not jobs.keys() & own.keys()
            jobs |= own
        try:
            return done(world, jobs)
        except Exception as error:  # kept, so that a failed start is not repeated for every module
            return error

    def found(world: int) -> dict[str, Any]:
        seen = outcome(world)
        if isinstance(seen, Exception):
            raise seen
        return seen

    return found
