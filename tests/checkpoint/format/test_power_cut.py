import random
from pathlib import Path

import pytest

from holdfast_checkpoint.format import durable
from holdfast_checkpoint.format.slot_shard import read_shard, write_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from tests.checkpoint.conftest import contents
from tests.support.disk import RecordingOs, ends
from tests.support.snapshots import RUN, Snapshots

RANKS = 2


def tensors(rank: int, step: int, generation: int, bulk_bytes: int = 0) -> dict[str, bytes]:
    """Return a state that is worth storing as a difference. Its contents show which step it is from."""
    own = f"{rank} {step} {generation}"
    bulk = {"bulk": random.Random(own).randbytes(bulk_bytes)} if bulk_bytes else {}
    return {"common": bytes(range(251)) * 12, "own": own.encode(), **bulk}


class Agent:
    """An agent that saves checkpoints on a disk that is recorded."""

    def __init__(self, path: Path, snapshots: Snapshots, *, kept: int, full_every: int, bulk_bytes: int = 0) -> None:
        self.checkpoints = CheckpointDirectory(path, kept=kept)
        self.record = RecordingOs()
        self.committed: list[tuple[int, int]] = []
        """Number of calls done, and the step that was committed by then."""
        self._snapshots = snapshots
        self._full_every = full_every
        self._bulk_bytes = bulk_bytes

    def save(self, *steps: int, generation: int = 1) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(durable, "os", self.record)
            for step in steps:
                self._save(step, generation)

    def _save(self, step: int, generation: int) -> None:
        for rank in range(RANKS):
            base = self.checkpoints.base_for(
                step, run=RUN, world_size=RANKS, generation=generation, full_every=self._full_every
            )
            state = tensors(rank, step, generation, self._bulk_bytes)
            slot = self._snapshots.slot(rank, step, generation=generation, tensors=state)
            write_shard(slot, self.checkpoints.step_directory(step), run=RUN, world_size=RANKS, base_step=base)
        assert self.checkpoints.commit_if_complete(step, RANKS, RUN) is not None
        self.committed.append((len(self.record.calls), step))

    def expect_newest_whole_whenever_it_ends(self, left: Path) -> int:
        """Check the newest checkpoint after each possible end. Return after how many of them there must be one."""
        ends_with_one = 0
        for done in ends(self.record.calls, left):
            found = CheckpointDirectory(left / self.checkpoints.path.relative_to("/"), kept=self.checkpoints.kept)
            surely = [step for calls, step in self.committed if calls <= done]
            steps = found.committed()
            assert not surely or (steps and steps[-1] >= surely[-1])
            if steps:
                self._expect_whole(found, steps[-1])
            ends_with_one += bool(surely)
        return ends_with_one

    def _expect_whole(self, checkpoints: CheckpointDirectory, step: int) -> None:
        manifest = checkpoints.verify(step)
        target = self._snapshots.empty(self._bulk_bytes + (1 << 20))
        for rank in range(RANKS):
            read_shard(checkpoints.step_directory(step), rank, target, generation=9)
            assert contents(target) == tensors(rank, step, manifest.generation, self._bulk_bytes)
        target.unlink()


def test_newest_committed_loads_whenever_the_power_is_cut_or_the_writer_killed(
    snapshots: Snapshots, tmp_path: Path
) -> None:
    agent = Agent(tmp_path / "checkpoints", snapshots, kept=3, full_every=3)
    agent.save(10, 20, 30, 40, 50)
    agent.save(60, 70, 80, 90, generation=2)
    manifests = [agent.checkpoints.load_manifest(step) for step in agent.checkpoints.committed()]
    assert [(manifest.step, manifest.bases) for manifest in manifests] == [(60, ()), (70, (60,)), (80, (60,)), (90, ())]
    agent.expect_newest_whole_whenever_it_ends(tmp_path / "left")


def test_shard_that_takes_several_writes_is_whole_whenever_the_power_is_cut_or_the_writer_killed(
    snapshots: Snapshots, tmp_path: Path
) -> None:
    agent = Agent(tmp_path / "checkpoints", snapshots, kept=1, full_every=1, bulk_bytes=(5 << 20) + 5)
    agent.save(10, 20)
    agent.expect_newest_whole_whenever_it_ends(tmp_path / "left")


@pytest.mark.parametrize("full_every", [1, 3])
def test_only_checkpoint_that_is_kept_goes_when_the_next_is_on_the_disk(
    full_every: int, snapshots: Snapshots, tmp_path: Path
) -> None:
    agent = Agent(tmp_path / "checkpoints", snapshots, kept=1, full_every=full_every)
    agent.save(10, 20, 30)
    assert agent.checkpoints.committed() == ([30] if full_every == 1 else [10, 30])
    assert agent.expect_newest_whole_whenever_it_ends(tmp_path / "left") > 50
