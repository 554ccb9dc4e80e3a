"""Helpers that show detectors the state of ranks at one moment."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from holdfast_core.deadlines import Deadlines
from holdfast_core.detectors.framework import Detector
from holdfast_core.detectors.view import MissingNode, View
from holdfast_proto.member_runs import runs_of
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.recorder_pb2 import RecorderDump

NOW = 1000.0
LATE_S = 6.0
"""Seconds beyond the deadline of a step of the default preset, and within that of an occasional phase."""

TRAINING = common.PHASE_FORWARD_BACKWARD


class Ranks:
    """The ranks of a run, four on a node. All are alive and training, and have stood still for LATE_S seconds.

    Methods that change them return them, so that calls can be chained.
    """

    def __init__(self, count: int = 4) -> None:
        self.ranks = {
            number: store.RankState(
                rank=number,
                life=store.LIFE_RUNNING,
                process_state="S",
                thread_state="S",
                device="cpu",
                stalled_s=LATE_S,
                silent_s=0.1,
                steps_done=50,
                progress=common.Progress(step=50, phase=TRAINING),
            )
            for number in range(count)
        }
        self.stacks: dict[int, store.StackSummary] = {}
        self.recorders: dict[int, RecorderDump] = {}
        self.missing: set[str] = set()
        self.missing_since_unix_s = NOW - 3.0
        self.first_exit_unix_s = 0.0
        self.is_first_start = False

    def __getitem__(self, number: int) -> store.RankState:
        return self.ranks[number]

    def set(self, *numbers: int, **fields: Any) -> Self:
        """Set fields of the states of ranks; ``phase`` and ``step`` are those of their progress."""
        for number in numbers:
            for name, value in fields.items():
                setattr(self[number].progress if name in ("phase", "step") else self[number], name, value)
        return self

    def group(self, name: str, enqueued: Mapping[int, int], completed: int, description: str = "") -> Self:
        for number, seq in enqueued.items():
            self[number].progress.groups.add(
                group=name,
                member_runs=runs_of(sorted(enqueued)),
                enqueued=seq,
                completed=min(seq, completed),
                description=description,
            )
        return self

    def channel(self, source: int, target: int, *, sent: int, delivered: int, posted: int, received: int) -> Self:
        self[source].progress.channels.add(
            group="pp", peer=target, direction=common.DIRECTION_SEND, enqueued=sent, completed=delivered
        )
        self[target].progress.channels.add(
            group="pp", peer=source, direction=common.DIRECTION_RECV, enqueued=posted, completed=received
        )
        return self

    def called(self, numbers: Iterable[int], group: str, seq: int, op: str, *inputs: str) -> Self:
        """Give ranks a pending call. ``inputs``: sizes and data types of its inputs."""
        sizes, dtypes = (*inputs, "", "")[:2]
        for number in numbers:
            self[number].pending.add(group=group, seq=seq, op=op, sizes=sizes, dtypes=dtypes)
        return self

    def stack(self, number: int, activity: "common.Activity", frame: str = "") -> Self:
        self.stacks[number] = store.StackSummary(rank=number, frame=frame, activity=activity)
        return self

    def end(self, number: int, at: float = NOW - 0.1, **how: Any) -> Self:
        self[number].life = store.LIFE_EXITED
        self[number].exit.CopyFrom(store.RankExit(exited_unix_s=at, step=50, phase=TRAINING, **how))
        if how.get("code") != 0:
            self.first_exit_unix_s = min(self.first_exit_unix_s or at, at)
        return self

    def view(self, *, suspicious: bool = False) -> View:
        node_of = {number: f"node{number // 4}" for number in self.ranks}
        deadlines = Deadlines.for_preset(store.PRESET_DEFAULT)
        for _ in range(3):
            deadlines = deadlines.observe(0.3, {})
        lost = {
            name: MissingNode(
                since_unix_s=self.missing_since_unix_s,
                state=store.NodeState(
                    node=name,
                    ranks=[self[number] for number, node in node_of.items() if node == name],
                    reported_unix_s=NOW - 8.0,
                ),
            )
            for name in self.missing
        }
        return View(
            now=NOW,
            world_size=len(self.ranks),
            ranks={number: rank for number, rank in self.ranks.items() if node_of[number] not in self.missing},
            node_of=node_of,
            missing_nodes=lost,
            deadlines=deadlines,
            first_exit_unix_s=self.first_exit_unix_s,
            stacks=self.stacks,
            recorders=self.recorders,
            suspicious=suspicious,
            is_first_start=self.is_first_start,
        )

    def verdict(self, detector: Detector) -> store.Verdict | None:
        """Return the verdict of a detector that sees these ranks."""
        finding = detector.see_tick(self.view()).findings
        assert len(finding) <= 1
        return finding[0].verdict if finding else None

    def found(self, detector: Detector) -> store.Verdict:
        """Return the verdict of a detector that must have one."""
        verdict = self.verdict(detector)
        assert verdict is not None
        return verdict

    def culprits(self, detector: Detector) -> list[int]:
        """Return the ranks that a detector names; none if it has no verdict."""
        verdict = self.verdict(detector)
        return list(verdict.culprits) if verdict else []


def hung_in_one_group(culprit: int = 1) -> Ranks:
    """Return four ranks, of which all but one are in a collective."""
    ranks = Ranks()
    ranks.group("0", {number: 10 if number == culprit else 11 for number in range(4)}, 10, "mesh_dp")
    return ranks
