"""The rendezvous that torchrun calls: it waits until this node is part of a world, and serves or joins its store."""

import secrets
import sys
from threading import Event
from time import monotonic

from redis.exceptions import RedisError
from torch.distributed import DistError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from holdfast_base.redis_client import connect_blocking
from holdfast_base.text import reason_of
from holdfast_proto.v1.meeting_pb2 import MeetingMember, MeetingRecord, MeetingWorld
from holdfast_torchrun.attendance import Attendance
from holdfast_torchrun.meeting import LEASE_S, Sight, describe_wait, is_healthy, nodes_to_join
from holdfast_torchrun.meeting_store import MeetingStore
from holdfast_torchrun.node_companion import UNWATCHED, Companion, NoCompanion, NodeCompanion
from holdfast_torchrun.rendezvous_settings import RendezvousSettings, find_address, read_settings, say
from holdfast_torchrun.world_size import WorldSize
from holdfast_torchrun.world_store import WorldStores

BACKEND = "holdfast"
REDIS_TIMEOUT_S = 2.0
"""Time after which Redis counts as unreachable. It is shorter than a lease."""
_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_CLOSE_TRIES = 10


def create_rendezvous(parameters: RendezvousParameters) -> RendezvousHandler:
    """Return the rendezvous of a job. Raises ValueError for bad arguments and RendezvousConnectionError."""
    settings = read_settings(parameters)
    store, problem = _open_store(settings)
    if settings.key is None and not settings.is_alone:
        problem = "no run key (--rdzv-conf run_key_file=FILE)"
    if problem:
        say(f"{problem}: {UNWATCHED}")
    companion = NoCompanion() if problem else NodeCompanion(settings)
    companion.begin()
    return HoldfastRendezvous(settings, store, companion)


def _open_store(settings: RendezvousSettings) -> tuple[MeetingStore | None, str]:
    """Return the place where the nodes of the job meet, and what is wrong with it; None: there is only one node."""
    if not settings.endpoint:
        return None, ""
    try:
        client = connect_blocking(settings.endpoint, settings.password_file, timeout_s=REDIS_TIMEOUT_S)
        client.time()
    except (RedisError, OSError) as error:
        problem = f"--rdzv-endpoint {settings.endpoint}: Redis cannot be used ({reason_of(error).rstrip('.')})"
        if not settings.is_alone:
            raise RendezvousConnectionError(problem) from None
        return None, problem
    if settings.is_alone:
        client.close()
        return None, ""
    return MeetingStore(client, settings.run, settings.meeting_key.seal), ""


class HoldfastRendezvous(RendezvousHandler):
    """The rendezvous of one torchrun. ``store`` is None if its node is the whole world."""

    def __init__(self, settings: RendezvousSettings, store: MeetingStore | None, companion: Companion) -> None:
        self._settings = settings
        self._store = store
        self._companion = companion
        self._record = MeetingRecord(
            node=settings.node,
            process=secrets.token_hex(16),
            address=find_address(settings),
            nodes=settings.nodes,
        )
        self._attendance: Attendance | None = None
        self._closed_before = 0
        """Round of the last world of an earlier job of this name; 0: there was none."""
        self._size = WorldSize(settings)
        self._stores = WorldStores(settings.run, self._record.address)
        self._rounds_alone = 0
        self._pause = Event()

    def get_backend(self) -> str:
        """Return the name of this rendezvous."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether the ranks use the store of torchrun: no.

        torch would put the number of restarts before all keys. torchrun counts a restart only on the nodes whose ranks
        have failed, so the ranks of a later round would look for different keys and hang.
        """
        return False

    def get_run_id(self) -> str:
        """Return the name of the run."""
        return self._settings.run

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until this node is part of a new world. Raises what the interface names, or exits: see _check_end."""
        if self._store is None:
            return self._train_alone()
        attendance = self._attend()
        attendance.begin_to_wait()
        begun_s = monotonic()
        while True:
            sight = attendance.look()
            if sight is not None:
                self._check_end(sight)
                info = self._try_to_enter(attendance, sight)
                if info is not None:
                    return info
                if self._form(attendance, sight):
                    continue
                if self._settings.has_spares and is_healthy(sight):  # a spare waits as long as the others train
                    begun_s = monotonic()
            if attendance.is_over:
                raise RendezvousClosedError(f"this node has left run {self._settings.run}")
            self._check_time(begun_s, sight)
            # In a large run many nodes ask one Redis.
            self._pause.wait(min(_PAUSE_S + self._settings.nodes / 1000, _LONGEST_PAUSE_S))

    def num_nodes_waiting(self) -> int:
        """Return how many nodes make this one stop its ranks and rejoin. Never blocks or raises."""
        self._companion.follow_signals()
        attendance = self._attendance
        sight = attendance.sight if attendance is not None else None
        if attendance is None:
            return 0
        if self._size.may_grow(sight, self._record.process, monotonic()):
            # The others hear of it before the ranks here end, so that theirs end with them and do not fail.
            attendance.begin_to_wait()
            return 1
        if sight is None:
            return 0
        return nodes_to_join(sight, self._record.process, attendance.round)

    def is_closed(self) -> bool:
        """Return whether the run has ended for all."""
        sight = self._attendance.sight if self._attendance is not None else None
        return sight is not None and self._has_ended(sight)

    def set_closed(self) -> None:
        """End the run for all: spares leave, and members cannot meet again."""
        if self._store is None or self._attendance is None:
            return
        for _ in range(_CLOSE_TRIES):
            sight = self._attendance.look()
            if sight is None or sight.world is None or sight.world.closed_by:
                return
            world = MeetingWorld()
            world.CopyFrom(sight.world)
            world.closed_by = self._settings.node
            if self._store.replace(sight.stored, world):
                return

    def shutdown(self) -> bool:
        """Leave; end the run for all if this node is a member of the newest world. Return whether Redis knows."""
        knows = True
        if self._store is not None and self._attendance is not None:
            try:
                sight = self._attendance.look()
                knows = sight is not None
                if sight is not None and sight.rank_of(self._record.process) is not None:
                    self.set_closed()
                self._attendance.stop()
                self._store.remove(self._settings.node)
                self._store.close()
            except (RedisError, OSError):
                knows = False
        self._stores.close()
        error = sys.exc_info()[1]  # torchrun's, on its way out
        self._companion.end(0 if error is None or (isinstance(error, SystemExit) and not error.code) else 1)
        return knows

    def _attend(self) -> Attendance:
        """Return the presence of this torchrun, which begins with the first call."""
        if self._attendance is None and self._store is not None:
            attendance = Attendance(self._store, self._record, self._settings.endpoint)
            self._claim_name(self._store)
            attendance.start()
            self._attendance = attendance
            sight = attendance.look()
            if sight is not None and sight.world is not None and sight.world.closed_by:
                self._closed_before = sight.round
        assert self._attendance is not None
        return self._attendance

    def _claim_name(self, store: MeetingStore) -> None:
        """Take the node's name. A torchrun that was killed holds it until its lease ends."""
        begun_s = monotonic()
        try:
            while not store.claim(self._record):
                if monotonic() - begun_s > 2 * LEASE_S:
                    raise RendezvousError(
                        f"a node {self._settings.node} already takes part in run {self._settings.run}: give each node"
                        " a name of its own with --rdzv-conf node=NAME, and each job another --rdzv-id"
                    )
                self._pause.wait(_PAUSE_S)
        except (RedisError, OSError) as error:
            raise RendezvousConnectionError(
                f"--rdzv-endpoint {self._settings.endpoint}: Redis cannot be used ({reason_of(error)})"
            ) from None

    def _has_ended(self, sight: Sight) -> bool:
        return sight.world is not None and bool(sight.world.closed_by) and sight.round > self._closed_before

    def _check_end(self, sight: Sight) -> None:
        """Raise if the run has ended for all. A spare leaves without an error.

        torch has an exception for that, RendezvousGracefulExitError, but its launcher fails on it.
        """
        if not self._has_ended(sight) or sight.world is None:
            return
        is_member = sight.rank_of(self._record.process) is not None
        if not is_member and self._settings.has_spares:
            say(f"run {self._settings.run} has ended, this spare node was not needed")
            raise SystemExit(0)
        if not is_member and self._record.round == 0:  # an earlier job of this name has ended while this one has begun
            self._closed_before = sight.round
            return
        raise RendezvousClosedError(
            f"run {self._settings.run} has ended: torchrun on node {sight.world.closed_by} has left it, so this node"
            " cannot restart its ranks"
        )

    def _check_time(self, begun_s: float, sight: Sight | None) -> None:
        if monotonic() - begun_s <= self._settings.join_timeout_s:
            return
        if self._attendance is not None:
            sight = self._attendance.look(at_all=True) or sight
        who = (
            describe_wait(sight, self._settings.nodes)
            if sight
            else f"Redis at {self._settings.endpoint} is unreachable"
        )
        raise RendezvousTimeoutError(
            f"run {self._settings.run}: no world of {self._settings.nodes} nodes has formed within"
            f" {self._settings.join_timeout_s:g} s: {who}. Start the missing nodes, or raise --rdzv-conf join_timeout"
        )

    def _form(self, attendance: Attendance, sight: Sight) -> bool:
        """Write the next world if this node is its first member; return whether it is written.

        The first member serves the store. So it does that before, and a world is one value.
        """
        members = self._size.members_to_form(sight, monotonic(), is_steady=attendance.is_steady)
        if members is None or members[0].process != self._record.process or self._store is None:
            return False
        world = MeetingWorld(round=sight.round + 1, members=members, store_port=self._stores.serve())
        try:
            return self._store.replace(sight.stored, world)
        except (RedisError, OSError):  # the thread reports the outage
            return False

    def _try_to_enter(self, attendance: Attendance, sight: Sight) -> RendezvousInfo | None:
        """Return this node's place in the newest world; None: it has none, or the world has failed already."""
        rank = sight.rank_of(self._record.process)
        if sight.world is None or rank is None or sight.round <= attendance.round:
            return None
        attendance.enter(sight.world)
        try:
            info = self._enter(sight.world, rank)
        except DistError as error:
            say(f"round {sight.round} has failed in its store ({reason_of(error)[:200]}): waiting for the next one")
            attendance.begin_to_wait()
            return None
        self._size.enter(info.world_size)
        return info

    def _train_alone(self) -> RendezvousInfo:
        self._rounds_alone += 1
        own = MeetingMember(node=self._record.node, process=self._record.process, address=self._record.address)
        world = MeetingWorld(round=self._rounds_alone, members=[own], store_port=self._stores.serve())
        return self._enter(world, rank=0)

    def _enter(self, world: MeetingWorld, rank: int) -> RendezvousInfo:
        info = self._stores.enter(world, rank)
        self._companion.enter_world()
        return info
