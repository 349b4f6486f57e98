"""Public workloads that lie beside the repository on the maintainers' machines; tests skip where they are absent."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"


def shared(path: str) -> Path:
    """Path of the file; skips the test if it is absent."""
    file = DATA / path
    if not file.exists():
        pytest.skip(f"public workload {path} is not on this machine")
    return file
