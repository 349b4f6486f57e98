"""``pipeplan shard``: how every operator is split on a mesh of all devices, and its step time against memory."""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pipeplan.cli.base import OUTPUT, Command, add_json, group, show, try_outputs
from pipeplan.cli.questions import number


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``shard``."""
    from pipeplan.core.options import BACKENDS, SEED, WORKERS

    parser.add_argument("model", metavar="MODEL", help="a name in datasets/, or a file with the operators of layers")
    parser.add_argument("cluster", metavar="CLUSTER", help="a name in datasets/, or a file")
    parser.add_argument(
        "--mesh",
        metavar="NxN,NxN",
        help="devices along each axis, neighbours last, like 8x8; several shapes with commas between (default: all of "
        "one and two axes)",
    )
    parser.add_argument(
        "--strategy",
        default="",
        metavar="{2d,2.5d,3d}",
        help="how products of matrices are split, beside the best of all ways (any way); an axis of --mesh may then "
        "have one device",
    )
    parser.add_argument("--batch", type=number, required=True, metavar="N", help="samples in one step")
    parser.add_argument(
        "--optimizer", help="sgd, momentum or adam (default: adam if the model has attention, else sgd)"
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help="what a device may use, like 16GiB, where that is less than it has"
    )
    parser.add_argument("--extrapolate", action="store_true", help="allow batches outside the measured sizes")
    search = group(parser, "limits of the search")
    search.add_argument("--time", type=number, default=60.0, metavar="SECONDS", help="stop after this long (60)")
    search.add_argument(
        "--backend",
        default="exact",
        metavar=f"{{{','.join(BACKENDS)}}}",
        help="exact: the whole frontier; cpsat, cbc: the fastest choice that fits by a mixed-integer programme, with a "
        "bound (exact)",
    )
    search.add_argument("--workers", type=number, default=WORKERS, metavar="N", help=f"threads of CP-SAT ({WORKERS})")
    search.add_argument("--seed", type=number, default=SEED, metavar="N", help=f"seed of CP-SAT ({SEED})")
    files = group(parser, OUTPUT)
    files.add_argument("-o", "--output", metavar="FILE", help="write the answer as JSON; - prints it")
    files.add_argument("--csv", metavar="FILE", help="write the frontier as a table; - prints it")
    add_json(parser, " and nothing else")


def run(options: Namespace) -> int:
    """Find the frontier and the fastest choice; print, then write."""
    from pipeplan.analysis.sharding import shard
    from pipeplan.io.atomic import write_whole

    try_outputs(options, files=("output", "csv"), inputs=("model", "cluster"))
    found = shard(
        options.model,
        options.cluster,
        options.batch,
        options.mesh or (),
        optimizer=options.optimizer,
        strategy=options.strategy,
        memory=options.memory,
        extrapolate=options.extrapolate,
        time_limit=options.time,
        backend=options.backend,
        workers=options.workers,
        seed=options.seed,
    )
    text = json.dumps(found.as_json(), indent=2)
    show(text if options.json else found, options, "output", "csv")
    if options.output:
        write_whole(Path(options.output), text + "\n")
    if options.csv:
        write_whole(Path(options.csv), found.as_csv())
    return 0


command = Command(
    "shard",
    "how every operator is split on a mesh of all devices, in time and memory",
    configure,
    run,
    "llama3-8b 64-h100 --mesh 8x8 --batch 64",
)
