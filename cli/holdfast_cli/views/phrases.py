"""Enum values, numbers and incidents as people read them."""

import math
from collections import Counter

from holdfast_cli.control import counted_ranks
from holdfast_cli.views.clean_text import one_line
from holdfast_core.naming import run_phase_text
from holdfast_core.texts.incident_lines import enum_phrase, number_of
from holdfast_proto import left_out
from holdfast_proto.v1.common_pb2 import (
    OWN_TIME_SOURCE_EVENTS,
    OWN_TIME_SOURCE_HOST,
    OWN_TIME_SOURCE_NONE,
    RECORDER_SOURCE_BACKEND,
    RECORDER_SOURCE_GENERIC,
    RECORDER_SOURCE_NONE,
    OwnTimeSource,
    Phase,
)
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_OPEN,
    INCIDENT_STATE_STANDSTILL,
    RUN_PHASE_FINISHED,
    FaultInjected,
    FaultRefused,
)
from holdfast_proto.vocabulary import PRODUCTIVE

_STANDING = (INCIDENT_STATE_OPEN, INCIDENT_STATE_STANDSTILL)
_LOSSES_SHOWN = 2
_LOGGED_SHOWN = 8
_LEAST_SHOWN_S = 0.5
"""Shortest loss that is shown: a shorter one would show as 0 s."""


def phase_text(status: RunStatus) -> str:
    """Return the phase of a run for people."""
    stands_still = status.urgent_incident.state in _STANDING
    return run_phase_text(status.phase, status.outcome, stands_still=stands_still)


def place_text(view: RankView) -> str:
    """Return the place of a rank in the mesh: ``pp0 tp1``."""
    return one_line(" ".join(f"{axis}{index}" for axis, index in sorted(view.coordinates.items())))


def rank_phase_text(view: RankView) -> str:
    """Return the phase of a rank in words; "" while it is not known."""
    return enum_phrase(Phase, view.phase) if view.phase else ""


def progress_line(status: RunStatus, total_steps: int | None) -> str:
    """Return step, loss and throughput, as far as they are known."""
    return " · ".join([step_phrase(status, total_steps), *measures(status)])


def step_phrase(status: RunStatus, total_steps: int | None) -> str:
    """Return how far the run is."""
    return _resumed(status, total_steps) if status.HasField("resumed_step") else _step(status, total_steps)


def measures(status: RunStatus) -> list[str]:
    """Return loss and throughput, as far as they are known."""
    parts = []
    if status.HasField("loss"):
        parts.append(loss_phrase(status))
    if status.HasField("validation_loss"):
        is_finite = math.isfinite(status.validation_loss)
        parts.append(f"validation loss {status.validation_loss:.4f}" if is_finite else "validation loss not finite")
    if status.HasField("tokens_per_s"):
        parts.append(f"{status.tokens_per_s:,.0f} tokens/s")
    return parts


def is_loss_finite(status: RunStatus) -> bool:
    """Return whether the newest reported loss is a number, or no rank has reported one."""
    return not status.HasField("nonfinite_since") and math.isfinite(status.loss)


def is_loss_alarming(status: RunStatus) -> bool:
    """Return whether the newest reported loss is not finite, and no operator has acknowledged that."""
    return not is_loss_finite(status) and not status.loss_is_acknowledged


def loss_phrase(status: RunStatus) -> str:
    """Return the newest loss, or since when it is not finite."""
    if is_loss_finite(status):
        return f"loss {status.loss:.4f}"
    since = f" since step {status.nonfinite_since}" if status.HasField("nonfinite_since") else ""
    return f"loss not finite{since}"


def numbers_line(status: RunStatus) -> str:
    """Return the numbers of the optimizer and of memory that are known; "" if none is."""
    parts = []
    if status.HasField("grad_norm"):
        parts.append(f"gradient norm {status.grad_norm:.4g}")
    if status.HasField("learning_rate"):
        parts.append(f"learning rate {status.learning_rate:.3g}")
    used = max((rank.memory_bytes for rank, _ in counted_ranks(status)), default=0)
    if used:
        parts.append(f"memory up to {memory_text(used)} a rank")
    return " · ".join(parts)


def logged_line(status: RunStatus) -> str:
    """Return the newest numbers that the script logs, under its own names; "" if it logs none."""
    shown = [f"{number.name} {number.value:.4g}" for number in status.logged[:_LOGGED_SHOWN]]
    more = len(status.logged) - len(shown)
    if more:
        shown.append(f"{more} more with --json")
    return f"logged: {' · '.join(shown)}" if shown else ""


def memory_text(size: int) -> str:
    """Return a number of bytes as people read it; "" for 0, which stands for an unknown number."""
    if not size:
        return ""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def kept_line(status: RunStatus) -> str:
    """Return what is saved and what has happened, in numbers."""
    parts = [
        f"snapshot {_saved(status.newest_snapshot)}",
        *([f"replica snapshot {_saved(status.newest_replica)}"] if status.HasField("newest_replica") else []),
        f"checkpoint {_saved(status.newest_checkpoint)}",
        f"restarts {status.restarts}",
        f"incidents {status.incidents}",
        f"loss spikes {status.loss_spikes}",
    ]
    if status.deadline_s > 0:
        parts.append(f"deadline {status.deadline_s:.1f} s")
    if status.left_out:
        parts.append(f"left out: data of steps {left_out.shown(left_out.from_messages(status.left_out))}")
    return " · ".join(parts)


def time_line(status: RunStatus) -> str:
    """Return the goodput and the largest losses of the run's wall time; "" if it is not known."""
    if status.wall_s <= 0.0:
        return ""
    lost_s = {use: seconds for use, seconds in status.time_use_s.items() if use != PRODUCTIVE}
    largest = sorted(lost_s, key=lambda use: (-lost_s[use], use))[:_LOSSES_SHOWN]
    lost = [f"{use.replace('_', ' ')} {lost_s[use]:,.0f} s" for use in largest if lost_s[use] >= _LEAST_SHOWN_S]
    goodput = f"goodput {status.time_use_s[PRODUCTIVE] / status.wall_s:.1%} of {status.wall_s:,.0f} s"
    return f"{goodput} · lost most: {', '.join(lost)}" if lost else goodput


def recorder_line(status: RunStatus) -> str:
    """Return the recorders of the ranks' groups; "" if all groups are on gloo, or none is known."""
    used = Counter[tuple[int, str]]()
    for rank, count in counted_ranks(status):
        for one in rank.recorders:
            used[one.source, one.backend] += count
    if all(source == RECORDER_SOURCE_GENERIC for source, _ in used):
        return ""
    return "recorders: " + ", ".join(
        f"{_recorder(source, backend)} on {number_of(ranks, 'rank')}"
        for (source, backend), ranks in sorted(used.items())
    )


def _recorder(source: int, backend: str) -> str:
    if source == RECORDER_SOURCE_NONE:
        return f"none for {backend} (the ranks' logs say what to set)"
    return f"torch's own for {backend}" if source == RECORDER_SOURCE_BACKEND else backend


def own_time_line(status: RunStatus) -> str:
    """Return how the ranks' own time is measured; "" if all ranks are on CPU, or it is not known yet."""
    sources = Counter[tuple[int, str]]()
    for rank, count in counted_ranks(status):
        if rank.own_time_source:
            sources[rank.own_time_source, rank.own_time_reason] += count
    if all(source == OWN_TIME_SOURCE_HOST for source, _ in sources):
        return ""
    return "own time: " + ", ".join(
        f"{_own_time(source, reason)} on {number_of(ranks, 'rank')}"
        for (source, reason), ranks in sorted(sources.items())
    )


def _own_time(source: int, reason: str) -> str:
    if source == OWN_TIME_SOURCE_NONE:
        because = f" ({reason})" if reason else ""
        return f"cannot be separated from waiting{because}"
    phrases: dict[int, str] = {
        OWN_TIME_SOURCE_HOST: "by the training thread",
        OWN_TIME_SOURCE_EVENTS: "by events on the GPU",
    }
    return phrases.get(source, enum_phrase(OwnTimeSource, source))


def fault_line(injected: FaultInjected) -> str:
    """Return what was done to a rank on purpose, or will be done to it later."""
    fault = injected.fault
    if injected.waits_for:
        return f"fault armed: {fault.kind} of rank {fault.rank}, waits for {injected.waits_for}"
    what = f"{fault.kind} of rank {fault.rank} in step {injected.step}"
    if fault.phase:
        return f"fault armed: {what} or later, at the start of the phase {enum_phrase(Phase, fault.phase)}"
    return f"fault armed: {what}" if fault.step > 0 else f"fault injected: {what}"


def refusal_line(refused: FaultRefused) -> str:
    """Return what was not done to a rank, and why."""
    return f"{refused.fault.kind} of rank {refused.fault.rank}: {refused.reason}"


def _step(status: RunStatus, total_steps: int | None) -> str:
    """Return how many steps are completed. That is one more than the number of the newest one: the first is step 0."""
    if status.newest_step < 0:
        return "no step yet"
    done = status.newest_step + 1
    return number_of(done, "step") if total_steps is None else f"{done} of {number_of(total_steps, 'step')}"


def _resumed(status: RunStatus, total_steps: int | None) -> str:
    """Return how many steps are completed of a run that continues an earlier state, which had completed some."""
    first = status.resumed_step + 1
    if status.newest_step < first:
        if status.phase == RUN_PHASE_FINISHED:
            return f"no step after step {status.resumed_step}, from which it resumed"
        is_resumed = any(rank.step >= first for rank, _ in counted_ranks(status))
        return f"resumed at step {first}" if is_resumed else f"resuming at step {first}"
    return f"{_step(status, total_steps)} · resumed at step {first}"


def _saved(step: int) -> str:
    return "none" if step < 0 else f"of step {step}"


def duration(seconds: float) -> str:
    """Return a time span with two units at most."""
    if seconds < 1.0:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60.0:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def short_number(number: float) -> str:
    """Return a number with four digits, or all of a whole number."""
    return f"{number:,.0f}" if number == int(number) or abs(number) >= 10_000 else f"{number:.4g}"


def size(count: float) -> str:
    """Return a number of bytes in the binary unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024.0:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024.0
    return f"{count:.1f} TiB"
