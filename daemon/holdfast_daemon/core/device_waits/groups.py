"""Which groups of different ranks' dumps are one group."""

from collections.abc import Mapping

from holdfast_daemon.core.waits.shared_call import GroupKey
from holdfast_proto.v1 import recorder_pb2 as recorder

_WORLD = "0"


class _HashedOnce(tuple[str, tuple[int, ...]]):
    """A GroupKey. All members of a world of thousands would be hashed each time that a call is looked up."""

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("hash")
        if known is None:
            known = self.__dict__["hash"] = super().__hash__()
        return known


def group_keys(dumps: Mapping[int, recorder.RecorderDump], world_size: int) -> dict[int, list[GroupKey]]:
    """Return, for each rank, the keys of its dump's groups, in their order.

    A dump names a group's members only once its communicator exists, and old or shortened dumps leave them out. Then
    the dumps of others help: a group of the same name that has this rank in it. Without any, the members are the ranks
    that show calls in a group of this name; of the world, all ranks.
    """
    known: dict[str, set[tuple[int, ...]]] = {}
    seen: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        called = {call.group for call in dump.calls}
        for index, group in enumerate(dump.groups):
            if group.members:
                known.setdefault(group.name, set()).add(tuple(group.members))
            if index in called or group.has_status:
                seen.setdefault(group.name, set()).add(rank)

    interned: dict[GroupKey, GroupKey] = {}

    def shared(name: str, members: tuple[int, ...]) -> GroupKey:
        key = _HashedOnce((name, members))
        return interned.setdefault(key, key)

    def key(rank: int, group: recorder.RecordedGroup) -> GroupKey:
        if group.members:
            return shared(group.name, tuple(group.members))
        fitting = [members for members in known.get(group.name, ()) if rank in members]
        if len(fitting) == 1:
            return shared(group.name, fitting[0])
        if not fitting and (group.name == _WORLD or group.description == "default_pg"):
            return shared(group.name, tuple(range(world_size)))
        return shared(group.name, tuple(sorted(seen.get(group.name, {rank}))))

    return {rank: [key(rank, group) for group in dump.groups] for rank, dump in dumps.items()}


def guessed_groups(
    dumps: Mapping[int, recorder.RecorderDump], keys: Mapping[int, list[GroupKey]], world: tuple[int, ...]
) -> frozenset[GroupKey]:
    """Return the groups whose members no dump names. Others than those that are known may belong to them.

    ``world``: all ranks of the job, of which the groups that hold them all are no guess; empty if that is a guess too.
    """
    named = {(group.name, tuple(group.members)) for dump in dumps.values() for group in dump.groups if group.members}
    return frozenset(key for of_rank in keys.values() for key in of_rank if key not in named and key[1] != world)
