"""Reader of the description that torch writes beside the tensors of a checkpoint, ``.metadata``: a pickle.

A pickle may call any function while it is read. This one is read with the few classes that torch writes and nothing
else, and may name no files outside its folder.
"""

import pickle
import re
from importlib import import_module
from pathlib import PurePath
from typing import IO, Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from pipeplan.core.figures import shown

_KNOWN = {
    "torch": {"Size"},
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "BytesStorageMetadata"),
        *("TensorProperties", "ChunkStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
}
_FILE = re.compile(r"\w+\.distcp")
_PATHS = {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a class that torch's descriptions contain."""
        if name in _KNOWN.get(module, ()):
            return super().find_class(module, name)
        if module in ("pathlib", "pathlib._local") and name in _PATHS:
            return lambda *parts: PurePath(*parts)  # the folder where it was written; nothing is looked up in it
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype | torch.layout):
            return found
        raise pickle.UnpicklingError(f".metadata wants to call {module}.{name}, which torch never writes into it")


def _loaded(file: IO[bytes]) -> object:
    """Read the pickle; it may set attributes of objects, and of classes too, which get back what they had."""
    classes = [getattr(import_module(module), name, None) for module, names in _KNOWN.items() for name in names]
    before = [(each, dict(vars(each))) for each in classes if each is not None]
    try:
        return _Unpickler(file).load()
    finally:
        for each, own in before:
            if changed := {name for name, value in vars(each).items() if own.get(name, own) is not value}:
                for name in changed:
                    setattr(each, name, own[name]) if name in own else delattr(each, name)
                raise pickle.UnpicklingError(f".metadata changes {each.__name__}")


def _shown(name: object) -> str:
    return f"the file {shown(name)}" if isinstance(name, str) else f"a {type(name).__name__} as a file"


class Reader(FileSystemReader):
    """Torch's reader, without arbitrary pickles."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Read the description.

        Raises
        ------
        pickle.UnpicklingError
            If it contains anything but the description of tensors in files beside it.
        """
        with self.fs.create_stream(self.fs.concat_path(self.path, ".metadata"), "rb") as file:
            metadata = _loaded(file)
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f".metadata holds {type(metadata).__name__}, not the description of tensors")
        for stored in (metadata.storage_data or {}).values():
            name = stored.relative_path
            if not isinstance(name, str) or not _FILE.fullmatch(name):
                raise pickle.UnpicklingError(f".metadata names {_shown(name)}, which is not in the folder")
        metadata.storage_meta = None
        return metadata
