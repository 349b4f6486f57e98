"""Run every benchmark, or those named: ``python -m benchmarks [NAME ...]``. Each prints one table.

Words behind ``--`` are for the benchmark.
"""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """Run the benchmarks one after the other."""
    entries = (path for path in HERE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
    known = sorted(path.stem for path in entries if not path.stem.startswith("_"))
    names = sys.argv[1:]
    wanted = names[: names.index("--")] if "--" in names else names
    wanted = wanted or known
    for name in wanted:
        if name not in known:
            print(f"no benchmark {name!r}; there are {', '.join(known)}", file=sys.stderr)
            return 2
        print(f"== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
