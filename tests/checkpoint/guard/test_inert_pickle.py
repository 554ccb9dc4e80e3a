"""No pickle runs code in the guard, and none takes it down."""

import io
import os
import pickle
import resource
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast_checkpoint.guard.damage import DamagedFileError, Reason
from holdfast_checkpoint.guard.inert_pickle import InertObject, load_inert, tensors_in
from tests.checkpoint.guard.conftest import GuardedFolder
from tests.support.foreign_checkpoints import TinyTraining, save_dcp


class Harmful:
    """Creates a file when it is unpickled."""

    def __init__(self, call: Any, *arguments: object) -> None:
        self._reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


class Own:
    """A class that the guard does not know."""

    def __init__(self) -> None:
        self.inner = {"a": 1}


@pytest.mark.parametrize("call", [os.system, os.mkdir, eval, exec, open])
def test_calls_that_no_checkpoint_needs_are_refused(call: Any, tmp_path: Path) -> None:
    data = pickle.dumps(Harmful(call, str(tmp_path / "made")))
    with pytest.raises(DamagedFileError, match="which no checkpoint needs: do not load this file"):
        load_inert(data)
    assert list(tmp_path.iterdir()) == []


def test_unknown_classes_and_functions_are_never_imported_nor_called(tmp_path: Path) -> None:
    made = tmp_path / "made"
    found = load_inert(pickle.dumps({"a": Harmful(Path.mkdir, made), "b": Harmful(Path.touch, made), "c": Own()}))
    assert all(isinstance(each, InertObject) for each in found.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x04.",
        b"\x80\x04K",
        b"\x80\x04r\xff\xff\xff\x7f.",
        b"\x80\x04\x8d" + b"\xff" * 8 + b".",
        b"(" * 1000,
    ],
)
def test_damaged_pickles_are_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(DamagedFileError):
        load_inert(data)


def test_a_pickle_that_asks_for_gigabytes_gets_none() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(DamagedFileError, match="more memory than there is"):
        load_inert(b"\x80\x04K\x01r\xff\xff\xff\x7f.")  # entry 2,147,483,647 of a table
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_every_cut_and_many_changes_of_a_real_index_are_survived(training: TinyTraining, tmp_path: Path) -> None:
    data = (save_dcp(tmp_path, 1, training) / ".metadata").read_bytes()
    for end in range(0, len(data) - 1, 37):
        with pytest.raises(DamagedFileError):
            load_inert(data[:end])
    for place in range(0, len(data), 11):
        changed = bytearray(data)
        changed[place] ^= 0x5A
        try:
            load_inert(bytes(changed))
        except DamagedFileError:
            continue


def test_circles_and_shared_parts_end() -> None:
    shared: Any = [1]
    for _ in range(60):
        shared = [shared, shared]
    circle: list[Any] = [shared]
    circle.append(circle)
    assert list(tensors_in(load_inert(pickle.dumps(circle)))) == []


def test_tensors_are_found_in_whole_modules(tmp_path: Path) -> None:
    torch.save({"net": torch.nn.Linear(3, 2)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        found = dict(tensors_in(load_inert(archive.read("x/data.pkl"))))
    assert sorted(tensor.shape for tensor in found.values()) == [(2,), (2, 3)]


def test_a_checkpoint_that_would_run_code_is_called_damaged(guarded: GuardedFolder, tmp_path: Path) -> None:
    torch.save({"state_dict": {"w": torch.ones(3)}, "x": Harmful(os.system, "true")}, guarded.folder / "step=1.ckpt")
    (judgment,) = guarded.look()
    assert [finding.reason for finding in judgment.findings] == [Reason.DAMAGED]
    assert "posix.system, which no checkpoint needs: do not load this file" in judgment.findings[0].text


def test_an_index_cannot_lead_out_of_its_folder(guarded: GuardedFolder, training: TinyTraining) -> None:
    path = save_dcp(guarded.folder, 1, training) / ".metadata"
    path.write_bytes(path.read_bytes().replace(b"__0_0.distcp", b"../../passwd"))
    (judgment,) = guarded.look()
    assert "names a file outside of its folder" in judgment.findings[0].text


def test_files_of_random_bytes_are_damage(guarded: GuardedFolder) -> None:
    rng = io.BytesIO(bytes(range(256)) * 40)
    for number, start in enumerate((b"PK\x03\x04", b"\x80\x02", b"", b"\x00" * 8)):
        place = guarded.folder / f"checkpoint-{number}"
        place.mkdir()
        for name in ("model.safetensors", "optimizer.pt", ".metadata", "model.safetensors.index.json"):
            (place / name).write_bytes(start + rng.getvalue())
        (place / "trainer_state.json").write_text("{}")
    found = guarded.look()
    assert len(found) == 4
    assert all(finding.reason is Reason.DAMAGED for each in found for finding in each.findings)
    assert all(each.findings for each in found)
