"""Entry point of the benchmarks: ``python -m benchmarks [NAME ...]`` runs all, or those named."""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """Run the benchmarks one after the other."""
    known = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    wanted = sys.argv[1:] or known
    for name in wanted:
        if name not in known:
            print(f"no benchmark {name!r}; there are {', '.join(known)}", file=sys.stderr)
            return 2
        print(f"== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
