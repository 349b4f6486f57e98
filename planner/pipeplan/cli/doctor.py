"""``pipeplan doctor``: versions, solvers, conflicts and devices, in one block to paste into a bug report."""

import json
import os
import platform
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from pipeplan.cli.base import Command
from pipeplan.core.backends import try_backend
from pipeplan.core.version import installed_version

PACKAGES = (
    "pipeplan",
    "ortools",
    "pulp",
    "numpy",
    "pydantic",
    "PyYAML",
    "rich",
    "torch",
    "matplotlib",
    "pyarrow",
    "highspy",
)


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``doctor``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(options: Namespace) -> int:
    """Collect versions and devices, solve two tiny problems, and print; return 1 if something is broken."""
    from pipeplan_formulations.common.mip import SOLVERS

    solvers = {name: try_backend(name) for name in SOLVERS}
    conflicts = _conflicts()
    facts = {
        "python": f"{platform.python_version()} on {platform.platform()}",
        "cores": str(os.cpu_count()),
        "versions": {name: _version(name) for name in PACKAGES},
        "solvers": solvers,
        "torch": _torch(),
        "conflicts": conflicts,
    }
    healthy = not conflicts and all(state == "works" for state in solvers.values())
    if options.json:
        print(json.dumps({"healthy": healthy, **facts}, indent=2))
    else:
        print(_as_text(facts, healthy))
    return 0 if healthy else 1


def _version(name: str) -> str:
    return installed_version(name) or "not installed"


def _torch() -> str:
    if _version("torch") == "not installed":
        return "not installed; pip install 'pipeplan[torch]' to profile and to run"
    import torch

    if not torch.cuda.is_available():
        return "CPU only"
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _conflicts() -> list[str]:
    found = []
    if _version("highspy") != "not installed":
        found.append(
            "highspy is installed: next to ortools it breaks whichever of the two is imported second, and PuLP imports "
            "it by itself. Remedy: pip uninstall highspy"
        )
    return found


def _as_text(facts: Mapping[str, object], healthy: bool) -> str:
    lines = [f"pipeplan doctor: {'all is well' if healthy else 'something is wrong'}"]
    for key, value in facts.items():
        if isinstance(value, dict):
            lines.append(f"{key}:")
            lines += [f"  {name:12} {state}" for name, state in value.items()]
        elif isinstance(value, list):
            lines.append(f"{key}: {'none' if not value else ''}")
            lines += [f"  {item}" for item in value]
        else:
            lines.append(f"{key}: {value}")
    return "\n".join(lines)


command = Command("doctor", "versions, solvers, conflicts, devices: one block to paste", configure, run, "--json")
