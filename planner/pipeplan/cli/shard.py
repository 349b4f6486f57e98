"""``pipeplan shard``: how every operator is split on a mesh of all devices, and its step time against memory."""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pipeplan.cli.base import Command, show, try_outputs


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``shard``."""
    parser.add_argument("model", metavar="MODEL", help="a name in datasets/, or a file with the operators of layers")
    parser.add_argument("cluster", metavar="CLUSTER", help="a name in datasets/, or a file")
    parser.add_argument(
        "--mesh",
        metavar="NxN,NxN",
        help="devices along each axis, neighbours last, like 8x8; several shapes with commas between (default: all of "
        "one and two axes)",
    )
    parser.add_argument("--batch", type=int, required=True, metavar="N", help="samples in one step")
    parser.add_argument("--optimizer", default="sgd", help="sgd, momentum or adam")
    parser.add_argument(
        "--memory", metavar="SIZE", help="what a device may use, like 16GiB, where that is less than it has"
    )
    parser.add_argument("--extrapolate", action="store_true", help="allow batches outside the measured sizes")
    parser.add_argument("--time", type=float, default=60.0, metavar="SECONDS", help="stop after this long (60)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the answer as JSON; - prints it")
    parser.add_argument("--csv", metavar="FILE", help="write the frontier as a table; - prints it")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(options: Namespace) -> int:
    """Find the frontier and the fastest choice; print, then write."""
    from pipeplan.analysis.sharding import shard
    from pipeplan.core.units import parse_bytes
    from pipeplan.io.atomic import write_whole
    from pipeplan.io.load import load_cluster, load_model

    try_outputs(options, files=("output", "csv"), inputs=("model", "cluster"))
    shapes = _shapes(options.mesh)
    found = shard(
        load_model(options.model),
        load_cluster(options.cluster),
        options.batch,
        shapes,
        optimizer=options.optimizer,
        memory=None if options.memory is None else parse_bytes(options.memory),
        extrapolate=options.extrapolate,
        time_limit=options.time,
    )
    text = json.dumps(found.as_json(), indent=2)
    show(text if options.json else found, options, "output", "csv")
    if options.output:
        write_whole(Path(options.output), text + "\n")
    if options.csv:
        write_whole(Path(options.csv), found.as_csv())
    return 0


def _shapes(text: str | None) -> tuple[tuple[int, ...], ...]:
    """Parse shapes like ``8x8,4x16``."""
    import re

    from pipeplan.core.errors import InputError
    from pipeplan.core.figures import shown

    if text is None:
        return ()
    if not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9})*(,[0-9]{1,9}(x[0-9]{1,9})*)*", text):
        raise InputError(f"--mesh {shown(text)}: write the devices along each axis, like 8x8 or 2x4x8")
    return tuple(tuple(map(int, shape.split("x"))) for shape in text.split(","))


command = Command("shard", "how every operator is split on a mesh of all devices, in time and memory", configure, run)
