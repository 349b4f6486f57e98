"""Launch of a plan's ranks: local processes, or those that torchrun or Slurm started; all end when one fails.

::

    RANK and WORLD_SIZE set       torchrun: this process is one rank
    SLURM_STEP_NUM_TASKS          Slurm: this process is one task of several, as srun starts them
    neither                       local processes, one per rank (`pipeplan_executor.processes.local`)
"""

import os
import re
import sys
from collections.abc import Callable
from typing import Any

from pipeplan.core.errors import InputError
from pipeplan.core.figures import real, shown, whole
from pipeplan.core.options import LONGEST
from pipeplan_executor.processes.devices import choose
from pipeplan_executor.processes.joined import reporting_pulse
from pipeplan_executor.processes.local import start_local
from pipeplan_executor.processes.rank import RunError, as_rank

__all__ = ["RunError", "joined_world", "launch"]


def launch(
    function: Callable[..., Any],
    world: int,
    *arguments: Any,
    timeout: float = 60.0,
    restarts: int = 0,
    device: str = "auto",
    on_restart: Callable[[str], None] | None = None,
) -> Any:
    """Call ``function(*arguments)`` on ``world`` ranks that form a process group; return the value of rank 0.

    Parameters
    ----------
    function : callable
        Importable by name, like the arguments' types, since it is called in other processes.
    timeout : float
        Seconds within which a rank that died, hangs or waits in vain ends the run everywhere.
    restarts : int
        Number of times that all ranks are started again after one was lost; ``function`` continues from its
        checkpoint. Invalid input is not tried again.
    device : {'auto', 'cpu', 'cuda'}
        See `pipeplan_executor.processes.devices.choose`.
    on_restart : callable, optional
        Called with the line that is printed to standard error at each restart.

    Raises
    ------
    RunError
        If a rank fails, or the launcher started another number of ranks than ``world``.
    InputError
        If devices are missing, or a number makes no sense.

    Examples
    --------
    >>> pipeplan_executor.launch(train, len(plan.ranks), plan)  # train(plan) on every rank  # doctest: +SKIP
    """
    whole(world, "the number of processes", 1)
    whole(restarts, "restarts")
    real(timeout, "the timeout (seconds)", most=LONGEST, above=True)
    started = joined_world()
    if started is None:
        choose(device, world)
        return _restarted(function, world, arguments, timeout, restarts, device, on_restart)
    if started != world:
        raise RunError(
            f"the run takes {world} processes, but the launcher started {started}; start {world}, or solve for "
            f"{started} devices"
        )
    if restarts:
        raise InputError(
            "restarts belong to the launcher that started this rank: torchrun --max-restarts N, or sbatch --requeue"
        )
    with reporting_pulse(timeout):
        return as_rank(function, arguments, timeout, device)


def _restarted(
    function: Callable[..., Any],
    world: int,
    arguments: tuple[Any, ...],
    timeout: float,
    restarts: int,
    device: str,
    on_restart: Callable[[str], None] | None,
) -> Any:
    for number in range(1, restarts + 1):
        try:
            return start_local(function, world, arguments, timeout, device)
        except RunError as error:
            if not error.again:
                raise
            line = f"{error}; restart {number} of {restarts}"
            print(f"pipeplan: {line}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr, flush=True)
            if on_restart is not None:
                on_restart(line)
    return start_local(function, world, arguments, timeout, device)


def joined_world() -> int | None:
    """Return the number of ranks that another launcher started, or None; set torch.distributed's environment."""
    environment = os.environ
    if "RANK" in environment and "WORLD_SIZE" in environment:
        _number("RANK")
        return _number("WORLD_SIZE")
    if _number("SLURM_STEP_NUM_TASKS", "1") > 1:  # batch scripts have SLURM_PROCID and SLURM_NTASKS too
        environment.update(
            RANK=environment["SLURM_PROCID"],
            WORLD_SIZE=environment["SLURM_STEP_NUM_TASKS"],
            LOCAL_RANK=environment.get("SLURM_LOCALID", "0"),
        )
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "127.0.0.1"
        environment.setdefault("MASTER_ADDR", first_node(nodes))
        environment.setdefault("MASTER_PORT", str(20_000 + _number("SLURM_JOB_ID", "0") % 20_000))
        return _number("WORLD_SIZE")
    return None


def _number(name: str, otherwise: str = "") -> int:
    """Return the number in a variable that a launcher sets."""
    value = os.environ.get(name, otherwise)
    if not (value.isascii() and value.isdecimal()):
        raise InputError(
            f"the environment has {name}={shown(value)}, expected a number; unset it, or start with torchrun"
        )
    return int(value)


def first_node(nodes: str) -> str:
    """Return the first host of a Slurm node list, where rank 0 runs: ``gpu07`` of ``gpu[07-09,12],cpu1``."""
    match = re.match(r"([^,\[]*)(?:\[([^,\-\]]*)[^\]]*\]([^,]*))?", nodes)
    assert match is not None  # every part may be empty
    return "".join(part or "" for part in match.groups())
