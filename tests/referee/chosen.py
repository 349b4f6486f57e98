"""Questions that quick tests ask: among thousands, those that bring most to pass in the planner per second.

`scripts/choose_questions.py` chooses them.
"""

from pathlib import Path

import yaml


def chosen(test: str) -> list[int]:
    """Their numbers, by the name of the test in ``chosen.yaml``."""
    numbers: list[int] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())[test]
    return numbers
