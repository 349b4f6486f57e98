"""Settings of all tests: one thread, time for searches, Hypothesis profiles, fewer examples where time is short."""

import gc
import inspect
import os
import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from helpers import happening
from helpers.quick import QUICK, few
from pipeplan.solve import solve
from pipeplan_formulations.common.report import Limits

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors this small are computed faster so, here and in what is started
gc.disable()  # until all tests are collected: what they import stays
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts us behind "&" has it ignored

LONG = 600.0
"""Seconds of searches for which a test names no limit: a minute of wall time is little on a busy machine."""
Limits.__init__.__defaults__ = (LONG, *(Limits.__init__.__defaults__ or ())[1:])
(inspect.unwrap(solve).__kwdefaults__ or {})["time_limit"] = LONG

_quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=_quiet)
settings.register_profile("whole", derandomize=True, deadline=None, suppress_health_check=_quiet)
settings.register_profile("nightly", deadline=None, max_examples=2000, suppress_health_check=_quiet)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Draw fewer examples of tests that are not slow in the quick profile; `make test-all` draws all of them."""
    test: Any = getattr(item, "obj", None)
    own = getattr(test, "_hypothesis_internal_use_settings", None)  # Hypothesis has no public name for it
    if own is not None and QUICK and not item.get_closest_marker("slow"):
        test._hypothesis_internal_use_settings = settings(own, max_examples=few(own.max_examples))


def pytest_collection_finish() -> None:
    """Collect garbage again, of what tests make and not of all that they import."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Hold a test that asserts under a condition to how often the condition must happen."""
    happening.forget()
    outcome = yield
    mark = item.get_closest_marker("happens")
    if mark is not None:
        happening.check(*mark.args)
    return outcome
