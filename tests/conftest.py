"""Settings of all tests: one thread, Hypothesis profiles, fewer examples where time is short."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors this small are computed faster so, here and in what is started

_quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=_quiet)
settings.register_profile("whole", derandomize=True, deadline=None, suppress_health_check=_quiet)
settings.register_profile("nightly", deadline=None, max_examples=2000, suppress_health_check=_quiet)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

QUICK = "ci"
"""The profile in which tests that are not slow draw a part of their examples only."""
SHARE, LEAST = 0.4, 50
"""That part, and examples that are drawn in any case."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Draw fewer examples in the quick profile; `make test-all` draws all of them."""
    test: Any = getattr(item, "obj", None)
    own = getattr(test, "_hypothesis_internal_use_settings", None)  # Hypothesis has no public name for it
    if own is None or item.get_closest_marker("slow") or os.environ.get("HYPOTHESIS_PROFILE", QUICK) != QUICK:
        return
    few = max(round(SHARE * own.max_examples), min(LEAST, own.max_examples))
    test._hypothesis_internal_use_settings = settings(own, max_examples=few)
