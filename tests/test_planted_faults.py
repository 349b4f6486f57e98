"""The list of faults that tests are measured by keeps up with the code."""

from collections import Counter
from pathlib import Path

import pytest

from helpers.scripts import script
from helpers.shared_data import ROOT

planted = script("scripts/planted_faults.py")
FAULTS = planted.faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_passage_is_there_once_and_so_are_its_tests(fault) -> None:
    """A passage that has moved must be looked up again: its fault would test nothing."""
    text = (ROOT / fault.file).read_text()
    assert fault.planted(text) != text
    assert all((ROOT / path).exists() for tests in fault.tests for path in tests.split())


def test_faults_are_put_into_every_part() -> None:
    """Costs, simulator, search, formulations and executor have several each, and none is listed twice."""
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1
    assert min(Counter(_part(fault.file) for fault in FAULTS).values()) >= 4


def test_the_copy_is_what_python_imports(tmp_path: Path) -> None:
    """Also where a .pth file puts other code first, as it does in some environments; without the copy it is refused."""
    tree = planted.copied(tmp_path)
    (tree / "first" / "sitecustomize.py").write_text(f"import sys\n\nsys.path[:0] = ['{ROOT / 'planner'}']\n")
    with pytest.raises(RuntimeError, match="is not what Python imports"):
        planted._check_imports(tree)


def _part(file: str) -> str:
    folder, _, rest = file.partition("/")
    return rest.split("/")[1] if folder == "planner" else folder
