"""Whether an optimiser keeps more than the plan counted on."""

from pipeplan.core.units import format_bytes
from pipeplan.costs.memory import optimizer_bytes
from pipeplan_executor.optim.optimise import StageOptimizer


def excess(optimizer: StageOptimizer, planned: str) -> str | None:
    """After the first update: what to tell if the state is larger than that of the planned optimiser, else None."""
    counted = sum(
        optimizer_bytes(part.numel() * part.element_size(), str(part.dtype).removeprefix("torch."), planned)
        for part in (piece.updated for piece in optimizer.pieces)
    )
    tensors = [value for state in optimizer.state.values() for value in state.values() if hasattr(value, "nbytes")]
    kept = sum(tensor.nbytes for tensor in tensors if tensor.dim())
    if kept <= counted:
        return None
    more = "" if planned == "adam" else ", or solve again with --optimizer adam"
    return (
        f"{type(optimizer.optimizer).__name__} keeps {format_bytes(kept)} of state, and the plan counted on "
        f"{format_bytes(counted)} ({planned}): it may run out of memory, and updates take longer than predicted. "
        f"Choose an optimiser that keeps less{more}"
    )
