"""When a checkpoint is judged, and what is no finding: saves under way, renames, removals, links, rights."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast_checkpoint.guard import examination
from holdfast_checkpoint.guard.candidates import TRACKER, Candidate, step_in
from holdfast_checkpoint.guard.damage import Reason
from holdfast_checkpoint.guard.folder_guard import Outcome
from holdfast_checkpoint.guard.inventory import Inventory, take_inventory
from holdfast_checkpoint.guard.paced_reading import FileReader
from tests.checkpoint.guard.conftest import INCOMPLETE_S, QUIET_S, GuardedFolder
from tests.support.foreign_checkpoints import TinyTraining, save_dcp, save_huggingface, save_lightning, save_megatron


def test_a_checkpoint_is_judged_once_it_is_quiet_and_only_once(guarded: GuardedFolder) -> None:
    assert guarded.look() == []
    save_dcp(guarded.folder, 10, guarded.training)
    assert guarded.look() == []
    assert guarded.look(QUIET_S - 1) == []
    (guarded.folder / "step-10" / "notes.txt").write_text("more")
    assert guarded.look(2) == []  # it has changed
    assert [each.outcome for each in guarded.look(QUIET_S)] == [Outcome.GOOD]
    assert guarded.look(QUIET_S) == []


@pytest.mark.parametrize(
    ("save", "mark"), [(save_dcp, ".metadata"), (save_huggingface, "trainer_state.json")], ids=["dcp", "huggingface"]
)
def test_without_its_last_file_a_checkpoint_is_not_complete(
    save: Callable[..., Path], mark: str, guarded: GuardedFolder
) -> None:
    guarded.look()
    last = guarded.save(save, 10) / mark
    content = last.read_bytes()
    last.unlink()
    assert [*guarded.settle(), *guarded.look(QUIET_S)] == []
    last.write_bytes(content)
    assert [each.outcome for each in guarded.settle()] == [Outcome.GOOD]


def test_a_save_that_never_ends_is_reported_once(guarded: GuardedFolder) -> None:
    guarded.look()
    (save_dcp(guarded.folder, 10, guarded.training) / ".metadata").unlink()
    guarded.settle()
    (judgment,) = guarded.look(INCOMPLETE_S)
    assert (judgment.outcome, judgment.findings[0].reason) == (Outcome.INCOMPLETE, Reason.INCOMPLETE)
    assert ".metadata is missing" in judgment.findings[0].text
    assert guarded.look(INCOMPLETE_S) == []
    assert guarded.guard.newest is None


def test_an_unfinished_save_is_reported_when_a_newer_one_is_complete(guarded: GuardedFolder) -> None:
    guarded.look()
    (save_dcp(guarded.folder, 10, guarded.training) / ".metadata").unlink()
    guarded.settle()
    save_dcp(guarded.folder, 20, guarded.training)
    found = [*guarded.settle(), *guarded.look(1)]
    assert [(each.step, each.outcome) for each in found] == [(20, Outcome.GOOD), (10, Outcome.INCOMPLETE)]


def test_megatron_has_finished_what_its_tracker_names(guarded: GuardedFolder) -> None:
    guarded.look()
    guarded.save(save_megatron, 10)
    save_megatron(guarded.folder, 20, guarded.training)
    (guarded.folder / TRACKER).write_text("10")
    assert [each.name for each in guarded.settle()] == ["iter_0000010"]
    (guarded.folder / TRACKER).write_text("20")
    assert [each.name for each in guarded.look(1)] == ["iter_0000020"]


def test_a_file_without_an_end_mark_gets_time_before_it_is_called_damaged(guarded: GuardedFolder) -> None:
    guarded.look()
    place = save_lightning(guarded.folder, 10, guarded.training)
    whole = place.read_bytes()
    place.write_bytes(whole[:1000])
    assert [*guarded.settle(), *guarded.look(INCOMPLETE_S / 2)] == []
    place.write_bytes(whole)
    assert [each.outcome for each in guarded.settle()] == [Outcome.GOOD]


def test_only_the_newest_checkpoints_are_kept_in_detail(guarded: GuardedFolder) -> None:
    for step in range(1, 6):
        guarded.save(save_lightning, step)
    found = guarded.look()
    assert [each.outcome for each in found] == [Outcome.GOOD] * 5
    kept = [each.step for each in found if each.examined is not None and each.examined.inventory.places]
    assert kept == [4, 5]
    save_lightning(guarded.folder, 6, TinyTraining(width=8))
    (judgment,) = guarded.settle()
    assert judgment.findings[0].reason is Reason.SHRUNK


def test_a_step_that_is_saved_again_is_compared_with_the_step_before(guarded: GuardedFolder) -> None:
    guarded.save(save_huggingface, 10)
    first = save_huggingface(guarded.folder, 20, guarded.training)
    assert [each.outcome for each in guarded.look()] == [Outcome.GOOD] * 2
    shutil.rmtree(first)
    shutil.copytree(guarded.folder / "checkpoint-10", first)  # after a restart the writer saves old weights
    assert [finding.reason for each in guarded.settle() for finding in each.findings] == [Reason.STALE]


def test_temporary_names_are_left_alone_until_the_rename(guarded: GuardedFolder) -> None:
    guarded.look()
    place = save_huggingface(guarded.folder, 10, guarded.training)
    for name in ("tmp-checkpoint-10", ".checkpoint-10", "checkpoint-10.tmp"):
        hidden = place.rename(guarded.folder / name)
        assert guarded.settle() == []
        place = hidden.rename(guarded.folder / "checkpoint-10")
    assert [each.name for each in guarded.settle()] == ["checkpoint-10"]


def test_removal_file_by_file_is_no_finding(guarded: GuardedFolder) -> None:
    first = guarded.save(save_huggingface, 10)
    save_huggingface(guarded.folder, 20, guarded.training)
    assert len(guarded.look()) == 2
    for name in ("optimizer.pt", "model.safetensors", "trainer_state.json"):
        (first / name).unlink()
        assert guarded.settle() == []
    shutil.rmtree(first)
    assert guarded.settle() == []
    assert guarded.newest_good_step == 20


def test_a_good_checkpoint_that_is_removed_is_not_named_any_more(guarded: GuardedFolder) -> None:
    guarded.save(save_huggingface, 10)
    newest = save_huggingface(guarded.folder, 20, guarded.training)
    guarded.look()
    (newest / "optimizer.pt").unlink()
    guarded.look()
    assert guarded.newest_good_step == 10


def test_what_changes_while_it_is_read_is_judged_again(guarded: GuardedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    place = save_huggingface(guarded.folder, 10, guarded.training)
    left = [1]

    def disturbed(candidate: Candidate, reader: FileReader) -> Inventory:
        found = take_inventory(candidate, reader)
        if left:
            left.pop()
            (place / "trainer_state.json").write_text('{"global_step": 10, "more": 1}')
        return found

    monkeypatch.setattr(examination, "take_inventory", disturbed)
    assert guarded.look() == []
    assert guarded.guard.is_waiting
    assert [each.outcome for each in guarded.look(QUIET_S)] == [Outcome.GOOD]


def test_what_vanishes_while_it_is_read_is_no_finding(guarded: GuardedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    save_huggingface(guarded.folder, 10, guarded.training)

    def vanishing(candidate: Candidate, reader: FileReader) -> Inventory:
        shutil.rmtree(candidate.path)
        return take_inventory(candidate, reader)

    monkeypatch.setattr(examination, "take_inventory", vanishing)
    assert [*guarded.look(), *guarded.settle()] == []


@pytest.mark.parametrize(
    ("code", "outcomes"),
    [(13, [Outcome.UNREADABLE]), (5, [Outcome.UNREADABLE]), (116, [])],
    ids=["rights", "disk", "stale"],
)
def test_errors_of_reading_say_nothing_about_the_checkpoint(
    code: int, outcomes: list[Outcome], guarded: GuardedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_huggingface(guarded.folder, 10, guarded.training)
    failing = Mock(side_effect=OSError(code, os.strerror(code), "model.safetensors"))
    with monkeypatch.context() as patch:
        patch.setattr(examination, "take_inventory", failing)
        assert [each.outcome for each in guarded.look()] == outcomes
        assert guarded.look(1) == []
    assert [each.outcome for each in guarded.look(60)] == [Outcome.GOOD]


def test_a_link_to_another_checkpoint_counts_once(guarded: GuardedFolder) -> None:
    save_huggingface(guarded.folder, 10, guarded.training)
    (guarded.folder / "latest").symlink_to("checkpoint-10")
    (guarded.folder / "broken-20").symlink_to("nowhere")
    (guarded.folder / "loop-30").symlink_to("loop-30")
    assert [each.name for each in guarded.look()] == ["checkpoint-10"]


def test_a_link_to_a_checkpoint_elsewhere_is_followed(guarded: GuardedFolder, tmp_path: Path) -> None:
    (guarded.folder / "checkpoint-10").symlink_to(save_huggingface(tmp_path / "other", 10, guarded.training))
    assert [each.outcome for each in guarded.settle()] == [Outcome.GOOD]


def test_folders_and_files_of_other_kinds_are_passed_over(guarded: GuardedFolder) -> None:
    (guarded.folder / "runs" / "events").mkdir(parents=True)
    (guarded.folder / "runs" / "events" / "out.tfevents.1").write_text("x")
    (guarded.folder / "metrics.jsonl").write_text("{}")
    os.mkfifo(guarded.folder / "step_5.ckpt")
    assert [*guarded.look(), *guarded.settle()] == []
    assert guarded.guard.newest is None


def test_a_folder_that_is_one_checkpoint_is_judged_itself(training: TinyTraining, tmp_path: Path) -> None:
    guarded = GuardedFolder(save_dcp(tmp_path, 10, training))
    assert [(each.name, each.outcome) for each in guarded.look()] == [("step-10", Outcome.GOOD)]


def test_a_final_model_next_to_the_checkpoints_does_not_hide_them(guarded: GuardedFolder) -> None:
    shutil.copy(guarded.save(save_huggingface, 10) / "model.safetensors", guarded.folder)
    assert [each.name for each in guarded.look()] == ["checkpoint-10"]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("iter_0000100", 100),
        ("epoch=1-step=200.ckpt", 200),
        ("epoch=3-step=40-v1.ckpt", 40),
        ("global_step12", 12),
        ("last.ckpt", None),
    ],
)
def test_the_step_of_a_name(name: str, step: int | None) -> None:
    assert step_in(name) == step
