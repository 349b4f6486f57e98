"""Import of files outside the packages: scripts and benchmarks."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from helpers.shared_data import ROOT


def script(path: str) -> ModuleType:
    """Import the Python file at ``path``, relative to the repository, as a module."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def benchmark(name: str) -> ModuleType:
    """Import a module of the benchmarks that imports others of them, as ``python -m benchmarks`` does."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))  # last, so that nothing installed is hidden
    return importlib.import_module(f"benchmarks.{name}")
