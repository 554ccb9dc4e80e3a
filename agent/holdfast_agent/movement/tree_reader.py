"""Reads the counters of all processes in a rank's process tree from the kernel."""

import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic, sleep

from holdfast_agent.movement.process_table import Process, ProcessStat, read_file, read_process, read_table, tree_of
from holdfast_agent.movement.tcp_counters import LISTEN, TcpSocket, read_sockets
from holdfast_agent.movement.tree_sample import IoCounters, ProcessSample, ThreadSample, TreeSample
from holdfast_proto.v1.store_pb2 import LostWorker

LONGEST_S = 4.0
"""Longest time for reading a tree. If it takes longer, the state of the tree is unknown."""

_NS_PER_S = 1e9
_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    "multiprocessing.forkserver",
    "torch/_inductor/compile_worker",
)
"""Parts of the command lines of helper processes that Python and torch keep. They do no work of the rank."""

_LOADER_WORKER = "pt_data_worker"
"""Name that torch gives the main thread of a worker of its data loader (``_worker_loop``)."""

_CONSISTENT_TRIES = 10
_REST_S = 0.005
"""Pause between two tries to find the background threads at rest."""

_ANCESTORS = 32

_DESCRIPTOR_CALLS: Mapping[str, frozenset[int]] = {
    "x86_64": frozenset(
        {0, 1, 16, 17, 18, 19, 20, 40, 42, 43, 44, 45, 46, 47, 72, 73, 74, 75, 217, 232, 281, 285, 288, 295, 296}
    ),
    "aarch64": frozenset(
        {22, 25, 29, 32, 47, 61, 63, 64, 65, 66, 67, 68, 69, 70, 71, 82, 83, 202, 203, 206, 207, 211, 212, 242}
    ),
}
"""System calls whose first argument is a descriptor: reads, writes, waits and control calls on one file or socket."""

_RESTART: Mapping[str, int] = {"x86_64": 219, "aarch64": 128}
"""Number of restart_syscall(), which continues a call that a stop has interrupted."""


class UnknownError(Exception):
    """The state of the tree cannot be read. The message says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The processes and TCP sockets of the machine. The trees of all ranks are taken from them."""

    table: Mapping[int, ProcessStat]
    sockets: Mapping[int, TcpSocket]

    @classmethod
    def read(cls) -> "Machine":
        """Read both. Raises UnknownError."""
        try:
            return cls(read_table(), read_sockets())
        except OSError as error:
            raise UnknownError(f"the machine's processes and sockets cannot be read: {error}") from error


class TreeReader:
    """Reads the tree of one rank repeatedly. Threads and processes that have not run since are not read again.

    Args:
        root: the rank's process.
        store_port: port of the rendezvous store, whose connections torch's watchdogs poll; 0: not known.
        agent_pid: pid of the agent, whose descendants may trace the tree; 0: the calling process.
        training_thread: number of the thread that trains; 0: the main thread.
    """

    def __init__(
        self,
        root: Process,
        *,
        store_port: int = 0,
        agent_pid: int = 0,
        training_thread: int = 0,
        proc: str = "/proc",
    ) -> None:
        self._root = root
        self._training_thread = training_thread or root[0]
        self._store_port = store_port
        self._agent_pid = agent_pid or os.getpid()
        self._proc = proc
        self._before: Mapping[Process, ProcessSample] = {}
        self._helpers: dict[Process, bool] = {}
        self._programs: dict[Process, bool] = {}
        self._command = self._command_of(root)
        self._newest_call = ""

    def read(self, machine: Machine) -> TreeSample | None:
        """Return the tree as it is now, or None if the rank has ended.

        Raises UnknownError if the kernel does not show enough to decide whether anything moves.
        """
        at_s = monotonic()
        tree = tree_of(self._root, machine.table, self._before)
        processes: dict[Process, ProcessSample] = {}
        for identity, stat in tree.items():
            sample = self._process(stat, self._before.get(identity))
            if sample is not None:
                processes[identity] = sample
            if monotonic() > at_s + LONGEST_S:
                raise UnknownError(f"{len(tree)} processes cannot be read within {LONGEST_S:g} s")
        self._before = processes
        root = processes.get(self._root)
        if root is None:
            return None
        self._newest_call = self._call(root) or self._newest_call
        training = root.threads.get(self._training_thread)
        workers = self._workers(processes)
        return TreeSample(
            processes=processes,
            sockets=self._tcp(machine.sockets, processes.values()),
            call=self._newest_call,
            traced=any(self._is_traced(process) for process in processes.values()),
            workers=workers,
            lost_worker=self._lost_worker(machine.table, others=workers),
            at_s=at_s,
            training_s=training.ran_s if training is not None else 0.0,
            turns=(training.turns or 0 if training is not None else 0) + self._programs_turns(processes),
        )

    def _process(self, stat: ProcessStat, before: ProcessSample | None) -> ProcessSample | None:
        """Return a process, or None if it has ended since the table was read."""
        if stat.state == "T":  # nothing moves in a stopped process, so its other files need not be read
            return replace(before, stat=stat) if before is not None else ProcessSample(stat)
        folder = f"{self._proc}/{stat.pid}"
        try:
            threads = self._threads(folder, before.threads if before is not None else {})
            if before is not None and before.threads and not _has_run(before.threads, threads):
                return replace(before, stat=stat)
            if before is None and not self._is_in_our_network(folder):
                raise UnknownError(f"process {stat.pid} is in another network namespace")
            return ProcessSample(stat, threads, self._io(folder, threads), self._sockets(folder))
        except OSError as error:
            now = read_process(stat.pid, self._proc)
            if now is None or now.identity != stat.identity or not now.lives:
                return None
            raise UnknownError(f"process {stat.pid} cannot be read: {error}") from error
        except (ValueError, LookupError) as error:
            raise UnknownError(f"/proc/{stat.pid} holds garbage: {error}") from error

    def _threads(self, folder: str, before: Mapping[int, ThreadSample]) -> dict[int, ThreadSample]:
        threads: dict[int, ThreadSample] = {}
        for tid in map(int, os.listdir(f"{folder}/task")):  # noqa: PTH208 - much faster, and there may be thousands
            try:
                threads[tid] = _thread(f"{folder}/task/{tid}", before.get(tid))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
        if not threads:
            raise FileNotFoundError(f"{folder}/task shows no thread")
        return threads

    def _io(self, folder: str, threads: Mapping[int, ThreadSample]) -> IoCounters:
        """Return the counters of the process without those of its background threads.

        The kernel counts for the process and for each thread, but not all at one moment. The difference is right only
        if the background threads have not moved between the reads, so this retries until they have not.
        """
        background = [f"{folder}/task/{tid}/io" for tid, thread in threads.items() if thread.is_background]
        for _ in range(_CONSISTENT_TRIES):
            before, total, after = _sum_of(background), parse_io(read_file(f"{folder}/io")), _sum_of(background)
            if before == after:
                return total.minus(after)
            sleep(_REST_S)
        raise UnknownError(f"the threads in the background of {folder} never rest")

    def _sockets(self, folder: str) -> frozenset[int]:
        inodes = set()
        for descriptor in os.listdir(f"{folder}/fd"):  # noqa: PTH208 - as above
            try:
                target = os.readlink(f"{folder}/fd/{descriptor}")  # noqa: PTH115
            except FileNotFoundError:
                continue  # it has been closed
            if target.startswith("socket:["):
                inodes.add(int(target[len("socket:[") : -1]))
        return frozenset(inodes)

    def _is_in_our_network(self, folder: str) -> bool:
        return os.readlink(f"{folder}/ns/net") == os.readlink("/proc/self/ns/net")  # noqa: PTH115

    def _tcp(self, sockets: Mapping[int, TcpSocket], processes: Iterable[ProcessSample]) -> dict[int, TcpSocket]:
        held = {inode: sockets[inode] for process in processes for inode in process.sockets if inode in sockets}
        hosts = any(each.state == LISTEN and each.local_port == self._store_port for each in held.values())

        def is_rendezvous(each: TcpSocket) -> bool:
            return self._store_port != 0 and (
                each.remote_port == self._store_port or (hosts and each.local_port == self._store_port)
            )

        return {inode: each for inode, each in held.items() if each.state != LISTEN and not is_rendezvous(each)}

    def _call(self, root: ProcessSample) -> str:
        pid, tid = root.stat.pid, self._training_thread
        if root.stat.state == "T":
            return ""
        try:
            return parse_call(read_file(f"{self._proc}/{pid}/task/{tid}/syscall"), platform.machine())
        except OSError:
            # This kernel hides system calls. But a thread that has not run is still in the same call.
            thread = root.threads.get(tid)
            if thread is None or thread.turns is None:
                raise UnknownError(f"the kernel does not show what thread {tid} waits for") from None
            return f"turns {thread.turns}"

    def _is_traced(self, process: ProcessSample) -> bool:
        tracers = {thread.tracer for thread in process.threads.values()} - {0}
        if not tracers:
            return False
        return any(not _descends_from(tracer, self._agent_pid, self._proc) for tracer in tracers)

    def _workers(self, processes: Mapping[Process, ProcessSample]) -> int:
        candidates = [each for each in processes if each != self._root and processes[each].stat.state != "T"]
        self._helpers = {each: self._helpers.get(each, False) or self._is_helper(each) for each in candidates}
        return sum(not is_helper for is_helper in self._helpers.values())

    def _lost_worker(self, table: Mapping[int, ProcessStat], *, others: int) -> LostWorker | None:
        """Return a worker whose end leaves its rank without data. ``others``: live processes that the rank has started.

        torch names its workers. Any other child that was forked may be one too, if no process is left to bring data;
        programs that the script has started are not: nobody can tell whether their end means anything.
        """
        for process in table.values():
            is_worker = process.name == _LOADER_WORKER or (process.is_forked and not others)
            if process.parent == self._root[0] and process.state == "Z" and process.exit_code and is_worker:
                return LostWorker(pid=process.pid, code=process.exit_code)
        return None

    def _programs_turns(self, processes: Mapping[Process, ProcessSample]) -> int:
        """Return the turns of the main threads of other programs. Workers of a data loader poll for work even then when
        their rank hangs, and are no other program: they are forked, or started by ``multiprocessing``.
        """
        before = self._programs
        self._programs = {each: before[each] if each in before else self._is_program(each) for each in processes}
        mains = (processes[each].threads.get(each[0]) for each, is_one in self._programs.items() if is_one)
        return sum(main.turns or 0 for main in mains if main is not None)

    def _is_program(self, process: Process) -> bool:
        words = self._command_of(process)
        return words not in ("", self._command) and "multiprocessing" not in words and not self._is_helper(process)

    def _is_helper(self, process: Process) -> bool:
        return any(helper in self._command_of(process) for helper in _HELPERS)

    def _command_of(self, process: Process) -> str:
        """Return the command line of a process, up to a limit; empty: it has ended."""
        try:
            return read_file(f"{self._proc}/{process[0]}/cmdline")
        except OSError:
            return ""


def _thread(folder: str, before: ThreadSample | None) -> ThreadSample:
    ran_s, turns = _clock(folder)
    if before is not None and turns is not None and turns == before.turns:
        return before if ran_s == before.ran_s else replace(before, ran_s=ran_s)
    name, tracer = parse_status(read_file(f"{folder}/status"))
    return ThreadSample(ran_s, turns, name, tracer)


def _clock(folder: str) -> tuple[float, int | None]:
    """Return the CPU seconds of a thread, and the number of times that it has got a core."""
    try:
        ran_ns, _, turns = read_file(f"{folder}/schedstat").split()
        if turns != "0":  # else it has never run, or this kernel does not count
            return int(ran_ns) / _NS_PER_S, int(turns)
    except (FileNotFoundError, ValueError):
        pass
    tid = int(folder.rpartition("/")[2])
    stat = read_process(tid, folder.rpartition("/")[0])
    if stat is None:
        raise ProcessLookupError(f"thread {tid} has ended")
    return stat.cpu_s, None


def _has_run(before: Mapping[int, ThreadSample], now: Mapping[int, ThreadSample]) -> bool:
    return before.keys() != now.keys() or any(
        thread.turns is None or thread is not before[tid] for tid, thread in now.items()
    )


def _sum_of(files: Iterable[str]) -> IoCounters:
    total = IoCounters()
    for file in files:
        try:
            total = total.plus(parse_io(read_file(file)))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def _descends_from(pid: int, ancestor: int, proc: str) -> bool:
    """Return whether a process is ``ancestor`` or a descendant of it."""
    for _ in range(_ANCESTORS):
        if pid == ancestor:
            return True
        process = read_process(pid, proc)
        if process is None or not process.parent:
            return False
        pid = process.parent
    return False


def parse_io(text: str) -> IoCounters:
    """Parse /proc/PID/io. Raises ValueError or LookupError."""
    numbers = {name: int(number) for name, _, number in (line.partition(":") for line in text.splitlines())}
    return IoCounters(
        read_bytes=numbers["rchar"],
        written_bytes=numbers["wchar"],
        reads=numbers["syscr"],
        writes=numbers["syscw"],
        disk_bytes=numbers["read_bytes"],  # write_bytes counts a whole page for each line of a log
    )


def parse_status(text: str) -> tuple[str, int]:
    """Parse the name and the tracer from /proc/PID/task/TID/status. Raises ValueError or LookupError."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key, value.strip())
    return fields["Name"], int(fields["TracerPid"])


def parse_call(text: str, machine: str) -> str:
    """Parse ``number`` or ``number descriptor`` from /proc/PID/task/TID/syscall; empty: in no call, or unclear.

    Arguments of other calls are addresses, which change with each call of a thread that polls.
    """
    number, _, arguments = text.strip().partition(" ")
    if not number.isdecimal() or int(number) == _RESTART.get(machine):
        return ""
    if int(number) in _DESCRIPTOR_CALLS.get(machine, frozenset()):
        return f"{number} {arguments.partition(' ')[0]}"
    return number
