"""Settings of all tests: one thread, Hypothesis profiles, fewer examples where time is short."""

import os
import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from helpers import happening
from helpers.quick import QUICK, few

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors this small are computed faster so, here and in what is started
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts us behind "&" has it ignored

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Hold a test that asserts under a condition to how often the condition must happen."""
    happening.forget()
    outcome = yield
    mark = item.get_closest_marker("happens")
    if mark is not None:
        happening.check(*mark.args)
    return outcome
