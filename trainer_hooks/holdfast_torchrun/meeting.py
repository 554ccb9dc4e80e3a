"""Which world the torchruns of a run form: from what each has written, without I/O or a clock.

A world has a number, its round. By default all worlds have one size: training must continue to the same bits. The first
is of the first nodes by name. Later, each member that waits again keeps its group rank, and spares take the places of
lost members. Nothing forms while a member is alive and does not wait: its ranks still train, or have not yet ended.

If the user allows fewer nodes, members that are left keep their order, and the ranks after a lost one move up. A
smaller world takes further nodes at its end. ``world_size.py`` knows how long it waits before it changes its size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast_proto.v1.meeting_pb2 import MeetingMember, MeetingRecord, MeetingWorld

LEASE_S = 3.0
"""Time after which a node whose record is not renewed is lost."""


@dataclass(frozen=True)
class Sight:
    """What a node saw in Redis at one moment."""

    world: MeetingWorld | None
    """The newest world, also of an earlier job of the run's name; None: there has been none."""
    stored: bytes
    """The world as Redis holds it: it is replaced only if it is still that."""
    records: Mapping[str, MeetingRecord]
    """The records of the nodes that are alive, by name."""
    is_whole: bool = True
    """Whether these are all records, as they are now. If not, most are older, or missing."""
    has_rung: bool = False
    """Whether a node has rung the bell since this one looked before."""

    @property
    def round(self) -> int:
        """Number of the newest world; 0: there has been none."""
        return self.world.round if self.world is not None else 0

    @property
    def members(self) -> Sequence[MeetingMember]:
        """The members of the newest world in the order of their group ranks."""
        return self.world.members if self.world is not None else ()

    @property
    def is_alive(self) -> bool:
        """Whether a torchrun that is a member of the newest world is alive. If not, its job is over."""
        return self.witness is not None

    @property
    def witness(self) -> MeetingRecord | None:
        """The record of a torchrun that is a member of the newest world and alive; None: there is none."""
        found = (
            self.records[member.node] for member in self.members if _is_same(member, self.records.get(member.node))
        )
        return next(found, None)

    @property
    def lost(self) -> list[str]:
        """The members of the newest world that are not alive, by name."""
        return [member.node for member in self.members if member.node not in self.records]

    def rank_of(self, process: str) -> int | None:
        """Return the group rank of a torchrun in the newest world; None: it is no member."""
        ranks = (rank for rank, member in enumerate(self.members) if member.process == process)
        return next(ranks, None)


def next_members(sight: Sight, nodes: int, *, is_steady: bool, fewest: int | None = None) -> list[MeetingMember] | None:
    """Return the members of the world that can form now, by group rank; None: none can.

    The first world of a job has ``nodes`` nodes, and a later one at least ``fewest``; None: as many.
    ``is_steady``: this node has seen Redis for the time of a lease. Until then it cannot tell a lost node from one that
    has had no Redis either.
    """
    records = sight.records.values()
    if any(record.round > sight.round for record in records):
        return None  # Redis has lost the newest world: a member will write it again
    waiting = _waiting(sight, nodes)
    fewest = nodes if fewest is None else fewest
    if not sight.is_alive:
        return _first_members(sight, waiting, nodes, is_steady=is_steady)
    if (sight.world is not None and sight.world.closed_by) or not fewest <= len(sight.members) <= nodes:
        return None  # a job ends, or another one has this name
    members = _members_again(sight, nodes, is_steady=is_steady)
    return members if len(members) >= fewest else None


def _first_members(
    sight: Sight, waiting: Mapping[str, MeetingRecord], nodes: int, *, is_steady: bool
) -> list[MeetingMember] | None:
    """Return the members of the first world of a job."""
    is_over = sight.world is None or bool(sight.world.closed_by)
    if len(waiting) < nodes or not (is_over or is_steady):
        return None
    return [_member(waiting[node]) for node in sorted(waiting)[:nodes]]


def _members_again(sight: Sight, nodes: int, *, is_steady: bool) -> list[MeetingMember]:
    """Return the members of the next world of a job, at most ``nodes``; none: it has to wait for one that is alive.

    Each that waits again has its old place. Spares have those of lost members, and then the ones at the end.
    """
    spares = _further(sight, nodes)
    chosen: list[MeetingRecord] = []
    for member in sight.members:
        record = sight.records.get(member.node)
        if record is None:
            if not is_steady:
                return []
            if spares:
                chosen.append(spares.pop(0))
        elif waits_again(sight, member):
            chosen.append(record)
        else:
            return []
    return [_member(record) for record in chosen + spares[: nodes - len(chosen)]]


def further_nodes(sight: Sight, process: str, nodes: int) -> list[MeetingRecord]:
    """Return the nodes that wait and for which the newest world has room, by name. Only its first member has any.

    One node decides, so that all ranks end together. That one is also the one that forms the next world.
    """
    world = sight.world
    if world is None or world.closed_by or len(world.members) >= nodes or sight.rank_of(process) != 0:
        return []
    return _further(sight, nodes)


def _further(sight: Sight, nodes: int) -> list[MeetingRecord]:
    """Return the nodes that wait and are no members of the newest world, by name."""
    known = {member.node for member in sight.members}
    return [record for node, record in sorted(_waiting(sight, nodes).items()) if node not in known]


def _waiting(sight: Sight, nodes: int) -> dict[str, MeetingRecord]:
    """Return the nodes of the job that wait. Those of another job have another ``--nnodes``."""
    return {node: record for node, record in sight.records.items() if record.waiting and record.nodes == nodes}


def first_node(sight: Sight, nodes: int) -> MeetingRecord | None:
    """Return the node that forms the next world once all that are alive wait; None: there is none.

    That is its first member. As long as this node is alive, only one that begins to wait can come before it.
    """
    waiting = _waiting(sight, nodes)
    if not sight.is_alive:
        return waiting[min(waiting)] if waiting else None
    alive = [sight.records[member.node] for member in sight.members if member.node in sight.records]
    is_lost = alive[0].node != sight.members[0].node
    return next(iter(_further(sight, nodes)), alive[0]) if is_lost else alive[0]


def waits_again(sight: Sight, member: MeetingMember) -> bool:
    """Whether a member of the newest world waits for the next one.

    A record that waits and has not heard of the newest world is older than that. A torchrun that was started again on
    the node has been part of no world.
    """
    record = sight.records.get(member.node)
    if record is None or not record.waiting:
        return False
    return record.process != member.process or record.round >= sight.round


def nodes_to_join(sight: Sight, process: str, own_round: int) -> int:
    """Return how many nodes make a member of world ``own_round`` stop its ranks and meet the others again.

    Spares never do. A newer world does: this node was lost for a while, and its place is taken.
    """
    if sight.round > own_round:
        return 1
    if sight.round < own_round or sight.world is None or sight.world.closed_by:
        return 0
    return sum(waits_again(sight, member) for member in sight.members if member.process != process)


def is_healthy(sight: Sight) -> bool:
    """Whether the newest world trains, so that a spare has nothing to wait for in vain."""
    return sight.is_alive and not any(waits_again(sight, member) for member in sight.members)


def describe_wait(sight: Sight, nodes: int) -> str:
    """Return who waits and who is missing, for the line of a node that has waited in vain."""
    waiting = sorted(_waiting(sight, nodes))
    parts = [f"{_names(waiting)} wait{'s' if len(waiting) == 1 else ''}" if waiting else "no node waits"]
    if sight.is_alive:
        away = [
            member.node for member in sight.members if member.node in sight.records and not waits_again(sight, member)
        ]
        parts += [f"{_names(sight.lost)} of the last world cannot be seen"] if sight.lost else []
        parts += [f"{_names(away)} of the last world has not come back"] if away else []
    elif len(waiting) < nodes:
        parts.append(f"{nodes - len(waiting)} of {nodes} nodes missing")
    others = sorted(record.node for record in sight.records.values() if record.nodes != nodes)
    parts += [f"{_names(others)} was started with another --nnodes"] if others else []
    return ", ".join(parts)


def _names(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:16])
    return f"{shown} and {len(nodes) - 16} more" if len(nodes) > 16 else shown


def _is_same(member: MeetingMember, record: MeetingRecord | None) -> bool:
    return record is not None and record.process == member.process


def _member(record: MeetingRecord) -> MeetingMember:
    return MeetingMember(node=record.node, process=record.process, address=record.address)
