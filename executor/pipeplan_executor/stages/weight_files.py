"""Files of weights: torch's state dicts, and safetensors as `transformers` writes them, whole or in several files.

Tensors are read when they are asked for, so a rank reads those of its own stages only.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeplan.core.errors import InputError

SUFFIX = ".safetensors"
NEEDED = "weights in safetensors need the package: pip install safetensors"


def opened_weights(path: str | Path) -> Mapping[str, Tensor]:
    """Return the tensors of a state-dict file, of a safetensors file, or of a folder of these, by name.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    own = Path(path)
    files = sorted(own.glob(f"*{SUFFIX}")) if own.is_dir() else [own]
    if not files:
        raise InputError(f"cannot read weights from {path}: the folder has no file *{SUFFIX}")
    try:
        if files[0].suffix == SUFFIX:
            return _Safetensors(files)
        state: Mapping[str, Tensor] = torch.load(own, map_location="cpu", mmap=True, weights_only=True)
        return state
    except ImportError as error:
        raise InputError(NEEDED) from error
    except Exception as error:  # a damaged file may raise anything
        raise InputError(f"cannot read weights from {path}: {error}") from error


class _Safetensors(Mapping[str, Tensor]):
    """Tensors of safetensors files by name."""

    def __init__(self, files: list[Path]) -> None:
        from safetensors import safe_open

        self._files: dict[str, Any] = {}
        for file in files:
            opened = safe_open(file, framework="pt")
            names: list[str] = opened.keys()  # type: ignore[no-untyped-call]
            self._files |= dict.fromkeys(names, opened)

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
