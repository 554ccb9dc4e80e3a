"""From the state of all ranks to a verdict: is one dead, hung, or is all well?"""

import signal
from collections.abc import Mapping

from holdfast_daemon.core import death
from holdfast_daemon.core.absorb import phase_name
from holdfast_daemon.core.turn import Turn
from holdfast_daemon.core.wait_graph import Finding, find
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_DATA

SETTLE_S = 0.3
"""One death makes its peers fail within milliseconds. Of ranks that ended with an exception, or were aborted by
a watchdog, the first may be a victim: the others are waited for."""

DIRECT_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""These speak for themselves: no loss of a peer brings them about."""

EDGES_KEPT = 32


def dead_rank(turn: Turn) -> store.Verdict | None:
    """Return the verdict on ranks that ended badly, or None."""
    exits = {n: rank.exit for n, rank in turn.ranks.items() if rank.HasField("exit")}
    if all(_is_clean(ended) for ended in exits.values()):
        return None
    culprits = death.first_cause(exits)
    first = exits[culprits[0]]
    if death.is_configuration_error(first):
        last_line = first.last_words.strip().rpartition("\n")[2]
        message = last_line.removeprefix("holdfast: ") or f"rank {culprits[0]} refused its configuration: see its log"
        return store.Verdict(
            kind=store.VERDICT_KIND_BAD_CONFIGURATION, culprits=culprits, message=message, confidence_ratio=1.0
        )
    settled = turn.now - turn.state.first_exit_unix_s >= SETTLE_S
    if first.signal not in DIRECT_SIGNALS and not settled and len(exits) < turn.world_size:
        return None
    return store.Verdict(
        kind=store.VERDICT_KIND_DEAD_RANK,
        culprits=culprits,
        message=death.describe(culprits[0], first),
        confidence_ratio=1.0 if first.HasField("signal") else 0.9,
        step=first.step,
        phase=first.phase,
    )


def all_left(turn: Turn) -> bool:
    """Whether every rank of the world has ended with code 0."""
    ranks = turn.ranks.values()
    return len(ranks) == turn.world_size and all(rank.HasField("exit") and _is_clean(rank.exit) for rank in ranks)


def _is_clean(ended: store.RankExit) -> bool:
    return ended.HasField("code") and ended.code == 0


def hung(turn: Turn) -> store.Verdict | None:
    """Return the verdict on a world that has stopped moving, or None."""
    ranks = turn.ranks
    late = {n: rank for n, rank in ranks.items() if _is_late(turn, rank)}
    if not late:
        return None
    finding = find(ranks)
    roots = [n for n in finding.roots if n in late or (n in ranks and ranks[n].HasField("exit"))]
    if roots:
        return _root_verdict(ranks, roots, finding)
    if finding.cycle:
        return _verdict(
            ranks,
            store.VERDICT_KIND_MISMATCHED_ORDER,
            list(finding.cycle),
            f"ranks {_list(finding.cycle)} wait for each other: they call collectives in different orders",
            finding,
        )
    if finding.everyone_arrived:
        return _verdict(
            ranks,
            store.VERDICT_KIND_TRANSPORT,
            [],
            f"all ranks of group {_group_name(ranks, finding.group)} have entered call {finding.seq} and it does not"
            " complete: transport or device, not a rank",
            finding,
        )
    if len(late) == len(ranks):
        return _root_verdict(ranks, sorted(late), finding)
    return None


def _is_late(turn: Turn, rank: store.RankState) -> bool:
    if rank.life == store.LIFE_EXITED:
        return False
    return rank.stalled_s > turn.state.deadlines.deadline_s(rank.progress.phase, rank.steps_done)


def _root_verdict(ranks: Mapping[int, store.RankState], roots: list[int], finding: Finding) -> store.Verdict:
    root = ranks[roots[0]]
    where = f"in {phase_name(root.progress.phase)} of step {root.progress.step}"
    waits = {edge.waiter: edge.group for edge in finding.edges if edge.awaited == root.rank}
    waiting = sorted(waiter for waiter, group in waits.items() if group == finding.group)
    if root.life == store.LIFE_EXITED:
        how = "ended while others still wait for it"
    elif root.process_state in ("T", "t"):
        how = f"is stopped {where}"
    elif root.progress.phase == PHASE_DATA:
        how = f"waits for data {where}"
    else:
        how = f"makes no progress {where}"
    message = f"rank {root.rank} {how}"
    if waiting:
        call = f"{finding.op} {finding.seq} of group {_group_name(ranks, finding.group)}"
        who = f"rank {waiting[0]} waits" if len(waiting) == 1 else f"ranks {_list(waiting)} wait"
        elsewhere = f", {len(waits) - len(waiting)} elsewhere" if len(waits) > len(waiting) else ""
        message += f"; {who} for it in {call}{elsewhere}"
    kind = store.VERDICT_KIND_HUNG_COLLECTIVE
    if root.life != store.LIFE_EXITED and root.process_state not in ("T", "t") and root.progress.phase == PHASE_DATA:
        kind = store.VERDICT_KIND_DATA_STALL
    return _verdict(ranks, kind, roots, message, finding)


def _verdict(
    ranks: Mapping[int, store.RankState],
    kind: "store.VerdictKind",
    culprits: list[int],
    message: str,
    finding: Finding,
) -> store.Verdict:
    first = ranks[culprits[0]] if culprits else next(iter(ranks.values()))
    return store.Verdict(
        kind=kind,
        culprits=culprits,
        message=message,
        confidence_ratio=1.0 if len(culprits) == 1 else 0.8,
        waits=finding.edges[:EDGES_KEPT],
        step=first.progress.step,
        phase=first.progress.phase,
        group=finding.group,
        seq=finding.seq,
        op=finding.op,
    )


def _group_name(ranks: Mapping[int, store.RankState], name: str) -> str:
    """Return a group's name with its description, where torch.distributed was given one: ``5 (mesh_tp)``."""
    groups = (group for rank in ranks.values() for group in rank.progress.groups)
    description = next((group.description for group in groups if group.group == name and group.description), "")
    return f"{name} ({description})" if description else name


def _list(numbers: "list[int] | tuple[int, ...]") -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown
