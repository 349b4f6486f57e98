"""Count how often the case happens in which a property test asserts something.

A test whose assertions stand under an ``if`` passes where the condition never holds. It asks `happens` instead, and
states by its mark which share of all times the condition must have held: ``@pytest.mark.happens(0.3)``. The share is
well below what is drawn, so that it fails where a generator no longer draws the case, and not by chance.
"""

_asked: list[bool] = []


def happens(condition: bool) -> bool:
    """Note that a test asked for this condition, and return it."""
    _asked.append(bool(condition))
    return bool(condition)


def forget() -> None:
    """Begin to count for another test."""
    _asked.clear()


def check(share: float) -> None:
    """Assert that the condition held in at least this share of all times, and once."""
    assert sum(_asked) >= max(share * len(_asked), 1), f"{sum(_asked)} of {len(_asked)} examples assert anything"
