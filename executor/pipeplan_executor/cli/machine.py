"""``pipeplan machine``: describe this machine as a cluster of worker processes."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pipeplan.cli.base import Command, show, try_outputs


def configure(parser: ArgumentParser) -> None:
    """Add the arguments of ``machine``."""
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="how many workers (2)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for a worker that is lost (60)")
    parser.add_argument("-o", "--output", metavar="CLUSTER", required=True, help="write the cluster here; - prints it")


def run(options: Namespace) -> int:
    """Measure the machine and write the cluster."""
    from pipeplan.io.cluster_file import write_cluster
    from pipeplan_executor.calibrate.machine import as_text, describe_machine

    try_outputs(options, files=("output",))
    cluster = describe_machine(options.processes, options.timeout)
    write_cluster(cluster, Path(options.output))
    show(f"{as_text(cluster)}; written to {options.output}", options, "output")
    return 0


command = Command(
    "machine", "describe this machine as a cluster of worker processes", configure, run, "--processes 2 -o machine.yaml"
)
