"""Disagreements between planner and referee on random questions: ``python -m tests.referee --seed 0 --count 500``."""

import argparse
import time
from collections import Counter
from pathlib import Path

import yaml

from .bridge import ask
from .questions import question
from .shrink import shrink
from .verdict import judge


def main() -> None:
    """Ask, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--file", type=Path, help="a question's document, instead of random ones")
    parser.add_argument("--show", action="store_true", help="print the documents of questions that are in dispute")
    parser.add_argument("--shrink", action="store_true", help="make questions in dispute smaller first")
    given = parser.parse_args()
    numbers = range(given.seed, given.seed + given.count) if given.file is None else [0]
    outcomes: Counter[str] = Counter()
    asking = judging = 0.0
    for number in numbers:
        document = yaml.safe_load(given.file.read_text()) if given.file else question(number, given.large)
        began = time.monotonic()
        answer = ask(document)
        asked = time.monotonic()
        verdict = judge(document, answer)
        asking, judging = asking + asked - began, judging + time.monotonic() - asked
        outcomes[answer["outcome"] + (f" {answer['stop']}" if "stop" in answer else "")] += 1
        if verdict.faults:
            outcomes["in dispute"] += 1
            print(f"question {number}: job {document['job']}, solve {document['solve']}", flush=True)
            for fault in verdict.faults:
                print(f"    {fault}", flush=True)
            if given.shrink:
                document = shrink(document, lambda smaller: judge(smaller, ask(smaller)).faults)
                for fault in judge(document, ask(document)).faults:
                    print(f"  shrunk: {fault}", flush=True)
            if given.show or given.shrink:
                print(yaml.safe_dump(document, sort_keys=False), flush=True)
    print(dict(outcomes), f"asked {asking:.1f} s, judged {judging:.1f} s")


if __name__ == "__main__":
    main()
