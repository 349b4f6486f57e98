"""Choose the random questions that quick tests ask the referee: ``python scripts/choose_questions.py [TEST ...]``.

Each of some thousand questions has features: fields of its documents, and of which sort their values are. Those that
have the most pairs of features are asked; probes in the planner note how its conditions, comparisons and minima come
out (`probes.py`). Then, as long as processor time lasts, the question is chosen that brings most outcomes and pairs of
features that few chosen ones have, per second. Numbers are written to ``tests/referee/chosen.yaml``. Half an hour.
"""

import argparse
import heapq
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[1]
CHOSEN = ROOT / "tests" / "referee" / "chosen.yaml"
DEEP = 4
"""Names below which the fields of a document are one."""
PAIR = 0.05
"""What a new pair of features is worth; the first question with an outcome is worth 1."""


@dataclass(frozen=True)
class Test:
    """A test of `tests/properties` that asks questions by their numbers.

    Attributes
    ----------
    document : str
        The function that draws a question.
    drawn, asked : int
        How many are drawn, and how many of these asked, to choose from.
    seconds : float
        Processor time of the chosen ones with probes, which double it.
    """

    module: str
    document: str
    drawn: int
    asked: int
    seconds: float


TESTS = {
    "answers": Test("test_referee", "question", 4000, 500, 18),
    "plans": Test("test_referee_plans", "document_of", 6000, 2500, 5),
    "members": Test("test_referee_members", "asked", 4000, 1500, 6),
    "ways": Test("test_referee_ways", "drawn", 1500, 120, 6),
}


def features(value: Any, path: str = "") -> Iterator[str]:
    """What a document has: which fields, of which sort and size, how many entries, and whether these are unlike."""
    if isinstance(value, dict):
        for name, own in value.items():
            named = path.endswith(("devices", "costs", "operators"))
            yield from features(own, path if path.count(".") > DEEP else f"{path}.{'*' if named else name}")
    elif isinstance(value, list | tuple):
        yield f"{path} {min(len(value), 4)}"
        if len({repr(each) for each in value}) > 1:
            yield f"{path} unlike"
        for each in value:
            yield from features(each, path)
    elif not path.endswith((".name", ".inputs", ".layers")) and ".costs" not in path:
        many = not isinstance(value, bool) and isinstance(value, int) and value > 4
        yield f"{path} {'many' if many else value}"


class Items:
    """Numbers of what questions may have, and what the first question with each is worth."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.worth: list[float] = []

    def of(self, names: Iterable[Any], worth: float) -> np.ndarray:
        """The numbers of these items."""
        own = [self.numbers.setdefault(name, len(self.numbers)) for name in names]
        self.worth += [worth] * (len(self.numbers) - len(self.worth))
        return np.array(own, int)

    def covering(self, rows: Sequence[np.ndarray], costs: Sequence[float], budget: float) -> list[int]:
        """The rows chosen one by one for most worth per cost: the n-th with an item brings 1/n² of its worth."""
        left = np.array(self.worth)
        has = np.ones(len(left))

        def value(k: int) -> float:
            return float(-(left[rows[k]] / has[rows[k]] ** 2).sum() / costs[k])

        heap = [(value(k), k) for k in range(len(rows))]
        heapq.heapify(heap)
        chosen = list[int]()
        while heap:
            _, k = heapq.heappop(heap)
            if heap and (now := value(k)) > heap[0][0]:
                heapq.heappush(heap, (now, k))
            elif costs[k] <= budget:
                chosen.append(k)
                budget -= costs[k]
                has[rows[k]] += 1
        return chosen


def apart(function: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time and result of a function in a process of its own."""
    source, sink = os.pipe()
    if not (child := os.fork()):
        with os.fdopen(sink, "wb") as file:
            try:
                pickle.dump(function(), file)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as file:
        data = file.read()
    _, status, usage = os.wait4(child, 0)
    if status:
        raise RuntimeError("a question ended its process")
    return usage.ru_utime + usage.ru_stime, pickle.loads(data)


def outcomes(test: Test, number: int) -> set[int]:
    """Outcomes of all probes when this question is asked."""
    probes = import_module("probes")
    probes.seen.clear()
    assert not [*import_module(test.module).disputes([number])], f"{test.module}, {number} is in dispute"
    return set(probes.seen)


def choose(test: Test) -> list[int]:
    """Numbers of questions for a test."""
    module, questions, items = import_module(test.module), import_module("referee.questions"), Items()
    with patch.dict(vars(questions), getattr(module, "DRAWN", {})):
        documents = (getattr(module, test.document)(number) for number in range(test.drawn))
        drawn = [items.of(combinations(sorted({*features(each)}), 2), PAIR) for each in documents]
        asked = items.covering(drawn, [1.0] * len(drawn), test.asked)
        rows, costs, empty = list[np.ndarray](), list[float](), apart(set)[0]
        for number in asked:
            seconds, seen = apart(partial(outcomes, test, number))
            rows.append(np.concatenate((drawn[number], items.of(seen, 1.0))))
            costs.append(max(seconds - empty, 0.001))
    return sorted(asked[k] for k in items.covering(rows, costs, test.seconds))


def main() -> None:
    """Choose for all tests, or for those that are named, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", metavar="TEST", help=f"some of {', '.join(TESTS)}; all by default")
    named = parser.parse_args().tests or list(TESTS)
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "properties")]
    import_module("probes").install()
    chosen = yaml.safe_load(CHOSEN.read_text()) if CHOSEN.exists() else {}
    for name in named:
        began = time.monotonic()
        chosen[name] = choose(TESTS[name])
        print(f"{name}: {len(chosen[name])} questions, chosen in {time.monotonic() - began:.0f} s", flush=True)
    text = yaml.safe_dump(chosen, default_flow_style=None, width=110)
    CHOSEN.write_text(f"# Questions of quick tests, written by scripts/choose_questions.py\n{text}")


if __name__ == "__main__":
    main()
