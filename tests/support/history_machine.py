"""A run that starts, saves, crashes and falls back at random, with the real code for everything about checkpoints.

The machine knows which checkpoints were reported as committed, and which bytes were flipped. After every action the
newest good checkpoint of those last reported, or a newer one, must load once the vanished files are back. The same
holds for the newest one that was proven.
"""

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast_agent.checkpoints.claim import OtherRunError, claim, owners_of
from holdfast_agent.checkpoints.known_checkpoints import KnownCheckpoints
from holdfast_agent.checkpoints.restore_sources import CheckpointInventory
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.history import folder_name
from holdfast_checkpoint.format.shard_index import shard_path, step_directory
from holdfast_checkpoint.format.slot_shard import read_shard, write_shard
from holdfast_checkpoint.store.download import CheckpointDownload
from holdfast_checkpoint.store.histories import Histories, StorePlace
from holdfast_checkpoint.store.locations import HistoryCheckpoints
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints
from holdfast_checkpoint.store.secondary import Secondary
from holdfast_core.checkpointing import restore_point
from holdfast_proto.snapshot import Slot
from holdfast_proto.v1 import store_pb2 as store
from tests.support.vanishing_files import CrashError, Crashes, Folder, Storage, whole

if TYPE_CHECKING:
    from tests.support.object_places import Place
    from tests.support.snapshots import Snapshots

RANKS = 2
KEPT = 2


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was reported as committed."""

    number: int
    """Number of the save. Later saves have higher numbers."""
    step: int
    generation: int
    history: int
    was_reported: bool = True
    """False if the process died between the commit and the report."""


class HistoryMachine:
    """One run, of which at most one process lives at a time."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        snapshots: "Snapshots",
        open_run: Callable[[str], RunCheckpoints],
        *,
        monkeypatch: pytest.MonkeyPatch,
        storage: Storage,
    ) -> None:
        self.random = random.Random(seed)
        self.crashes = Crashes()
        self.reported: list[Saved] = []
        self.flipped: set[tuple[int, int]] = set()
        """History and step of each damaged checkpoint."""
        self.log: list[str] = []
        self.storage = storage
        self.second: Place | None = None
        """Secondary place, if there is one."""
        self._copied: Saved | None = None
        self._proven: Saved | None = None
        self._folder = folder
        self._snapshots = snapshots
        self._open_run = open_run
        self._run = "first"
        self._instances = 0
        self._generation = 0
        self._saves = 0
        self._numbers: dict[tuple[int, int], int] = {}
        """Generation and step of a save -> its number."""
        self._step = -1
        self._checkpoints: RunCheckpoints | None = None
        self._inventory: CheckpointInventory | None = None
        self._unreadable: set[int] = set()
        self._target = snapshots.empty()
        for name in ("rename", "unlink", "mkdir"):
            self._intercept(monkeypatch, name)

    def _intercept(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(os, name)

        def changed(*arguments: Any, **options: Any) -> Any:
            return self.crashes.call(lambda: real(*arguments, **options), self.random)

        monkeypatch.setattr(os, name, changed)

    # Actions

    def act(self) -> None:
        """Do something at random, and check that no checkpoint is lost."""
        actions: list[tuple[int, Callable[[], None]]] = [(3, self.start), (8, self.save), (2, self.die), (1, self.keep)]
        actions += [(2, self.copy), (3, self.vanish), (3, self.come_back), (2, self.flip)]
        actions += [(2, self.prove), (1, self.start_from_scratch), (1, self.start_as_another)]
        weights, choices = zip(*actions, strict=True)
        action = self.random.choices(choices, weights)[0]
        by_us = action not in (self.vanish, self.come_back, self.flip)
        self.crashes.left = self.random.randrange(1, 30) if by_us and self.random.random() < 0.3 else None
        self.log.append(action.__name__)
        try:
            action()
        except CrashError:
            self.log.append("crashed")
            self._stop()
            self.crashes.left = None
            self._take_in_unreported()
        self.crashes.left = None
        self.check()

    def start(self, *, from_scratch: bool = False, adopt: bool = False) -> None:
        """Start the run in a new process, or start a new generation in the process that lives."""
        if self._inventory is None or from_scratch or adopt:
            self._stop()
            try:
                if not self._open(from_scratch=from_scratch, adopt=adopt):
                    return
            except OtherRunError:  # a take-over was cut off before it counted
                self._run = "second" if self._run == "first" else "first"
                return
        self._generation += 1
        self._choose()

    def start_from_scratch(self) -> None:
        """Start the run from its seed."""
        self.start(from_scratch=True)

    def start_as_another(self) -> None:
        """Start under another name: without ``adopt``, which is refused, and then with it."""
        self._stop()
        try:
            owners = owners_of(self._open_run(self._run))
        except CheckpointError:
            return
        self._run = "second" if owners == {"first"} else "first"
        if owners:
            with pytest.raises((OtherRunError, CheckpointError, CrashError)):
                assert not self._open(), "another run's checkpoints were taken without --adopt"
                raise CheckpointUnavailable
        self.start(adopt=True)

    def save(self) -> None:
        """Train some steps and take a checkpoint."""
        if self._checkpoints is None:
            return
        step = self._step + self.random.randrange(1, 4)
        self._saves += 1
        self._numbers[self._generation, step] = self._saves
        try:
            base = self._checkpoints.at(step).base_for(
                step, run=self._run, world_size=RANKS, generation=self._generation, full_every=3
            )
            directory = self._checkpoints.at(step).step_directory(step)
            for rank in range(RANKS):
                slot = self._snapshots.slot(rank, step, generation=self._generation)
                write_shard(slot, directory, run=self._run, world_size=RANKS, base_step=base)
                slot.unlink()
                self._checkpoints.at(step).publish(step, rank)
            manifest = self._checkpoints.commit_if_complete(step, RANKS, self._run)
            assert self._inventory is not None
            self._inventory.look()
        except CheckpointError as error:
            self.log.append(f"  step {step}: {error}")
            return
        self._step = step
        self.log.append(f"  step {step} of generation {self._generation}, base {base}, in {self._checkpoints.history}")
        if manifest is not None and manifest.generation == self._generation:
            self.reported.append(Saved(self._saves, step, self._generation, self._checkpoints.history))

    def die(self) -> None:
        """End the process."""
        self._stop()

    def keep(self) -> None:
        """Pin a checkpoint."""
        if self._checkpoints is not None and self.reported:
            try:
                step = self.reported[-1].step
                self._checkpoints.at(step).keep(step, "a spike")
            except CheckpointError as error:
                self.log.append(f"  {error}")

    def prove(self) -> None:
        """Mark the newest checkpoint of the present history as proven."""
        if self._checkpoints is None or not self.reported or self.reported[-1].history != self._checkpoints.history:
            return
        try:
            step = self.reported[-1].step
            self._checkpoints.at(step).prove(step, step + 1)
            self._proven = self.reported[-1]
        except CheckpointError as error:
            self.log.append(f"  not proven: {error}")

    def copy(self) -> None:
        """Copy what is missing to the secondary place. It keeps as many checkpoints as the first place."""
        if self._checkpoints is None or self.second is None:
            return
        secondary = Secondary(self._checkpoints, self.second.open(), run=self._run, kept=KEPT)
        secondary._own_ranks = lambda: (range(RANKS), RANKS)
        try:
            secondary._copy_all()
        except CheckpointError as error:
            self.log.append(f"  not copied: {error}")
        expected, there = self._expected(), self._in_second()
        if expected is not None and expected.number in there:
            self._copied = expected

    def vanish(self) -> None:
        """Move some files away."""
        for name in self.random.sample(files := self.storage.files(), min(len(files), self.random.randrange(1, 4))):
            if self.storage.vanish(name):
                self.log.append(f"  {name} vanishes")

    def come_back(self) -> None:
        """Move all files back."""
        self.storage.come_back()

    def flip(self) -> None:
        """Damage one of the checkpoints that were reported, in a folder."""
        if not isinstance(self.storage, Folder):
            return
        good = [saved for saved in self.reported[-KEPT:] if self._is_good(saved)]
        if len(good) < KEPT:
            return
        saved = self.random.choice(good)
        directory = step_directory(self.storage.path / folder_name(saved.history), saved.step)
        path = shard_path(directory, self.random.randrange(RANKS))
        if not path.exists():
            return
        data = bytearray(path.read_bytes())
        data[self.random.randrange(len(data))] ^= 1
        path.write_bytes(data)
        self.flipped.add((saved.history, saved.step))
        self.log.append(f"  step {saved.step} of history {saved.history} is damaged")

    # The run's own logic, as agent and daemon have it

    def _open(self, *, from_scratch: bool = False, adopt: bool = False) -> bool:
        """Act as a new agent; return whether it could start."""
        self._instances += 1
        checkpoints = self._open_run(self._run)
        known = KnownCheckpoints("place", self._folder / "known.json")
        spec = store.RunSpec(
            run=self._run, instance=str(self._instances), from_scratch=from_scratch, adopt=adopt, command=["true"]
        )
        try:
            checkpoints.present.check_writable()
            claim(checkpoints, known, spec, "place")
            inventory = CheckpointInventory(checkpoints, None, known, self._run)
        except CheckpointError as error:
            self.log.append(f"  refused: {error}")
            return False
        self._checkpoints, self._inventory = checkpoints, inventory
        self._unreadable = set()
        return True

    def _choose(self) -> None:
        """Start from the core's choice. A missing file ends the start; after a damaged one the core chooses again."""
        assert self._inventory is not None
        assert self._checkpoints is not None
        while True:
            try:
                self._inventory.look()
            except CheckpointError as error:
                self.log.append(f"  not seen: {error}")  # the agent continues with what it knew before
            inventory = self._inventory
            node = store.NodeState(
                history=inventory.history, checkpoints=inventory.committed, damaged_checkpoints=inventory.damaged
            )
            point = restore_point.choose({"node0": node}, RANKS, self._unreadable)
            self._generation = max(self._generation, inventory.newest_generation + 1)
            if point is None:
                self.log.append("  refused: all are damaged")
                self._stop()
                return
            try:
                if point.history is not None:
                    inventory.begin_history(point.history)
                    self._unreadable = {step for step in self._unreadable if step <= point.step}
                if point.source == store.SOURCE_SEED:
                    lost = self._expected()
                    is_there = lost is not None and self._is_in_line(self._checkpoints, lost)
                    assert not is_there, f"from the seed, though {lost} was committed"
                else:
                    self._load(self._checkpoints, point.step)
            except CheckpointUnreadable as error:
                self.log.append(f"  {error}")
                self._unreadable.add(point.step)
                continue
            except CheckpointError as error:
                self.log.append(f"  waits: {error}")
                self._stop()
                return
            self._step = point.step
            self.log.append(f"  generation {self._generation} from step {point.step} in {inventory.history}")
            return

    def _load(self, checkpoints: RunCheckpoints, step: int) -> tuple[int, int]:
        """Read and compare the state of all ranks; return generation and step of the save."""
        directory = checkpoints.at(step).fetch(step)
        return self._read(directory, checkpoints.at(step).load_manifest(step).generation, step)

    def _read(self, directory: Path, generation: int, step: int) -> tuple[int, int]:
        for rank in range(RANKS):
            read_shard(directory, rank, self._target, generation=99)
            with Slot(self._target) as slot:
                found = {entry.name: bytes(slot.tensor_bytes(entry)) for entry in slot.meta().tensors}
            assert found == self._snapshots.tensors(rank, step, generation)
        return generation, step

    def _stop(self) -> None:
        left, self.crashes.left = self.crashes.left, None
        if self._inventory is not None:
            self._inventory.close()
        self._inventory = self._checkpoints = None
        self.crashes.left = left

    def _take_in_unreported(self) -> None:
        """Add a checkpoint that was committed, but not reported before the crash. Older ones may be removed for it."""
        checkpoints = self._open_run(self._run)
        with suppress(CheckpointError):
            checkpoints.histories.refresh()
            current = checkpoints.histories.part(checkpoints.history)
            for step, manifest in current.manifests().items():
                number = self._numbers.get((manifest.generation, step))
                if number == self._saves and all(saved.number != number for saved in self.reported):
                    self.reported.append(
                        Saved(number, step, manifest.generation, checkpoints.history, was_reported=False)
                    )

    # What must hold

    def _expected(self) -> Saved | None:
        """Return the newest good one of the last reported checkpoints."""
        return next(
            (saved for saved in reversed(self.reported[-KEPT:]) if saved.was_reported and self._is_good(saved)), None
        )

    def _is_good(self, saved: Saved) -> bool:
        """Return whether no bit was flipped in a checkpoint or in those that it builds on."""
        if (saved.history, saved.step) in self.flipped:
            return False
        same = {one.step for one in self.reported if (one.history, one.generation) == (saved.history, saved.generation)}
        return not any(
            history == saved.history and step in same and step < saved.step for history, step in self.flipped
        )

    def check(self) -> None:
        """Check that the newest good reported checkpoint, or a newer one, loads when all files are there."""
        if self._copied is not None and self._is_good(self._copied):
            newest = max(self._in_second(), default=-1)
            assert newest >= self._copied.number, f"{self._copied} is lost in the secondary place"
        with whole(self.storage):
            if self._proven is not None and self._is_good(self._proven):
                checkpoints = self._open_run(self._run)
                checkpoints.histories.refresh()
                newest = self._newest(checkpoints, is_proven=True)
                assert newest >= self._proven.number, f"{self._proven} was proven and is lost"
            expected = self._expected()
            if expected is not None:
                self._check_loads(expected)

    def _check_loads(self, expected: Saved) -> None:
        checkpoints = self._open_run(self._run)
        checkpoints.histories.refresh()
        newest = self._newest(checkpoints)
        assert newest >= expected.number, f"{expected} is lost, the newest that loads is save {newest}"
        if self._is_in_line(checkpoints, expected):
            assert self._chosen(checkpoints) >= expected.number, f"{expected} is not chosen"

    def _is_in_line(self, checkpoints: RunCheckpoints, saved: Saved) -> bool:
        """Return whether a checkpoint belongs to the present line of training. --from-scratch begins another line."""
        return saved.history in [stretch.history for _, stretch in checkpoints.histories.line()]

    def _in_second(self) -> set[int]:
        """Return the numbers of the saves that load from the secondary place."""
        assert self.second is not None
        remote, found = self.second.open(), set()
        histories = Histories(StorePlace(remote.store), remote.of_history)
        histories.refresh()
        for part in (*histories.older(), histories.part(histories.current)):
            for step, manifest in part.manifests().items():
                into = self._folder / "second"
                with suppress(CheckpointError):
                    directory = CheckpointDownload(part, step, into).fetch()
                    found.add(self._numbers[self._read(directory, manifest.generation, step)])
                shutil.rmtree(into, ignore_errors=True)
        return found

    def _newest(self, checkpoints: RunCheckpoints, *, is_proven: bool = False) -> int:
        """Return the number of the newest save, or the newest proven one, that loads, in any history."""
        numbers = [-1]
        for part in (*checkpoints.histories.older(), checkpoints.histories.part(checkpoints.history)):
            steps = part.proven(part.manifests()) if is_proven else part.manifests()
            numbers += [self._number(part, step) for step in steps]
        return max(numbers)

    def _chosen(self, checkpoints: RunCheckpoints) -> int:
        """Return the number of the save from which a start would continue."""
        steps = checkpoints.committed()
        part = checkpoints.histories.of_step
        return next((number for step in reversed(steps) if (number := self._number(part(step), step)) >= 0), -1)

    def _number(self, part: HistoryCheckpoints, step: int) -> int:
        try:
            manifest = part.load_manifest(step)
            return self._numbers[self._read(part.fetch(step), manifest.generation, step)]
        except (CheckpointUnreadable, CheckpointUnavailable):
            return -1
