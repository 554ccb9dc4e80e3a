"""Checks an event of an agent.

What the training script reports passes as it is: a loss or a norm that is not finite is a finding, not a bad message.
What agents and hooks measure themselves must be finite.
"""

from collections.abc import Callable, Sequence
from typing import Any

from holdfast_daemon.validation.recorder_rules import check_recorder
from holdfast_daemon.validation.rules import (
    ACTIVITIES,
    LARGEST_PID,
    PATH_CHARACTERS,
    PHASES,
    RefusedError,
    check_blocked_on,
    check_count,
    check_exit,
    check_fault,
    check_files,
    check_id,
    check_known,
    check_length,
    check_line,
    check_node_name,
    check_pending,
    check_phase_times,
    check_rank,
    check_seconds,
    check_step,
    check_text,
    check_unix_s,
)
from holdfast_proto.limits import (
    FINGERPRINT_BYTES,
    LOGGED_NAME_CHARACTERS,
    MOST_LOGGED_NAMES,
    MOST_RANKS,
    MOST_WITNESS_WORDS,
    NAME_CHARACTERS,
    WITNESS_WORDS_CHARACTERS,
)
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import MEAN_FIELDS, NONFINITE_QUANTITIES

_LARGEST_EXIT_CODE = 255
_REPORTS_PER_RANK = 16
"""Of one number of one step on one node. A rank reports each once; sums over nodes must fit into 32 bits."""


def check_event(event: store.Event, spec: store.RunSpec | None) -> None:
    """Check an event."""
    check_node_name(event.node, "node")
    check_count(event.generation, "generation")
    check_unix_s(event.unix_s, "unix_s")
    kind = event.WhichOneof("kind")
    if kind is None:
        raise RefusedError("it is of no kind that this version knows")
    world_size = spec.nodes * spec.ranks_per_node if spec is not None and spec.ranks_per_node else MOST_RANKS
    try:
        _RULES[kind](getattr(event, kind), world_size)
    except RefusedError as error:
        raise RefusedError(f"{kind}: {error}") from None


def _rank_exited(exited: store.RankExited, world_size: int) -> None:
    check_rank(exited.rank, world_size, "rank")
    check_exit(exited.exit, "exit")


def _step_summary(summary: store.StepSummary, world_size: int) -> None:
    check_step(summary.step, "step")
    check_count(summary.generation, "generation")
    check_count(summary.loss_count, "loss_count", _REPORTS_PER_RANK * world_size)
    check_count(summary.tokens, "tokens")
    check_count(summary.dropped_tokens, "dropped_tokens")
    check_seconds(summary.duration_s, "duration_s")
    check_unix_s(summary.ended_unix_s, "ended_unix_s")
    check_phase_times(summary.phase_s.keys(), summary.phase_s.values(), "phase_s")
    for name in MEAN_FIELDS:
        check_count(getattr(summary, name).count, f"{name}.count", _REPORTS_PER_RANK * world_size)
    check_length(summary.nonfinite, "nonfinite", MOST_RANKS)
    for bad in summary.nonfinite:
        check_rank(bad.rank, world_size, "nonfinite")
        if bad.quantity not in NONFINITE_QUANTITIES:
            raise RefusedError(f"nonfinite.quantity is {bad.quantity[:80]!r}")
        check_text(bad.module, "nonfinite.module")
        check_text(bad.parameter, "nonfinite.parameter")
        check_unix_s(bad.unix_s, "nonfinite.unix_s")
    check_length(summary.samples, "samples", MOST_RANKS)
    for use in summary.samples:
        check_rank(use.rank, world_size, "samples")
        check_length(use.fingerprint, "samples.fingerprint", FINGERPRINT_BYTES)
    _hashes(summary.replicas, world_size, "replicas")
    _hashes(summary.plain, world_size, "plain")
    check_length(summary.coverage, "coverage", MOST_RANKS)
    for coverage in summary.coverage:
        check_rank(coverage.rank, world_size, "coverage.rank")
        check_count(coverage.replica_bytes, "coverage.replica_bytes")
        check_count(coverage.plain_bytes, "coverage.plain_bytes")
        check_count(coverage.parameter_bytes, "coverage.parameter_bytes")


def _hashes(sides: Sequence[store.ReplicaHashes], world_size: int, field: str) -> None:
    check_length(sides, field, MOST_RANKS)
    for side in sides:
        check_text(side.part, f"{field}.part")
        check_length(side.ranks, f"{field}.ranks", MOST_RANKS)
        for rank in side.ranks:
            check_rank(rank, world_size, f"{field}.ranks")


def _checkpoint_committed(committed: store.CheckpointCommitted, _: int) -> None:
    check_step(committed.step, "step")
    check_seconds(committed.duration_s, "duration_s")


def _checkpoint_lost(lost: "store.CheckpointFailed | store.CheckpointUnreadable", _: int) -> None:
    check_step(lost.step, "step")
    check_text(lost.reason, "reason")


def _memory_refused(refused: store.SnapshotMemoryRefused, _: int) -> None:
    check_text(refused.directory, "directory")


def _evidence_captured(captured: store.EvidenceCaptured, world_size: int) -> None:
    check_id(captured.incident, "incident")
    check_id(captured.suspicion, "suspicion")
    check_files(captured.files, "files")
    check_length(captured.pending, "pending", MOST_RANKS)
    for call in captured.pending:
        check_pending(call, world_size, "pending")
    check_length(captured.stacks, "stacks", MOST_RANKS)
    for stack in captured.stacks:
        check_rank(stack.rank, world_size, "stacks")
        check_known(stack.activity, ACTIVITIES, "stacks.activity")
        check_text(stack.frame, "stacks.frame", NAME_CHARACTERS * 16)
        if stack.HasField("blocked_on"):
            check_blocked_on(stack.blocked_on, "stacks.blocked_on")
    check_length(captured.recorders, "recorders", MOST_RANKS)
    for recorder in captured.recorders:
        check_rank(recorder.rank, world_size, "recorders")
        check_recorder(recorder.dump)
    check_length(captured.places, "places", MOST_RANKS)
    for place in captured.places:
        check_rank(place.rank, world_size, "places")
        check_step(place.step, "places.step")
        check_known(place.phase, PHASES, "places.phase")


def _command_refused(refused: store.CommandRefused, _: int) -> None:
    check_text(refused.reason, "reason")


def _fault_injected(injected: store.FaultInjected, _: int) -> None:
    check_fault(injected.fault)
    check_step(injected.step, "step")
    check_text(injected.waits_for, "waits_for")


def _fault_refused(refused: store.FaultRefused, _: int) -> None:
    check_fault(refused.fault)
    check_text(refused.reason, "reason")


def _end_announced(announced: store.EndAnnounced, _: int) -> None:
    check_seconds(announced.within_s, "within_s")


def _launcher_end(ended: store.LauncherEnd, _: int) -> None:
    check_count(ended.code, "code", _LARGEST_EXIT_CODE)


def _stacks_taken(taken: store.StacksTaken, world_size: int) -> None:
    check_id(taken.request, "request")
    check_length(taken.frames, "frames")
    for frame in taken.frames:
        check_line(frame.function, "frames.function", PATH_CHARACTERS)
        check_line(frame.file, "frames.file", PATH_CHARACTERS)
    check_length(taken.ranks, "ranks", MOST_RANKS)
    for rank in taken.ranks:
        check_rank(rank.rank, world_size, "ranks")
        check_count(rank.pid, "ranks.pid", LARGEST_PID)
        check_line(rank.problem, "ranks.problem", PATH_CHARACTERS)
        check_known(rank.activity, ACTIVITIES, "ranks.activity")
        check_length(rank.threads, "ranks.threads")
        for thread in rank.threads:
            check_line(thread.name, "ranks.threads.name", NAME_CHARACTERS)
            check_count(thread.id, "ranks.threads.id", LARGEST_PID)
            check_length(thread.frames, "ranks.threads.frames")
            if thread.frames and max(thread.frames) >= len(taken.frames):
                raise RefusedError(f"ranks.threads.frames names frame {max(thread.frames)} of {len(taken.frames)}")


def _profile_taken(taken: store.ProfileTaken, world_size: int) -> None:
    check_id(taken.request, "request")
    check_rank(taken.rank, world_size, "rank")
    check_length(taken.files, "files")
    for path in taken.files:
        check_line(path, "files", PATH_CHARACTERS)
    check_line(taken.problem, "problem", PATH_CHARACTERS)
    check_step(taken.first_step, "first_step")
    check_step(taken.last_step, "last_step")


def _numbers_logged(logged: store.NumbersLogged, world_size: int) -> None:
    check_length(logged.numbers, "numbers", MOST_LOGGED_NAMES)
    for number in logged.numbers:
        check_line(number.name, "numbers.name", LOGGED_NAME_CHARACTERS)
        check_step(number.step, "numbers.step")
        check_rank(number.rank, world_size, "numbers.rank")


def _witness_words(said: session.WitnessWords, world_size: int) -> None:
    check_line(said.witness, "witness", NAME_CHARACTERS)
    check_length(said.words, "words", MOST_WITNESS_WORDS)
    for words in said.words:
        check_line(words.text, "words.text", WITNESS_WORDS_CHARACTERS)
        check_length(words.ranks, "words.ranks", MOST_RANKS)
        if not words.ranks:
            raise RefusedError("words name no rank")
        for rank in words.ranks:
            check_rank(rank, world_size, "words.ranks")


_RULES: dict[str, Callable[[Any, int], None]] = {
    "rank_exited": _rank_exited,
    "step_summary": _step_summary,
    "checkpoint_committed": _checkpoint_committed,
    "checkpoint_failed": _checkpoint_lost,
    "checkpoint_unreadable": _checkpoint_lost,
    "evidence_captured": _evidence_captured,
    "command_refused": _command_refused,
    "snapshot_memory_refused": _memory_refused,
    "fault_injected": _fault_injected,
    "fault_refused": _fault_refused,
    "end_announced": _end_announced,
    "launcher_end": _launcher_end,
    "stacks_taken": _stacks_taken,
    "profile_taken": _profile_taken,
    "numbers_logged": _numbers_logged,
    "witness_words": _witness_words,
}
