"""Questions of the README, the tutorial and the experiments: processor seconds of whole programs, processes included.

``-- programs=old/.venv/bin/pipeplan,new/.venv/bin/pipeplan [rounds=3] [only=gpt2]`` compares programs in turn on each
question, whose command contains the word; the default is the program of this environment, as it is by default, without
teams, without several stages per device, and without both. What the first one takes is the measure of the others.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TWO_NODES = "gpt2-small 2x2-v100-10gbit --batch 16"
PAGES = (
    f"{TWO_NODES} --memory 2GiB",
    f"{TWO_NODES} --memory 1GiB",
    f"{TWO_NODES} --memory 2GiB --replicas 1",
    TWO_NODES,
    "bert-large 2x2-v100-10gbit --batch 32",
    "gpt2-small 8-v100-nvlink --batch 64",
    "gpt2-small 4-v100-nvlink --batch 32",
    f"{TWO_NODES} --depths 40",
)
"""Of the README and the tutorial, without their pictures, and small ones of other pages."""
GNMT = {4: (8, 16, 32, 64, 128, 256, 512), 8: (8, 16, 32, 64, 128, 256, 512, 1024)}
BOARDS = ("4-vcu118", "3-vcu118-1-vcu129", "2-vcu118-2-vcu129", "1-vcu118-3-vcu129", "4-vcu129")
WITHOUT = ("", "--teams 1", "--chunks 1", "--teams 1 --chunks 1")
"""Options of the columns where one program is asked."""


def questions() -> Iterator[str]:
    """Yield the arguments of `pipeplan solve`: those of pages, and of `datasets/experiments/headline.yaml`."""
    yield from PAGES
    limits = "--time 20 --gap 0.01"
    for devices, depths in GNMT.items():
        clusters = [f"{devices}-v100-nvlink", f"{devices}-v100-pcie", f"2x{devices // 2}-v100-10gbit"]
        models = [("vgg-16", "momentum"), ("resnet-50", "momentum"), *((f"gnmt-{depth}", "adam") for depth in depths)]
        for model, optimizer in models:
            for cluster in clusters:
                yield f"{model} {cluster} --batch {64 * devices} --optimizer {optimizer} {limits}"
    for model in ("vgg-16", "resnet-50"):
        for boards in BOARDS:
            yield f"{model} {boards} --batch 128 --optimizer momentum {limits}"


def seconds(program: str, words: list[str]) -> float:
    """Processor seconds of one run with its processes."""
    quiet = subprocess.DEVNULL
    running = subprocess.Popen([program, "solve", *words], stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)  # 1: nothing fits
    assert running.returncode in (0, 1), f"{program} solve {' '.join(words)} ends with {running.returncode}"
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print a row for each question."""
    options = dict(word.split("=", 1) for word in sys.argv if "=" in word)
    rounds, only = int(options.get("rounds", 3)), options.get("only", "")
    programs = (
        options["programs"].split(",") if "programs" in options else [str(Path(sys.executable).parent / "pipeplan")]
    )
    columns = [(program, more) for program in programs for more in (WITHOUT if len(programs) == 1 else ("",))]
    for each in filter(lambda asked: only in asked, questions()):
        turns = [[seconds(program, f"{each} {more}".split()) for program, more in columns] for _ in range(rounds)]
        medians = [statistics.median(column) for column in zip(*turns, strict=True)]
        others = "".join(f" {own:6.2f} s {own / medians[0]:5.2f}" for own in medians[1:])
        print(f"{each:84} {medians[0]:6.2f} s{others}", flush=True)


if __name__ == "__main__":
    main()
