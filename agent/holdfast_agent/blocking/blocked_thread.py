"""Finds out what one thread waits for: which file, lock, pipe, connection or process. The thread is never paused."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic

from holdfast_agent.blocking import peers, proc_texts, system_calls
from holdfast_agent.blocking.proc_texts import LONGEST_PATH, clean
from holdfast_agent.blocking.process_files import ProcessFiles, try_read
from holdfast_agent.blocking.relatives import UNKNOWN, OutOfTimeError, Relatives
from holdfast_agent.blocking.system_calls import SystemCall
from holdfast_agent.movement.process_table import read_process
from holdfast_agent.movement.tcp_counters import LISTEN, read_sockets
from holdfast_proto.v1 import common_pb2 as common

LONGEST_S = 0.04
"""Longest search through other processes in one look. Reading the sockets and files is not part of it."""

_LOCKS_BYTES = 1 << 20
_NO_CALL = SystemCall("", (0,) * 6)

_FROZEN = re.compile(r"refrigerator|freezer_trap")
_VFORK = "wait_for_vfork_done"
_FIFO_OPEN = "wait_for_partner"
_FILE_SYSTEM = re.compile(
    r"^(io_schedule|folio_wait|wait_on_page|bit_wait_io|request_wait_answer|fuse_|nfs|rpc_wait|ceph_|cl_|ll_|ptlrpc|"
    r"osc_|cifs|smb|p9_client|v9fs|blk_|submit_bio|jbd2|ext4|xfs|btrfs|__wait_on_buffer|sync_)"
)
"""Places in the kernel where a thread waits for a disk or for the server of a file system."""

_DEVICE = re.compile(r"^/dev/(nvidia|kfd|dri/|infiniband/)")
_COMPILER = re.compile(
    r"^(nvcc|cicc|ptxas|fatbinary|cudafe\+\+|nvlink|hipcc|gcc|g\+\+|cc|c\+\+|cc1|cc1plus|as|ld|collect2|lto1|clang|"
    r"clang\+\+|ninja|make|cmake|rustc)([-.][\w.-]+)?$"
)


@dataclass
class BlockedThread:
    """Looks once at a thread of a rank.

    Args:
        pid: the rank's process, or one that it has started.
        relatives: the processes around the rank.
        store_port: port of the rendezvous store; 0: not known.
        trusts_sockets: whether a connection to an unknown process cannot be one of the training world: the rank
            computes on the CPU, where no call waits on a socket in the training thread.
    """

    pid: int
    relatives: Relatives
    store_port: int = 0
    trusts_sockets: bool = False
    proc: str = "/proc"
    machine: str = field(default_factory=platform.machine)

    @property
    def _files(self) -> ProcessFiles:
        return ProcessFiles(self.pid, self.proc)

    def look(self, tid: int = 0, *, deeper: bool = True) -> common.BlockedOn | None:
        """Return what a thread waits for, by default the main thread; None: nothing that the kernel shows.

        ``deeper``: whether to find out what the process is blocked on for which it waits.
        """
        tid = tid or self.pid
        stat = read_process(tid, f"{self.proc}/{self.pid}/task")
        if stat is None or stat.state not in "SD":
            return None
        place = self._files.text(f"task/{tid}/wchan")
        call = system_calls.parse_call(self._files.text(f"task/{tid}/syscall"), self.machine)
        blocked = self._by_place(stat.state, place, call or _NO_CALL) or self._by_call(place, call or _NO_CALL)
        if blocked is not None and deeper and blocked.party == common.PARTY_CHILD and blocked.pid:
            after = self._of_child(blocked.pid)
            if after is not None:
                blocked.next.CopyFrom(after)
        return blocked

    def child(self) -> common.BlockedOn:
        """Return the process that the rank has started, for a thread that asks again and again whether it has ended."""
        return self._child(_NO_CALL, 0)

    def _by_place(self, state: str, place: str, call: SystemCall) -> common.BlockedOn | None:
        """Return what the place in the kernel alone shows where the thread waits."""
        link = self._link_of(call)
        path = self._files.path(call, link)
        if _FROZEN.search(place):
            return common.BlockedOn(activity=common.ACTIVITY_STOPPED, call="freezer")
        if not _DEVICE.match(link) and (_FILE_SYSTEM.match(place) or (state == "D" and path)):
            return _of(common.ACTIVITY_DISK, call, path)
        if place == _VFORK:
            return self._child(call, 0)
        if place == _FIFO_OPEN:
            return _of(common.ACTIVITY_PIPE, call, path)
        if state == "D" and not _DEVICE.match(link):
            return _of(common.ACTIVITY_SYSTEM_CALL, call)
        return None

    def _by_call(self, place: str, call: SystemCall) -> common.BlockedOn | None:
        link = self._link_of(call)
        if call.locks_file:
            return self._file_lock(call, link)
        if call.name in system_calls.WAITS and not link:
            return self._child(call, call.child or 0)
        if call.name == "futex":
            futex = call.arguments[0]
            around = self._files.memory(futex - 8, proc_texts.LOCK_BYTES)
            return _of(common.ACTIVITY_LOCK, call) if proc_texts.is_python_lock(futex, around) else None
        if call.name in system_calls.SLEEPS:
            return _of(common.ACTIVITY_SLEEP, call)
        return self._on_descriptors(call, place)

    def _link_of(self, call: SystemCall) -> str:
        return self._files.link(call.descriptor) if call.descriptor is not None else ""

    def _on_descriptors(self, call: SystemCall, place: str) -> common.BlockedOn | None:
        """Return what the thread waits for on descriptors: the first connection, pipe or process among them."""
        found = None
        for descriptor in self._files.descriptors(call):
            link = self._files.link(descriptor)
            blocked = self._on_descriptor(call, descriptor, link, place)
            if blocked is not None and blocked.activity != common.ACTIVITY_SYSTEM_CALL:
                return blocked
            found = found or blocked
        return found

    def _on_descriptor(self, call: SystemCall, descriptor: int, link: str, place: str) -> common.BlockedOn | None:
        if link.startswith("socket:["):
            return self._socket(call, link)
        if link == "anon_inode:[pidfd]":
            return self._child(call, self._files.info(descriptor).process)
        is_named_pipe = link.startswith("/") and (
            "pipe" in place or (call.name in system_calls.POLLS and not link.startswith("/dev/"))
        )
        if link.startswith("pipe:[") or is_named_pipe:
            return self._pipe(call, descriptor, link)
        if link.startswith("/") and not _DEVICE.match(link):
            return _of(common.ACTIVITY_SYSTEM_CALL, call, link)
        return None

    def _file_lock(self, call: SystemCall, link: str) -> common.BlockedOn:
        blocked = _of(common.ACTIVITY_FILE_LOCK, call, link)
        text = try_read(f"{self.proc}/locks", _LOCKS_BYTES)
        inode = self._files.info(call.arguments[0]).inode
        holder = proc_texts.holder_of(proc_texts.parse_locks(text), self.pid, inode)
        if holder and self.relatives.lives(holder):
            self.relatives.of_process(holder).enter(blocked, self.relatives.command(holder))
        return blocked

    def _pipe(self, call: SystemCall, descriptor: int, link: str) -> common.BlockedOn:
        blocked = _of(common.ACTIVITY_PIPE, call, link if link.startswith("/") else "")
        writes = call.name in system_calls.WRITES or (
            call.name in system_calls.POLLS and not self._files.info(descriptor).reads
        )
        self._enter_holder(blocked, link, of_writes=not writes)
        if blocked.party == common.PARTY_CHILD:
            blocked.activity = common.ACTIVITY_PROCESS
            self._compiler(blocked)
        return blocked

    def _socket(self, call: SystemCall, link: str) -> common.BlockedOn:
        blocked = _of(common.ACTIVITY_SOCKET, call)
        inode = proc_texts.parse_inode(link)
        try:
            sockets = read_sockets()
        except OSError:
            sockets = {}
        own = sockets.get(inode)
        if own is None:
            other = peers.unix_peer(inode)
        elif own.state == LISTEN:
            blocked.activity = common.ACTIVITY_UNSPECIFIED  # it waits for others to come, and these may be ranks
            return blocked
        else:
            blocked.peer = peers.peer_name(own)
            other = peers.other_end(own, sockets)
        if own is not None and self.store_port and own.remote_port == self.store_port:
            blocked.party = common.PARTY_STORE
        elif other:
            self._enter_holder(blocked, f"socket:[{other}]", of_writes=True)
        if blocked.party == common.PARTY_CHILD:
            blocked.activity = common.ACTIVITY_PROCESS
            self._compiler(blocked)
        elif blocked.party in (common.PARTY_STORE, common.PARTY_RANK) or (
            blocked.party == common.PARTY_UNSPECIFIED and not self.trusts_sockets
        ):
            blocked.activity = common.ACTIVITY_UNSPECIFIED  # the rank may wait for another one
        return blocked

    def _child(self, call: SystemCall, pid: int) -> common.BlockedOn:
        blocked = _of(common.ACTIVITY_PROCESS, call)
        children = list(self.relatives.children(self.pid))
        if not pid and len(children) == 1:
            pid = children[0]
        if pid:
            self.relatives.of_process(pid).enter(blocked, self.relatives.command(pid))
        elif children:
            blocked.party = common.PARTY_CHILD
        self._compiler(blocked)
        return blocked

    def _compiler(self, blocked: common.BlockedOn) -> None:
        """Name the compiler if the process for which the rank waits is one, or has started one."""
        if not blocked.pid:
            return
        try:
            below = [blocked.pid, *self.relatives.descendants(blocked.pid)]
        except OutOfTimeError:
            below = [blocked.pid]
        names = {pid: self.relatives.command(pid) for pid in below}
        compilers = [pid for pid in below if is_compiler(names[pid])]
        if compilers:
            blocked.activity = common.ACTIVITY_COMPILER
            blocked.pid, blocked.command = compilers[-1], names[compilers[-1]]

    def _enter_holder(self, blocked: common.BlockedOn, link: str, *, of_writes: bool) -> None:
        try:
            other = self.relatives.holder(link, of_writes=of_writes)
        except OutOfTimeError:
            other = UNKNOWN
        other.enter(blocked, self.relatives.command(other.pid) if other.pid else "")

    def _of_child(self, pid: int) -> common.BlockedOn | None:
        """Return what a process is blocked on that the rank has started."""
        stat = read_process(pid, self.proc)
        if stat is None or not stat.lives:
            return None
        if stat.state in "Tt":
            return common.BlockedOn(activity=common.ACTIVITY_STOPPED)
        if stat.state == "R":
            return common.BlockedOn(activity=common.ACTIVITY_USER_CODE)
        child = BlockedThread(pid, self.relatives, self.store_port, self.trusts_sockets, self.proc, self.machine)
        blocked = child.look(deeper=False)
        if blocked is None or blocked.party == common.PARTY_ITSELF:
            return None  # it waits for the rank in turn: it has nothing to do
        if blocked.party == common.PARTY_CHILD:
            UNKNOWN.enter(blocked, "")  # processes that the rank has started have pipes of each other open
        return blocked


def look_at_rank(
    pid: int, ranks: Mapping[int, int], *, store_port: int = 0, computes_on_cpu: bool = False
) -> BlockedThread:
    """Return a look at the threads of the rank ``pid``. ``ranks``: pid -> number of all ranks of this node."""
    relatives = Relatives(pid, ranks, deadline_s=monotonic() + LONGEST_S)
    return BlockedThread(pid, relatives, store_port, computes_on_cpu)


def is_compiler(command: str) -> bool:
    """Return whether a process is a compiler, or one of its parts, by its name."""
    return bool(_COMPILER.match(command))


def _of(activity: "common.Activity", call: SystemCall, path: str = "") -> common.BlockedOn:
    return common.BlockedOn(activity=activity, call=call.name, path=clean(path, LONGEST_PATH))
