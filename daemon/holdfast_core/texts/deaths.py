"""Ranks that have ended, out of memory among them, nodes that are lost, processes that do not end."""

import re
import signal
from collections.abc import Mapping, Sequence

from holdfast_core.naming import listed, ranks_named
from holdfast_core.recovery.restart_patience import MARKED
from holdfast_core.texts import hangs
from holdfast_core.texts.places import after, moment
from holdfast_proto.exit_codes import signal_name
from holdfast_proto.v1 import store_pb2 as store

_LINE_CHARACTERS = 240
_ENDS_SHOWN = 4
_TIMEOUT = re.compile(r"tim(?:ed |e)out", re.IGNORECASE)


def death(verdict: store.Verdict) -> str:
    """Return e.g. "rank 2 raised ValueError: bad sample in data of step 7"; ranks that ended alike share a sentence."""
    detail = verdict.death
    if verdict.kind == store.VERDICT_KIND_BAD_CONFIGURATION:
        first = detail.ends[0]
        return first.said.removeprefix("holdfast: ") or f"rank {first.rank} refused its configuration: see its log"
    if detail.awaited:
        return _gave_up(detail)
    together: dict[str, list[int]] = {}
    for end in detail.ends:
        together.setdefault(_how_and_where(end), []).append(end.rank)
    return "; ".join([*_ends(together), *_stopped(detail.stopped)])


def lost_node(verdict: store.Verdict) -> str:
    """Return which node or ranks are gone; or that they are only out of sight."""
    detail = verdict.lost_node
    who = ranks_named(detail.ranks)
    if detail.has_none:
        return f"node {detail.node} has lost {who}: its agent was started again and found no usable record of them"
    if detail.trained_on:
        return (
            f"the run stands still, and nothing is known of {who}: the agent of node {detail.node} has gone. They"
            " trained on after that, so the cause may be any rank"
        )
    return f"node {detail.node} is lost, and with it {who}"


def late_exit(verdict: store.Verdict) -> str:
    """Return which ranks left training long ago and still have a process."""
    left = verdict.culprits
    if verdict.phase in MARKED:
        who = f"rank {left[0]} stands" if len(left) == 1 else f"ranks {listed(left)} stand"
        return f"{who} still {moment(verdict.step, verdict.phase)}, and no other rank trains any more"
    who = f"rank {left[0]} has" if len(left) == 1 else f"ranks {listed(left)} have"
    return f"{who} left training {verdict.late_exit.since_s:.0f} s ago, and the process does not end"


def _gave_up(detail: store.DeathDetail) -> str:
    """Return e.g. "ranks 0, 1 gave up waiting for rank 2 (wait timeout): rank 2 sleeps in init"."""
    first = detail.ends[0]
    said = f" ({_shortened(first.said)})" if first.said else ""
    awaited = [rank.rank for rank in detail.awaited]
    gave_up = f"{ranks_named([end.rank for end in detail.ends])} gave up waiting for {ranks_named(awaited)}{said}"
    return "; ".join([gave_up, *(hangs.rank_line(rank) for rank in detail.awaited[:_ENDS_SHOWN])])


def _stopped(ranks: Sequence[store.HeldRank]) -> list[str]:
    if len(ranks) > _ENDS_SHOWN:
        return [f"{ranks_named([rank.rank for rank in ranks])} are stopped, too"]
    return [hangs.rank_line(rank, too=True) for rank in ranks]


def _ends(together: Mapping[str, Sequence[int]]) -> list[str]:
    sentences = [f"{ranks_named(ranks)} {_plural(how) if len(ranks) > 1 else how}" for how, ranks in together.items()]
    more = sum(map(len, list(together.values())[_ENDS_SHOWN:]))
    rest = [f"{more} more {'rank' if more == 1 else 'ranks'} ended in other ways"] if more else []
    return [*sentences[:_ENDS_SHOWN], *rest]


def _plural(how: str) -> str:
    """Return the words for several ranks. Verbs of the past are the same for both."""
    return (
        f"were{how.removeprefix('was')}"
        if how.startswith("was ")
        else how.replace("says that its", "say that their", 1)
    )


def _how_and_where(end: store.RankEnd) -> str:
    where = moment(end.step, end.phase)
    return f"{_how(end)} {where}{after(end.gpu_fault)}"


def _how(end: store.RankEnd) -> str:
    said = _shortened(end.said)
    if end.cause == store.END_CAUSE_CONFIGURATION:
        return f"says that its configuration is wrong: {said}" if said else "says that its configuration is wrong"
    if end.HasField("signal"):
        return f"was killed by {signal_name(end.signal)}{_why_killed(end, said)}"
    if end.cause == store.END_CAUSE_LEFT_EARLY:
        return "left early with code 0"  # whatever it has printed before
    if end.cause == store.END_CAUSE_LOST_PEER:
        words = "gave up waiting" if _TIMEOUT.search(said) else "lost a peer"
        return f"{words} ({said})" if said else words
    return ran_out_of_memory(end.said) or (f"raised {said}" if end.raised else _without_exception(end, said))


def _without_exception(end: store.RankEnd, said: str) -> str:
    if not end.HasField("code"):
        return "ended and left no exit status"
    if not end.code:
        return "left early with code 0"
    last = f" (its last line: {said})" if said else ""
    return f"exited with code {end.code}{last}"


def _why_killed(end: store.RankEnd, said: str) -> str:
    if end.signal == signal.SIGKILL:
        return " (out of memory, says the kernel)" if end.out_of_memory else " (out of memory, or killed by hand)"
    if end.signal != signal.SIGABRT:
        return ""
    if end.HasField("got_bytes"):
        return f" (a peer sent {end.got_bytes} bytes where it expected {end.expected_bytes}: either has a wrong size)"
    return f" ({said})" if said else " (no last words could be read, so another rank may be the cause: see its output)"


def _shortened(line: str) -> str:
    return line if len(line) <= _LINE_CHARACTERS else line[: _LINE_CHARACTERS - 1] + "…"


_DEVICE = re.compile(
    r"(?P<name>(?:\w+\.)*\w+): (?:(?:CUDA|HIP|XPU) out of memory\b|(?:CUDA|HIP) error: out of memory\b)"
)
_HOST = re.compile(r"(?P<name>(?:numpy\.(?:\w+\.)*_Array)?MemoryError)(?:: (?P<message>.*))?$")
_HOST_OF_TORCH = re.compile(r"(?P<name>RuntimeError): .*DefaultCPUAllocator: can't allocate memory\b")

_SIZE = r"(?P<size>\d[\d.]* (?:bytes|[KMGTP]iB))"
_TRIED = re.compile(rf"tried to allocate {_SIZE}", re.IGNORECASE)
_FREE = re.compile(
    r"(?P<device>[A-Z]+ \d+) has a total capaci?ty of (?P<total>\d[\d.]* \w+) of which (?P<free>\d[\d.]* \w+) is free"
)
_USED = re.compile(rf"this process has {_SIZE} memory in use")


def ran_out_of_memory(said: str) -> str:
    """Return what happened if ``said``, the line of an exception, is about memory that ran out; else ``""``.

    For example ``ran out of GPU memory (torch.OutOfMemoryError: it tried to allocate 20.00 GiB; 3.20 GiB of 79.15 GiB
    were free on GPU 0)``.
    """
    if device := _DEVICE.match(said):
        return f"ran out of GPU memory ({_with_sizes(device['name'], _device_sizes(said))})"
    if torch := _HOST_OF_TORCH.match(said):
        return f"ran out of host memory ({_with_sizes(torch['name'], _tried(said))})"
    if host := _HOST.match(said):
        return f"ran out of host memory ({_with_sizes(host['name'].rpartition('.')[2], [host['message'] or ''])})"
    return ""


def _with_sizes(name: str, sizes: list[str]) -> str:
    known = "; ".join(filter(None, sizes))
    return f"{name}: {known}" if known else name


def _device_sizes(said: str) -> list[str]:
    sizes = _tried(said)
    if free := _FREE.search(said):
        sizes.append(f"{free['free']} of {free['total']} were free on {free['device']}")
    if used := _USED.search(said):
        sizes.append(f"it had {used['size']} in use")
    return sizes


def _tried(said: str) -> list[str]:
    tried = _TRIED.search(said)
    return [f"it tried to allocate {tried['size']}"] if tried else []
