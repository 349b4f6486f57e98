"""Large models on 1,024 to 16,384 H100 in nodes of eight: first plan, value, gap, largest memory.

A batch has as many samples as there are devices; Adam. Each row is a process of its own. Its limit is 60 seconds (or a
number with a point behind ``--``) of the processor, not of the clock, so that other programs matter little; one worker.
``first`` is when the first plan is known, ``end`` when the answer is: the plan is built and checked behind the search.
"""

import multiprocessing
import resource
import sys
import time
from itertools import product
from multiprocessing.connection import Connection

from benchmarks.limits import h100s

from pipeplan.core.errors import PipeplanError
from pipeplan.core.job import Job
from pipeplan.core.units import format_time
from pipeplan.io.load import load_model
from pipeplan.solve import solve

MODELS, DEVICES, TEAMS = ("llama3-70b", "gpt3-175b"), (1024, 4096, 16_384), ((1,), (1, 2, 4, 8), ())
"""The last row of teams is the default's: these are opened at fewer micro-batch sizes than named ones."""
SECONDS = 60.0
"""Processor seconds of a search."""


def main() -> None:
    """Print the table; words behind ``--`` choose the rows that have all of them."""
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    seconds = next((float(word) for word in words if "." in word), SECONDS)
    print("model       devices    teams    first      end     value     bound    gap   memory")
    for teams, model, devices in product(TEAMS, MODELS, DEVICES):
        row = model, str(devices), ",".join(map(str, teams)) or "default"
        if all(word in row for word in words if "." not in word):
            print("{:11} {:>7} {:>8}".format(*row), _measured(model, devices, teams, seconds), flush=True)


def _measured(model: str, devices: int, teams: tuple[int, ...], seconds: float) -> str:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(model, devices, teams, seconds, there))
    process.start()
    there.close()
    try:
        return str(here.recv())
    except EOFError:
        return "its process died"
    finally:
        process.join()


def _run(name: str, devices: int, teams: tuple[int, ...], seconds: float, pipe: Connection) -> None:
    model, cluster = load_model(name), h100s(devices)
    beginning, began, first = time.monotonic(), time.process_time(), list[float]()
    time.monotonic = lambda: beginning + time.process_time()  # limits are processor seconds

    def watch(value: int | None, *_: int) -> None:
        if value is not None and not first:
            first.append(time.process_time() - began)

    try:
        job = Job(devices, optimizer="adam", teams=teams)
        result = solve(model, cluster, job=job, time_limit=seconds, workers=1, on_progress=watch)
    except PipeplanError as error:
        pipe.send(str(error).splitlines()[0])
        return
    spent = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    pipe.send(
        f"{first[0]:6.1f} s {spent:6.1f} s {format_time(result.value):>9} {format_time(result.bound):>9} "
        f"{result.gap:6.1%} {peak:4.0f} MiB"
    )


if __name__ == "__main__":
    main()
