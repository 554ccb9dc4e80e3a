import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from holdfast_checkpoint.format.manifest import MANIFEST, load_manifest
from holdfast_checkpoint.format.shard_index import load_index, shard_path
from holdfast_checkpoint.format.shard_reader import verify_shard
from holdfast_checkpoint.format.slot_shard import write_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_hooks import by_name
from holdfast_hooks.restore.dcp import CheckpointReader, CheckpointWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")
MakeSlots = Callable[..., list[Path]]


class Training:
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1 * seed)
        self.model(torch.randn(16, 4)).square().mean().backward()
        self.optimizer.step()

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": by_name(self.optimizer, self.model)}

    def state_dict(self) -> dict[str, Any]:
        plain = {"seen": [3, 5], "name": "ü", "blob": b"\x00", "ratio": float("inf"), "pair": (1, 2)}
        return {name: part.state_dict() for name, part in self.state.items()} | {"position": plain}


def expect_same(found: Any, expected: Any) -> None:
    """Compare nested states bit by bit."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            expect_same(found[key], expected[key])
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected
        assert type(found) is type(expected)


@pytest.fixture
def checkpoint(bench: Any, make_slots: MakeSlots, folder: Path) -> Path:
    """A checkpoint that an agent wrote from a training's snapshot."""
    paths = make_slots()
    run = bench(Training(seed=1).state, paths, checkpoint_every=1)
    write_shard(paths[run.end(0).slot], folder / "checkpoints" / "step-00000000", run="run", world_size=1)
    checkpoints = CheckpointDirectory(folder / "checkpoints", kept=1)
    assert checkpoints.commit_if_complete(0, 1, "run") is not None
    return checkpoints.step_directory(0)


def test_plain_load_reads_a_runs_checkpoint_without_a_process_group(checkpoint: Path) -> None:
    state = Training(seed=2).state_dict()
    del state["position"]
    load(state, storage_reader=CheckpointReader(checkpoint))
    expected = Training(seed=1).state_dict()
    del expected["position"]
    expect_same(state, expected)


def test_one_tensor_loads_without_the_others(checkpoint: Path) -> None:
    index = load_index(checkpoint, 0)
    wanted = next(tensor for tensor in index.tensors if tensor.entry.name == "model/1.running_var")
    data = shard_path(checkpoint, 0).read_bytes()
    end = wanted.stored_offset + wanted.stored_bytes
    shard_path(checkpoint, 0).write_bytes(bytes(wanted.stored_offset) + data[wanted.stored_offset : end])
    state = {"model": {"1.running_var": torch.zeros(8)}}
    load(state, storage_reader=CheckpointReader(checkpoint))
    assert torch.equal(state["model"]["1.running_var"], Training(seed=1).model.state_dict()["1.running_var"])


def test_damaged_byte_is_reported_with_file_and_tensor(checkpoint: Path) -> None:
    path = shard_path(checkpoint, 0)
    damaged = next(tensor for tensor in load_index(checkpoint, 0).tensors if tensor.entry.name == "model/0.weight")
    data = bytearray(path.read_bytes())
    data[damaged.stored_offset + damaged.stored_bytes // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointException, match=r"rank-00000\.shard is damaged: tensor model/0\.weight"):
        load({"model": Training(seed=2).model.state_dict()}, storage_reader=CheckpointReader(checkpoint))


def test_directory_without_a_manifest_is_no_checkpoint(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()
    with pytest.raises(CheckpointException, match=r"manifest\.json: No such file"):
        load({"model": Training(seed=2).model.state_dict()}, storage_reader=CheckpointReader(checkpoint))


def test_what_save_has_written_load_brings_back(folder: Path) -> None:
    saved = Training(seed=1).state_dict()
    save(saved, storage_writer=CheckpointWriter(folder / "saved", step=7))
    nothing: dict[str, Any] = {"seen": [], "name": "", "blob": b"", "ratio": 0.0, "pair": ()}
    loaded = Training(seed=2).state_dict() | {"position": nothing}
    load(loaded, storage_reader=CheckpointReader(folder / "saved"))
    expect_same(loaded, saved)


def test_saved_directory_is_a_checkpoint_of_the_format_and_holds_no_pickle(folder: Path) -> None:
    directory = folder / "saved"
    save(Training(seed=1).state_dict(), storage_writer=CheckpointWriter(directory, step=7))
    assert sorted(path.name for path in directory.iterdir()) == [MANIFEST, "rank-00000.json", "rank-00000.shard"]
    manifest, index = load_manifest(directory), load_index(directory, 0)
    assert (manifest.step, manifest.world_size) == (7, 1)
    verify_shard(shard_path(directory, 0), index)
    assert sum(tensor.stored_bytes for tensor in index.tensors) == shard_path(directory, 0).stat().st_size
    assert json.loads((directory / MANIFEST).read_bytes())["body"]["step"] == 7


def test_second_save_replaces_the_first_as_a_whole(folder: Path) -> None:
    for seed in (1, 2):
        save(Training(seed).state_dict(), storage_writer=CheckpointWriter(folder / "saved"))
    state = {"model": Training(seed=3).model.state_dict()}
    load(state, storage_reader=CheckpointReader(folder / "saved"))
    expect_same(state["model"], Training(seed=2).model.state_dict())


def test_value_that_only_pickle_could_store_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(CheckpointException, match="model/loss: a value of type"):
        save({"model": {"loss": torch.nn.MSELoss()}}, storage_writer=CheckpointWriter(folder / "saved"))
    assert not (folder / "saved" / MANIFEST).exists()
