"""Takes a rank's snapshots: copies of its state in a slot, at the end of a step. Training thread only.

A rank has two slots or more, and they take turns. From the first snapshot on, one of them always holds a complete one,
so that a rank that dies in the middle of a copy leaves the one before.

A checkpoint pins the slot with its snapshot, and so does a replica snapshot. The agent reads it while training
continues, and releases it once the shard is written. Until then snapshots continue in the other slots.
"""

import functools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast_hooks.gpu_work import gpu_of
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.phases import Phase
from holdfast_hooks.snapshots.device_copies import CudaCopyStream, DeviceCopies, DeviceCopy, Landing
from holdfast_hooks.snapshots.slot_choice import choose_slot, complete_slot, may_pin_replica
from holdfast_hooks.snapshots.slot_layout import LaidOutMeta, SlotLayout, SlotTensors, lay_out
from holdfast_hooks.snapshots.slot_requests import LEAST_SLOTS, GrantedSlots, SlotRequests
from holdfast_hooks.state import bucket_order, own_state, random_states
from holdfast_hooks.state.encoding import Image, Stateful, encode_state
from holdfast_hooks.state.own_state import OwnStates
from holdfast_hooks.telemetry.own_device import OwnDevice
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.rank_context import RankContext
from holdfast_proto.snapshot import DATA_OFFSET, Slot, align
from holdfast_proto.v1.session_pb2 import SnapshotTaken

_GRANT_WAIT_S = 30.0
"""Longest wait for slots after the last step."""
_PIN_WAIT_S = 60.0
"""Longest wait after the last step until the agent has written the checkpoint before."""
_WAIT_STEP_S = 0.01
_META_GROWTH_BYTES = 1 << 20
_LATE_SLOTS = 3
"""Slots of a rank on a GPU, whose copies end during the next step. Another rank may already end that step and overwrite
its older slot. With a third slot both ranks still hold the step before."""


class SnapshotTaker:
    """Decides at the end of each step whether a snapshot is due, chooses the slot and copies the state into it.

    It counts and logs failures and never raises them: training continues without a snapshot. It waits for nothing but
    the copy, except after the last step: then also for slots, and until the agent has written the checkpoint before.

    Args:
        late: is called, in another thread, with each snapshot that becomes complete after the end of its step. These
            are snapshots with tensors on a GPU, whose copies overlap with the next step. Without ``late``, or with
            fewer than _LATE_SLOTS slots, the training thread waits for these copies too.
        own: parts of the hooks that are saved, too.
    """

    def __init__(
        self,
        *,
        state: Mapping[str, Stateful],
        context: RankContext,
        rank: int,
        slot_requests: SlotRequests,
        timeline: Timeline,
        once: OnceLog,
        device: OwnDevice,
        coordinates: Mapping[str, int] | None = None,
        late: Callable[[SnapshotTaken], None] | None = None,
        own: OwnStates | None = None,
    ) -> None:
        self.skipped_total = 0
        self.refusal = ""
        """Reason why this rank takes no more snapshots; empty if it does."""
        self.replay_every = 0
        """Steps from one that is replayed to the next, which needs the snapshot of the step before; 0: none is."""
        self._state = state
        self._coordinates = coordinates or {}
        self.context = context
        """Settings of the rank. They name the state that it starts from as soon as that is known."""
        self._rank = rank
        self._slot_requests = slot_requests
        self._timeline = timeline
        self._device = device
        self._once = once
        self._measured = False
        self._layout: SlotLayout | None = None
        self._copier: _Copier | None = None
        self._late = late
        self._own = own or {}
        self._device_copies: DeviceCopies | None = None
        self._landing: Landing | None = None
        self._wrappers: weakref.WeakValueDictionary[str, Any] | None = None
        """Wrappers whose buckets a restart brings back, searched for once."""

    def capture(self) -> Image:
        """Encode the state and what the process holds itself; nothing is copied.

        Raises TypeError if that is not possible.
        """
        live = {name: stateful.state_dict() for name, stateful in self._state.items()}
        of_process = random_states.capture(self._device.gpu)
        if self._measured and self._wrappers is None:  # not before the first step, which wrappers may be made for
            self._wrappers = weakref.WeakValueDictionary(bucket_order.ordered_wrappers(self._state))
        if orders := bucket_order.capture(self._wrappers or {}):
            of_process[bucket_order.KEY] = orders
        return encode_state({**live, random_states.KEY: {**of_process, **own_state.capture(self._own)}})

    def at_boundary(self, step: int, *, commanded: bool, replica: bool = False, last: bool) -> SnapshotTaken | None:
        """Take a snapshot at the end of ``step`` if one is due; return it if it is complete.

        ``commanded``: the agent has asked for a checkpoint of this step. ``replica``: it has asked for a replica
        snapshot of this step. ``last``: no step follows.
        """
        checkpoint = commanded or last or _is_due(step, self.context.checkpoint_every)
        due = any(_is_due(step, every) for every in (self.context.snapshot_every, self.replay_every))
        due = due or checkpoint or replica
        if self._measured and not due:
            return None
        self._timeline.enter(Phase.CHECKPOINT)
        return self._take_guarded(step, due=due, checkpoint=checkpoint, replica=replica, last=last)

    def complete_slot(self, step: int) -> Slot | None:
        """Return the slot with the snapshot of ``step``, for which this waits; None if there is none."""
        self._await_landing()
        slots = () if self._slot_requests.grant is None else self._slot_requests.grant.slots
        return complete_slot(slots, step=step, generation=self.context.generation)

    def close(self, timeout_s: float) -> None:
        """Take no more snapshots, hook into no optimizer and keep no view of the slots.

        Waits for up to ``timeout_s`` for a snapshot whose copies are under way.
        """
        self.refusal = "this rank has closed its hooks"
        if self._landing is not None:
            self._landing.wait(timeout_s)
        if self._device_copies is not None:
            self._device_copies.close()
        self._copier = self._device_copies = self._landing = None

    def _take_guarded(
        self, step: int, *, due: bool, checkpoint: bool, replica: bool, last: bool
    ) -> SnapshotTaken | None:
        if self.refusal:
            self.skipped_total += due
            return None
        try:
            if due:
                return self._take(step, checkpoint=checkpoint, replica=replica, last=last)
            self._measure()
        except TypeError as error:
            self.refusal = str(error)
            self._once.warn("this rank takes no more snapshots", error)
        except Exception as error:  # noqa: BLE001 - the state's owner may raise anything
            self._once.warn("a snapshot failed, training continues", repr(error))
        self.skipped_total += due
        return None

    def _measure(self) -> None:
        """Ask for slots after the first step, before the first snapshot is due."""
        self._measured = True  # not before: optimizers have no state until their first step
        self._fitting_grant(self._prepare(self.capture()))

    def _take(self, step: int, *, checkpoint: bool, replica: bool, last: bool) -> SnapshotTaken | None:
        started_s = time.monotonic()
        self._measured = True
        # One snapshot at a time. Its slot could otherwise be chosen again while the device still copies into it.
        self._await_landing()
        # A disk is too slow for every snapshot: slots on it serve checkpoints alone.
        if self._slot_requests.grant is not None and self._slot_requests.grant.on_disk and not checkpoint:
            return None
        image = self.capture()
        meta = self._prepare(image)
        grant = self._fitting_grant(meta)
        if grant is None and last and _wait_for(lambda: self._answered(meta), _GRANT_WAIT_S):
            grant = self._fitting_grant(meta)
        if grant is None:
            self.skipped_total += 1
            return None
        persist = checkpoint and self._may_pin(grant, last=last)
        index = self._choose(grant)
        self.skipped_total += index is None or (checkpoint and not persist)
        if index is None or (grant.on_disk and not persist):
            return None
        taken = SnapshotTaken(step=step, slot=index, persist=persist, bytes=meta.layout.data_bytes + len(meta.encode()))
        taken.replica = replica and not grant.on_disk and may_pin_replica([s.header for s in grant.slots], index)
        left = self._copy(grant, taken, image, meta)
        if left and self._late is not None and len(grant.slots) >= _LATE_SLOTS:
            self._copy_late(left, taken, started_s, functools.partial(_commit, grant, meta, taken), self._late)
            if last:
                self._await_landing()
            return None  # it is not complete yet; ``late`` gets it when it is
        for place, part in left:
            place.copy_(part.local.detach())
        _commit(grant, meta, taken)
        taken.stall_s = time.monotonic() - started_s
        return taken

    def _prepare(self, image: Image) -> LaidOutMeta:
        layout = lay_out(image, self._layout)
        if layout is not self._layout:
            copies_late = self._late is not None and any(part.local.device.type != "cpu" for part in image.parts)
            self._slot_requests.needed_slots = _LATE_SLOTS if copies_late else LEAST_SLOTS
            self._slot_requests.gpu = gpu_of(part.local for part in image.parts)
            self._layout = layout
        return LaidOutMeta.of(image.tree, layout, self._coordinates)

    def _fitting_grant(self, meta: LaidOutMeta) -> GrantedSlots | None:
        """Return the granted slots if the snapshot fits, else have the reporter ask for larger ones."""
        needed_bytes = align(DATA_OFFSET + meta.layout.data_bytes) + len(meta.encode())
        grant = self._slot_requests.grant
        if grant is not None and needed_bytes <= grant.bytes_per_slot:
            self._slot_requests.needed_bytes = 0
            return grant
        self._slot_requests.needed_bytes = needed_bytes + len(meta.encode()) + _META_GROWTH_BYTES
        return None

    def _answered(self, meta: LaidOutMeta) -> bool:
        return bool(self._slot_requests.refusal) or self._fitting_grant(meta) is not None

    def _may_pin(self, grant: GrantedSlots, *, last: bool) -> bool:
        """Whether the agent has no other snapshot left to write."""
        return _wait_for(lambda: not any(slot.header.persist for slot in grant.slots), _PIN_WAIT_S if last else 0.0)

    def _choose(self, grant: GrantedSlots) -> int | None:
        restored = [str(slot.path) == self.context.restore_slot for slot in grant.slots]
        headers = [slot.header for slot in grant.slots]
        return choose_slot(headers, restored=restored, generation=self.context.generation)

    def _copy(self, grant: GrantedSlots, taken: SnapshotTaken, image: Image, meta: LaidOutMeta) -> list[DeviceCopy]:
        """Begin a snapshot and copy the tensors in host memory; return the copies that are left to the device."""
        if self._copier is None or not self._copier.serves(grant, meta.layout):
            self._copier = _Copier(grant, meta.layout)
        grant.slots[taken.slot].begin(generation=self.context.generation, step=taken.step, rank=self._rank)
        tensors = self._copier.tensors(taken.slot)
        left = tensors.copy(image.parts)
        taken.unchanged_bytes = tensors.unchanged_bytes
        return left

    def _copy_late(
        self,
        left: Sequence[DeviceCopy],
        taken: SnapshotTaken,
        started_s: float,
        commit: Callable[[], None],
        late: Callable[[SnapshotTaken], None],
    ) -> None:
        if self._device_copies is None:
            self._device_copies = DeviceCopies(self._state, CudaCopyStream())
        event = self._device_copies.start(left)
        taken.stall_s = time.monotonic() - started_s

        def complete() -> None:
            commit()
            late(taken)

        self._landing = Landing(event, left, complete, self._once)

    def _await_landing(self) -> None:
        """Wait for the snapshot before, if its copies are still under way."""
        if self._landing is not None:
            self._landing.wait()
            self.skipped_total += self._landing.failed
            self._landing = None


def _commit(grant: GrantedSlots, meta: LaidOutMeta, taken: SnapshotTaken) -> None:
    slot = grant.slots[taken.slot]
    slot.commit(meta, data_bytes=meta.layout.data_bytes, persist=taken.persist, replica=taken.replica)


class _Copier:
    """Keeps the tensors that view the slots while neither slots nor layout change: making them is slow."""

    def __init__(self, grant: GrantedSlots, layout: SlotLayout) -> None:
        self._grant = grant
        self._layout = layout
        self._tensors: dict[int, SlotTensors] = {}

    def serves(self, grant: GrantedSlots, layout: SlotLayout) -> bool:
        return self._grant is grant and self._layout is layout

    def tensors(self, index: int) -> SlotTensors:
        if index not in self._tensors:
            self._tensors[index] = SlotTensors(self._grant.slots[index], self._layout.entries)
        return self._tensors[index]


def _is_due(step: int, every: int) -> bool:
    return every > 0 and (step + 1) % every == 0


def _wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_WAIT_STEP_S)
    return True
