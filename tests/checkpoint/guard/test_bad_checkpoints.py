"""Each way in which a checkpoint can be bad, in each format, and what must not be called bad."""

import json
import os
import shutil
import struct
from functools import partial
from pathlib import Path

import pytest
import torch

from holdfast_checkpoint.guard.damage import Reason
from holdfast_checkpoint.guard.folder_guard import Judgment, Outcome
from holdfast_checkpoint.guard.sampled_values import ValuesRead
from tests.checkpoint.guard.conftest import GuardedFolder
from tests.support.foreign_checkpoints import (
    FRAMEWORKS,
    Framework,
    TinyTraining,
    save,
    save_dcp,
    save_huggingface,
    save_lightning,
    save_megatron,
)

ALL = pytest.mark.parametrize("framework", FRAMEWORKS)


def reasons(judgment: Judgment) -> list[Reason]:
    return [finding.reason for finding in judgment.findings]


def newest_data_file(place: Path) -> Path:
    if place.is_file():
        return place
    files = [path for path in place.rglob("*") if path.suffix in (".distcp", ".safetensors", ".pt")]
    return max(files, key=lambda path: path.stat().st_size)


@ALL
def test_checkpoints_that_train_on_are_good(framework: Framework, guarded: GuardedFolder) -> None:
    for step in (10, 20):
        guarded.save(partial(save, framework), step)
    found = guarded.look()
    assert [(each.outcome, each.step) for each in found] == [(Outcome.GOOD, 10), (Outcome.GOOD, 20)]
    assert guarded.guard.newest_good is guarded.guard.newest
    assert all(each.examined is not None and each.examined.values.tensors >= 12 for each in found)


@ALL
def test_a_checkpoint_with_the_weights_of_the_one_before_is_stale(framework: Framework, guarded: GuardedFolder) -> None:
    for step in (10, 20, 30):
        save(framework, guarded.folder, step, guarded.training)
    found = guarded.look()
    assert [reasons(each) for each in found] == [[], [Reason.STALE], [Reason.STALE]]
    assert "byte-identical to those of" in found[1].findings[0].text
    assert guarded.newest_good_step == 10


@ALL
def test_a_file_that_is_cut_off_is_damaged(framework: Framework, guarded: GuardedFolder) -> None:
    guarded.save(partial(save, framework), 10)
    file = newest_data_file(save(framework, guarded.folder, 20, guarded.training))
    os.truncate(file, file.stat().st_size - 100)
    found = guarded.look()
    assert [reasons(each) for each in found] == [[], [Reason.DAMAGED]]
    assert guarded.newest_good_step == 10


@ALL
@pytest.mark.parametrize("where", ["weights", "optimizer"])
def test_nan_is_found_in_weights_and_optimizer(framework: Framework, where: str, guarded: GuardedFolder) -> None:
    training = guarded.training
    with torch.no_grad():
        if where == "weights":
            training.model[0].weight[3, 3] = float("nan")  # type: ignore[index]
        else:
            training.optimizer.state[training.model[1].bias]["exp_avg"][1] = float("inf")  # type: ignore[index]
    save(framework, guarded.folder, 10, training)
    (judgment,) = guarded.look()
    assert reasons(judgment) == [Reason.NON_FINITE]
    assert f"({where})" in judgment.findings[0].text


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn]
)
def test_nan_is_found_in_every_floating_dtype(dtype: torch.dtype, guarded: GuardedFolder) -> None:
    values = torch.ones(64)
    values[7] = float("nan")
    torch.save({"model": {"w": values.to(dtype)}}, guarded.folder / "step_1.pt")
    torch.save({"model": {"w": torch.ones(64).to(dtype)}}, guarded.folder / "step_2.pt")
    assert [reasons(each) for each in guarded.look()] == [[Reason.NON_FINITE], []]


def test_masks_and_observers_are_as_they_should_be_and_padding_of_a_storage_is_no_part_of_a_tensor(
    guarded: GuardedFolder,
) -> None:
    mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), float("-inf"))
    buffer = torch.full((64,), float("nan"))
    buffer[8:40] = 1.0
    model = {"w": buffer[8:40].view(4, 8), "mask": mask, "min_val": torch.tensor(float("inf"))}
    torch.save({"model": model}, guarded.folder / "step_1.pt")
    assert [reasons(each) for each in guarded.look()] == [[]]


def test_a_final_checkpoint_of_the_same_step_is_not_stale(guarded: GuardedFolder) -> None:
    save_lightning(guarded.folder, 10, guarded.training)
    save_lightning(guarded.folder, 10, guarded.training, name="last.ckpt")
    found = [(each.name, each.outcome) for each in guarded.look()]
    assert found == [("epoch=0-step=10.ckpt", Outcome.GOOD), ("last.ckpt", Outcome.GOOD)]


def test_weights_that_differ_outside_of_the_sample_are_not_stale(tmp_path: Path) -> None:
    guarded = GuardedFolder(tmp_path / "checkpoints", sample_bytes=64 << 10)
    weights = {f"layer{number}": torch.ones(32 << 10) for number in range(8)}
    torch.save({"model": weights}, guarded.folder / "step_1.pt")
    for changed in weights.values():
        changed[0] += 1  # the sample is elsewhere
    torch.save({"model": weights}, guarded.folder / "step_2.pt")
    found = guarded.look()
    assert [reasons(each) for each in found] == [[], []]
    first, second = (each.examined.values if each.examined else ValuesRead() for each in found)
    assert first.windows == second.windows  # so that only the comparison of all bytes can tell
    torch.save({"model": weights}, guarded.folder / "step_3.pt")
    assert [reasons(each) for each in guarded.settle()] == [[Reason.STALE]]


def test_one_that_is_written_over_is_not_compared_with_itself(tmp_path: Path) -> None:
    guarded = GuardedFolder(tmp_path / "checkpoints", sample_bytes=64 << 10)
    weights = {f"layer{number}": torch.ones(32 << 10) for number in range(8)}
    for step in (1, 2):
        for changed in weights.values():
            changed[0] += 1  # the sample is elsewhere, and leaves whole tensors out
        torch.save({"global_step": step, "state_dict": weights}, guarded.folder / "last.ckpt")
        assert [(each.outcome, each.step) for each in guarded.settle()] == [(Outcome.GOOD, step)]


def test_parameters_beside_the_part_of_the_model_are_weights_and_other_numbers_are_none(guarded: GuardedFolder) -> None:
    for step in (1, 2):
        state = {"model": {"w": torch.ones(9)}, "lm_head.weight": torch.ones(5), "best_loss": torch.tensor(step * 0.5)}
        torch.save(state, guarded.folder / f"step_{step}.pt")
    assert [reasons(each) for each in guarded.look()] == [[], [Reason.STALE]]
    torch.save({**state, "lm_head.weight": torch.full((5,), float("nan"))}, guarded.folder / "step_3.pt")
    assert [reasons(each) for each in guarded.settle()] == [[Reason.NON_FINITE]]


def test_binary_files_that_torch_has_not_written_are_named_and_no_damage(guarded: GuardedFolder) -> None:
    place = save_huggingface(guarded.folder, 10, guarded.training)
    (place / "vocab.bin").write_bytes(b"words")
    (judgment,) = guarded.look()
    assert judgment.outcome is Outcome.GOOD
    assert judgment.examined is not None
    assert judgment.examined.inventory.unchecked == ["vocab.bin: not a file of torch.save"]


def test_an_older_checkpoint_that_is_gone_still_shows_a_stale_one(guarded: GuardedFolder) -> None:
    first = save_huggingface(guarded.folder, 10, guarded.training)
    guarded.look()
    shutil.rmtree(first)
    save_huggingface(guarded.folder, 20, guarded.training)
    (judgment,) = guarded.settle()
    assert reasons(judgment) == [Reason.STALE]
    assert guarded.guard.newest_good is None


def test_missing_optimizer_state_is_a_loss(guarded: GuardedFolder) -> None:
    guarded.save(save_huggingface, 10)
    (save_huggingface(guarded.folder, 20, guarded.training) / "optimizer.pt").unlink()
    found = guarded.look()
    assert [reasons(each) for each in found] == [[], [Reason.SHRUNK]]
    assert "all 12 tensors of the optimizer are missing" in found[1].findings[0].text


def test_a_missing_rank_is_a_loss_and_resharding_is_none(guarded: GuardedFolder) -> None:
    guarded.save(save_megatron, 10, ranks=2)
    shutil.rmtree(save_megatron(guarded.folder, 20, guarded.training, ranks=2) / "mp_rank_01")
    wider = TinyTraining(width=32)
    save_megatron(guarded.folder, 30, wider, ranks=1)
    found = guarded.look()
    assert [reasons(each) for each in found] == [[], [Reason.SHRUNK], []]
    assert "mp_rank_01" in found[1].findings[0].text


def test_fewer_ranks_of_a_trainer_are_no_loss_but_a_hole_is(guarded: GuardedFolder) -> None:
    for step, gone in ((10, None), (20, "rng_state_1.pth"), (30, "rng_state_0.pth")):
        place = guarded.save(save_huggingface, step)
        if gone is not None:
            (place / gone).unlink()
    assert [reasons(each) for each in guarded.look()] == [[], [], [Reason.SHRUNK]]


def test_a_shard_that_the_index_names_and_that_is_missing_is_damage(guarded: GuardedFolder) -> None:
    guarded.save(save_huggingface, 10, shards=2)
    (save_huggingface(guarded.folder, 20, guarded.training, shards=2) / "model-00002-of-00002.safetensors").unlink()
    found = guarded.look()
    assert [reasons(each) for each in found] == [[], [Reason.DAMAGED]]
    assert "model-00002-of-00002.safetensors, which it names, is missing" in found[1].findings[0].text


def test_a_file_that_the_index_of_dcp_names_and_that_is_missing_is_damage(guarded: GuardedFolder) -> None:
    (save_dcp(guarded.folder, 10, guarded.training) / "__0_0.distcp").unlink()
    (judgment,) = guarded.look()
    assert reasons(judgment) == [Reason.DAMAGED]
    assert "__0_0.distcp, which it names, is missing" in judgment.findings[0].text


def test_a_header_of_safetensors_that_lies_is_damage(guarded: GuardedFolder) -> None:
    path = save_huggingface(guarded.folder, 10, guarded.training) / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["0.weight"]["shape"] = [3, 3]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    (judgment,) = guarded.look()
    assert reasons(judgment) == [Reason.DAMAGED]
    assert "tensor 0.weight" in judgment.findings[0].text


def test_a_changed_byte_is_found_by_its_checksum_if_all_is_read(reading_all: GuardedFolder) -> None:
    path = save_lightning(reading_all.folder, 10, reading_all.training)
    data = bytearray(path.read_bytes())
    place = bytes(data).index(reading_all.training.weights["0.weight"].numpy().tobytes())
    data[place] ^= 1  # the smallest bit of a number: it stays finite
    path.write_bytes(data)
    (judgment,) = reading_all.look()
    assert reasons(judgment) == [Reason.DAMAGED]
    assert "differs from its CRC" in judgment.findings[0].text


def test_checksums_that_torch_did_not_compute_are_not_checked(reading_all: GuardedFolder) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        reading_all.save(save_lightning, 10)
    finally:
        torch.serialization.set_crc32_options(True)
    assert [each.outcome for each in reading_all.look()] == [Outcome.GOOD]
