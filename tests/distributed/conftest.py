"""What every test here needs: ranks import the workers of this folder by the names that the tests have for them."""

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # more ranks are started than most machines have GPUs


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """From a number of ranks to what was found on them: one start does the jobs of all modules that were asked for.

    A module's ``jobs(world, folder)`` are its jobs on so many ranks, by name; the folder is there for them.
    """
    from together import Job, done

    modules = dict.fromkeys(item.module for item in request.session.items if hasattr(item.module, "jobs"))

    @cache
    def outcome(world: int) -> dict[str, Any] | Exception:
        jobs: dict[str, Job] = {}
        for module in modules:
            own = module.jobs(world, tmp_path_factory.mktemp("ranks"))
            assert not jobs.keys() & own.keys()
            jobs |= own
        try:
            return done(world, jobs)
        except Exception as error:  # kept: what failed once is not started again for every module
            return error

    def found(world: int) -> dict[str, Any]:
        seen = outcome(world)
        if isinstance(seen, Exception):
            raise seen
        return seen

    return found
