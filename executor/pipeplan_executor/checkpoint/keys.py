"""What tensors are called on the disk. Names of the model have dots, so a stroke ends a part of a key."""


def model_key(name: str) -> str:
    """A parameter, or the first replica's buffer."""
    return f"model/{name}"


def replica_key(replica: int, name: str) -> str:
    """A buffer of another replica of its stage, which counts from 1."""
    return f"replica/{replica}/{name}"


def numbers_key(name: str, key: str) -> str:
    """What an optimiser keeps for every number of a parameter, in its shape."""
    return f"optimizer/{name}/{key}"


def whole_key(name: str, key: str) -> str:
    """What an optimiser keeps for a parameter as a whole."""
    return f"optimizer-whole/{name}/{key}"


def optimizer_key(full: str) -> tuple[bool, str, str] | None:
    """Whether it goes number by number, the parameter and the optimiser's key; None for keys of another kind."""
    kind, *rest = full.split("/")
    if kind not in ("optimizer", "optimizer-whole"):
        return None
    name, key = rest
    return kind == "optimizer", name, key
