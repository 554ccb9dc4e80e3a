"""What the Trainer of Hugging Face writes, with DeepSpeed and FSDP too: whole, stale, cut off, and without a rank."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holdfast_checkpoint.guard.damage import Reason
from holdfast_checkpoint.guard.folder_guard import Outcome
from tests.checkpoint.guard.conftest import GuardedFolder
from tests.support.foreign_checkpoints import TinyTraining, save_dcp, save_deepspeed, save_huggingface

STAGES = pytest.mark.parametrize(
    ("stage", "prefix"), [(1, ""), (1, "bf16_"), (3, ""), (3, "bf16_")], ids=["1", "1-bf16", "3", "3-bf16"]
)


@STAGES
def test_a_folder_of_deepspeed_that_is_named_by_its_step_is_compared_with_the_one_before(
    stage: int, prefix: str, guarded: GuardedFolder
) -> None:
    for step in (10, 20):
        guarded.save(save_deepspeed, step, stage=stage, prefix=prefix)
    for step in (30, 40):
        save_deepspeed(guarded.folder, step, guarded.training, stage=stage, prefix=prefix)
    found = guarded.look()
    assert [[finding.reason for finding in each.findings] for each in found] == [[], [], [], [Reason.STALE]]


@STAGES
@pytest.mark.parametrize("has_earlier", [True, False])
def test_a_rank_without_files_is_one_reason(has_earlier: bool, stage: int, prefix: str, guarded: GuardedFolder) -> None:
    if has_earlier:
        guarded.save(save_deepspeed, 10, stage=stage, prefix=prefix, ranks=3)
    place = save_deepspeed(guarded.folder, 20, guarded.training, stage=stage, prefix=prefix, ranks=3)
    for file in place.rglob(f"{prefix}zero_pp_rank_1_*_states.pt"):
        file.unlink()
    (finding,) = guarded.look()[-1].findings
    assert (finding.reason, "rank 1 are missing" in finding.text) == (Reason.DAMAGED, True)


def test_the_last_rank_without_files_is_one_reason(guarded: GuardedFolder) -> None:
    name = "zero_pp_rank_2_mp_rank_00_optim_states.pt"
    _, place = [guarded.save(save_deepspeed, step, stage=1, ranks=3) for step in (10, 20)]
    (place / "global_step20" / name).unlink()
    (finding,) = guarded.look()[-1].findings
    assert (finding.reason, name in finding.text) == (Reason.SHRUNK, True)


def test_the_ranks_of_one_node_are_whole(guarded: GuardedFolder) -> None:
    place = save_deepspeed(guarded.folder, 10, guarded.training, stage=3, ranks=4)
    for rank in (0, 1):
        for file in place.rglob(f"zero_pp_rank_{rank}_*"):
            file.unlink()
    assert [each.outcome for each in guarded.look()] == [Outcome.GOOD]


def keep_model(place: Path) -> None:
    for file in place.iterdir():
        if file.name != "model.safetensors":
            file.unlink()


def keep_fsdp(place: Path) -> None:
    keep_model(place)
    (place / "model.safetensors").unlink()
    save_dcp(place, 1, TinyTraining()).rename(place / "pytorch_model_fsdp_0")


def keep_adapter(place: Path) -> None:
    keep_model(place)
    (place / "model.safetensors").rename(place / "adapter_model.safetensors")


def keep_old_model(place: Path) -> None:
    keep_model(place)
    (place / "model.safetensors").unlink()
    torch.save(TinyTraining().weights, place / "pytorch_model.bin")


@pytest.mark.parametrize("cut_off", [keep_model, keep_fsdp, keep_adapter, keep_old_model])
def test_a_first_checkpoint_without_the_file_that_the_trainer_writes_last_is_incomplete(
    cut_off: Callable[[Path], None], guarded: GuardedFolder
) -> None:
    cut_off(save_huggingface(guarded.folder, 10, guarded.training))
    assert [each.outcome for each in guarded.look()] == [Outcome.INCOMPLETE]


def test_a_first_checkpoint_of_deepspeed_without_that_file_is_incomplete(guarded: GuardedFolder) -> None:
    place = guarded.save(save_deepspeed, 10, stage=1)
    for name in ("trainer_state.json", "rng_state_0.pth", "rng_state_1.pth"):
        (place / name).unlink()
    assert [each.outcome for each in guarded.look()] == [Outcome.INCOMPLETE]


def test_files_of_any_name_are_incomplete_next_to_checkpoints_of_the_trainer(guarded: GuardedFolder) -> None:
    guarded.save(save_huggingface, 10)
    place = save_huggingface(guarded.folder, 20, guarded.training)
    keep_model(place)
    (place / "model.safetensors").rename(place / "weights.safetensors")
    assert [each.outcome for each in guarded.look()] == [Outcome.GOOD, Outcome.INCOMPLETE]


def test_a_folder_of_accelerate_needs_no_file_of_the_trainer(guarded: GuardedFolder) -> None:
    place = save_huggingface(guarded.folder, 10, guarded.training)
    keep_model(place)
    torch.save({"step": 10}, place / "random_states_0.pkl")
    assert [each.outcome for each in guarded.look()] == [Outcome.GOOD]
