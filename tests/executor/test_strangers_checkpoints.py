"""Checkpoints from strangers: reading one runs nothing, and says what is wrong with it."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from pipeplan.core.errors import InputError
from pipeplan_executor.checkpoint import as_plain
from pipeplan_executor.checkpoint.folder import MANIFEST, latest, publish
from pipeplan_executor.checkpoint.inventory import Entry
from pipeplan_executor.checkpoint.lock import hold
from pipeplan_executor.checkpoint.origin import from_plain
from pipeplan_executor.checkpoint.record import STATE, Record, read_record, write_record
from pipeplan_executor.checkpoint.slices import model_key, read, stored, write

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Stranger:
    """A value whose pickle writes a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A whole checkpoint of one tensor."""
    path = tmp_path / "step-00000001"
    path.mkdir()
    weights = torch.arange(6.0).reshape(2, 3)
    write(path, {model_key("w"): weights, model_key("half"): weights.to(torch.bfloat16)})
    inventory = (Entry("w", (2, 3), True, "w"), Entry("half", (2, 3), True, "half"))
    write_record(Record(1, 0, "small", inventory, []), path)
    return path


def test_what_was_saved_is_read(checkpoint: Path) -> None:
    """The restricted reader reads what torch writes, and sees what torch's own reader sees."""
    model = as_plain(checkpoint)["model"]
    assert torch.equal(model["w"], torch.arange(6.0).reshape(2, 3))
    assert model["half"].dtype == torch.bfloat16
    theirs = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    assert {key: (tuple(each.size), each.properties.dtype) for key, each in theirs.items()} == {
        key: (each.shape, each.dtype) for key, each in stored(checkpoint).items()
    }


@pytest.mark.parametrize("later", [-1, 1])
def test_another_format_is_named(checkpoint: Path, later: int) -> None:
    """An older one too: its fields may mean something else."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    (checkpoint / MANIFEST).write_text(json.dumps({**manifest, "format": manifest["format"] + later}))
    with pytest.raises(InputError, match=f"has format {manifest['format'] + later}, this version reads"):
        read_record(checkpoint)


def test_a_description_with_code_runs_nothing(checkpoint: Path, tmp_path: Path) -> None:
    """A description of tensors that would call a function is refused by that function's name."""
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Stranger(tmp_path / "mark")))
    with pytest.raises(InputError, match=r"wants to call \w+\.system, which torch never writes"):
        as_plain(checkpoint)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("call", ["builtins eval", "builtins getattr", "torch load", "os system", "pipeplan solve"])
def test_a_description_may_name_no_function(call: str, checkpoint: Path) -> None:
    """Also functions of torch are refused."""
    module, name = call.split()
    (checkpoint / ".metadata").write_bytes(f"c{module}\n{name}\n(V1\ntR.".encode())
    with pytest.raises(InputError, match=f"wants to call {call.replace(' ', '.')}"):
        as_plain(checkpoint)


@pytest.mark.parametrize("name", ["../other.distcp", "/etc/passwd", "", ".."])
def test_a_description_names_files_of_its_folder_only(name: str, checkpoint: Path) -> None:
    """Files outside the folder are not opened."""
    description = FileSystemReader(checkpoint).read_metadata()
    for each in description.storage_data.values():
        each.relative_path = name
    (checkpoint / ".metadata").write_bytes(pickle.dumps(description))
    with pytest.raises(InputError, match="which is not in the folder"):
        as_plain(checkpoint)


def endless(depth: int = 60) -> tuple[Any, ...]:
    """A value of few objects whose text has 2^60 characters."""
    value: tuple[Any, ...] = ()
    for _ in range(depth):
        value = (value, value)
    return value


def test_a_value_with_an_endless_text_is_refused_at_once(checkpoint: Path, tmp_path: Path) -> None:
    """Objects that hold each other twice are refused without being written out."""
    description = FileSystemReader(checkpoint).read_metadata()
    for each in description.storage_data.values():
        each.relative_path = endless()
    (checkpoint / ".metadata").write_bytes(pickle.dumps(description))
    with pytest.raises(InputError, match="names a tuple as a file"):
        as_plain(checkpoint)
    torch.save({"model": {"w": torch.zeros(2)}, "step": endless()}, tmp_path / "plain.pt")
    with pytest.raises(InputError, match="step must be a whole number, not a tuple that is too long to be shown"):
        from_plain(tmp_path / "plain.pt", (Entry("w", (2,), True, "w"),))


@pytest.mark.parametrize("name", ["mark", "state_dict_metadata", "__init__"])
def test_a_description_changes_no_class(name: str, checkpoint: Path) -> None:
    """A pickle may set attributes of a class that it may name; they are set back."""
    before = dict(vars(Metadata))
    setting = f"\x80\x02c{Metadata.__module__}\nMetadata\n(N}}V{name}\nK\x01stb."
    (checkpoint / ".metadata").write_bytes(setting.encode("latin-1"))
    with pytest.raises(InputError, match=r"\.metadata changes Metadata"):
        as_plain(checkpoint)
    assert dict(vars(Metadata)) == before


@pytest.mark.parametrize("name", [".lock", "latest"])
def test_nothing_is_written_through_links(name: str, checkpoint: Path, tmp_path: Path) -> None:
    """A link in the place of a file that a run writes into a folder may name any file."""
    folder, precious = tmp_path / "runs", tmp_path / "precious"
    folder.mkdir()
    precious.write_text("kept")
    (folder / name).symlink_to(precious)
    if name == ".lock":
        with pytest.raises(InputError, match="cannot write checkpoints"):
            hold(folder)
    else:
        assert latest(publish(checkpoint.rename(folder / "part"), 1, 1).parent) == folder / "step-00000001"
    assert precious.read_text() == "kept"


def test_tensors_and_record_with_code_run_nothing(checkpoint: Path, tmp_path: Path) -> None:
    """Neither the files of tensors nor the record nor a plain file run code."""
    mark = tmp_path / "mark"
    evil = tmp_path / "evil.pt"
    torch.save({"model": Stranger(mark)}, evil)
    with pytest.raises(InputError, match="cannot read"):
        from_plain(evil, ())
    shard = next(checkpoint.glob("*.distcp"))
    good = shard.read_bytes(), (checkpoint / STATE).read_bytes()
    # every tensor's bytes are replaced by the file with code
    description = FileSystemReader(checkpoint).read_metadata()
    for each in description.storage_data.values():
        each.offset, each.length = 0, evil.stat().st_size
    whole = (checkpoint / ".metadata").read_bytes()
    (checkpoint / ".metadata").write_bytes(pickle.dumps(description))
    shard.write_bytes(evil.read_bytes())
    with pytest.raises(InputError, match="cannot read checkpoint"):
        as_plain(checkpoint)
    shard.write_bytes(good[0]), (checkpoint / ".metadata").write_bytes(whole)
    assert as_plain(checkpoint)["step"] == 1
    (checkpoint / STATE).write_bytes(evil.read_bytes())
    with pytest.raises(InputError, match="cannot read checkpoint"):
        as_plain(checkpoint)
    assert not mark.exists()
    assert (checkpoint / MANIFEST).exists()


def test_sizes_beyond_the_files_are_refused(checkpoint: Path) -> None:
    """A description of tensors larger than its files allocates nothing."""
    description = FileSystemReader(checkpoint).read_metadata()
    description.state_dict_metadata[model_key("w")].size = torch.Size([10**6, 10**6])
    (checkpoint / ".metadata").write_bytes(pickle.dumps(description))
    with pytest.raises(InputError, match="would have 4000000000012 bytes, and its files have"):
        as_plain(checkpoint)


def test_what_is_said_to_be_no_tensor_is_not_unpickled(checkpoint: Path, tmp_path: Path) -> None:
    """A tensor that the description turns into a pickle between two reads of it is refused."""
    mark, shard = tmp_path / "mark", next(checkpoint.glob("*.distcp"))
    shard.write_bytes(pickle.dumps(Stranger(mark)))
    description = FileSystemReader(checkpoint).read_metadata()
    description.state_dict_metadata[model_key("w")] = BytesStorageMetadata()
    index = MetadataIndex(model_key("w"))
    place = next(iter(description.storage_data.values()))
    description.storage_data = {index: replace(place, offset=0, length=shard.stat().st_size)}
    (checkpoint / ".metadata").write_bytes(pickle.dumps(description))
    with pytest.raises(InputError, match="cannot read checkpoint"):
        read(checkpoint, {model_key("w"): torch.zeros(2, 3)})
    assert not mark.exists()


@pytest.mark.parametrize("name", [MANIFEST, STATE, ".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
def test_files_that_never_end_are_refused(kind: str, name: str, checkpoint: Path) -> None:
    """A pipe, a device or a link to itself in place of a file is named, and not opened."""
    (checkpoint / name).unlink()
    if kind == "pipe":
        os.mkfifo(checkpoint / name)
    else:
        (checkpoint / name).symlink_to("/dev/zero" if kind == "device" else name)
    with pytest.raises(InputError, match=r"is no regular file|is not whole"):
        as_plain(checkpoint)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("step", value) for value in (None, "x", -1, 1.5, [])),
        *(("model", value) for value in (None, "\x1b[31m")),
        *(("name", value) for value in (None, [], {}, "\x1b[31m")),
        *(("first", value) for value in (None, "other")),
        *(("shape", value) for value in (None, ["x"], [-1])),
        ("parameter", "x"),
    ],
)
def test_a_manifest_with_wrong_values_is_refused(field: str, value: Any, checkpoint: Path) -> None:
    """Every value of a wrong kind is refused in words, without control characters."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    (manifest if field in manifest else manifest["tensors"][0])[field] = value
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"checkpoint|must be|is damaged") as refused:
        as_plain(checkpoint)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("field", ["seed", "kind", "groups", "values", "schedulers", "scaler"])
def test_a_state_with_wrong_values_is_refused(field: str, checkpoint: Path) -> None:
    """The same holds for what the optimisers need."""
    state = torch.load(checkpoint / STATE, weights_only=True)
    for value in ("\x1b[31m", [5], 1.5, *([{"a": 5}] if field != "scaler" else [])):
        torch.save({**state, field: value}, checkpoint / STATE)
        with pytest.raises(InputError) as refused:
            as_plain(checkpoint)
        assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("content", [b"\xff", b"", b"a\0b", b"\x1b[31m", b"../step-00000001"])
def test_a_wrong_pointer_is_refused(content: bytes, checkpoint: Path) -> None:
    """Whatever stands in ``latest``, it is refused in words that a terminal can show."""
    (checkpoint.parent / "latest").write_bytes(content)
    with pytest.raises(InputError, match="latest") as refused:
        as_plain(checkpoint.parent)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        {"model": 5},
        {"model": {}, "optimizer": 5},
        {"model": {}, "optimizer": {"state": {}}},
        {"model": {}, "optimizer": {"state": 5, "param_groups": [{"params": [1], "param_names": []}]}},
        {"model": {}, "step": "x"},
        {"model": {5: torch.zeros(1)}},
        {"model": {}, "scheduler": 5},
        {"model": {}, "scaler": 5},
    ],
)
def test_a_plain_file_with_wrong_values_is_refused(content: Any, tmp_path: Path) -> None:
    """A plain file of another kind is refused in words."""
    torch.save(content, tmp_path / "plain.pt")
    with pytest.raises(InputError):
        from_plain(tmp_path / "plain.pt", ())
