"""The warm parent: imports torch and the trainer once, then forks ranks that need not import anything.

It is a process of its own with one thread. It opens no gRPC channel, serves nothing but its agent's socket and touches
no device. fork() copies only the calling thread: locks that other threads hold would stay locked in the child, and a
CUDA context does not work in a child at all.

The warm parent outlives its agent, and the next agent connects to the same socket. At most one serves a socket: if an
agent dies before its warm parent listens, the next agent starts another one, and the later of the two ends.

    python -m holdfast_agent.processes.warm_parent SOCKET RUN MODULE... -- COMMAND...

COMMAND is what a rank runs. It is an argument so that a rank has room to show it in ``ps``: see process_title.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

from google.protobuf.message import DecodeError

from holdfast_agent.processes.cold_rank import start_cold, thread_names, why_no_fork
from holdfast_agent.processes.rank_program import become_rank
from holdfast_base.processes import name_process, title_process
from holdfast_base.sockets import peer
from holdfast_proto.v1 import warm_parent_pb2 as pb

ORPHAN_PATIENCE_S = 60.0
"""Time after which a warm parent without an agent and without children ends."""

SELECT_S = 5.0
"""Longest wait for something to happen; then it checks whether it should end, and whether its socket still exists."""

SHORTAGE_PAUSE_S = 0.2
"""Pause after a connection could not be accepted for lack of descriptors."""

NAMING_S = 0.05
"""Time for a new thread to give itself its name."""

MESSAGE_BYTES = 1 << 18
PR_SET_PTRACER = 0x59616D61
STORE_RANK = 0xFFFFFFFF
"""Rank number that messages about children use for the process that serves the rendezvous store."""


def claim(path: Path) -> int | None:
    """Return a descriptor whose lock says that this process serves ``path``, or None if another one does."""
    # A POSIX lock (lockf) belongs to one process: children do not inherit it, and the kernel drops it when the process
    # dies. A lock by flock() is shared with every child that inherits the descriptor, so a rank that outlives its warm
    # parent could keep the next warm parent from serving.
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def listen(path: Path) -> socket.socket:
    """Return a listening SOCK_SEQPACKET socket, mode 0600. ``path`` must be claimed.

    Sockets of this type keep the boundaries of messages, so that each recv() returns one message.
    """
    path.unlink(missing_ok=True)  # a dead warm parent has left it: the claim says that no other one serves it
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen()  # with the default backlog: agents that died while they waited are still in the queue
    return listener


def preload(modules: list[str]) -> bool:
    """Import modules; return whether ranks can still be forked after that. If one forbids it, import no more.

    A module that cannot be imported fails later in the rank, with its own traceback.
    """
    gc.disable()  # nearly all objects that an import creates stay: looking for garbage would take a fifth of the time
    try:
        for name in modules:
            threads = len(thread_names())
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001  a user's module may raise anything
                print(f"warm parent: cannot import {name} ahead: {error!r}", file=sys.stderr, flush=True)
            if len(thread_names()) > threads:
                time.sleep(NAMING_S)
            if did := why_no_fork():
                _say_cold(f"the import of {name} {did}")
                return False
    finally:
        gc.enable()
    return True


def _say_cold(what: str) -> None:
    line = f"warm parent: {what}, so ranks start in new interpreters, which takes longer: keep that out of imports"
    print(line, file=sys.stderr, flush=True)


class WarmParent:
    """Serves the requests of one agent at a time, and reaps the ranks. Nothing here may start a thread."""

    def __init__(self, listener: socket.socket, claimed: int, import_s: float, run: str, *, is_warm: bool) -> None:
        self.is_warm = is_warm
        """Whether a child can go on as a rank. If not, it must start a new interpreter: see cold_rank.py."""
        self._run = run
        self._listener = listener
        self._claimed = claimed
        self._import_s = import_s
        self._agent: socket.socket | None = None
        self._children: dict[int, pb.Forked] = {}
        """Pid -> child that has not been reaped."""
        self._exits: list[pb.ParentReply] = []
        """Exits of the newest generation's ranks. Each new agent gets all of them: the kernel may have taken the report
        of one for an agent that was dying and never read it."""
        self._leaving = False
        self._agent_gone_at = time.monotonic()
        # SIGCHLD wakes the loop through this pipe. The handler does nothing, but without one Python would not write to
        # the pipe.
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> pb.Fork | None:
        """Serve until there is nothing left to do, and return None. In a forked child, return the rank's request.

        Returning is how a child leaves the loop: the caller then turns it into a rank, with the selector closed.
        """
        with selectors.DefaultSelector() as selector:
            while True:
                self._keep_path()
                for key in list(selector.get_map().values()):
                    selector.unregister(key.fileobj)
                for source in (self._listener, self._wake_reader, self._agent):
                    if source is not None:
                        selector.register(source, selectors.EVENT_READ)
                ready = {key.fileobj for key, _ in selector.select(timeout=SELECT_S)}
                if self._wake_reader in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_reader, 4096)
                self._reap()
                if self._listener in ready:
                    self._accept()
                if self._agent is not None and self._agent in ready:
                    request = self._receive()
                    if request is not None:
                        return request
                if self._is_done():
                    return None

    def _keep_path(self) -> None:
        """Listen again if the socket's file was removed.

        Without the file no agent could reach this process. No other could take its place either, because this one
        holds the claim.
        """
        path = Path(self._listener.getsockname())
        if not path.exists():
            with contextlib.suppress(OSError):
                listener = listen(path)
                self._listener.close()
                self._listener = listener

    def _is_done(self) -> bool:
        if self._children:
            return False
        orphaned_s = time.monotonic() - self._agent_gone_at if self._agent is None else 0.0
        return self._leaving or orphaned_s > ORPHAN_PATIENCE_S

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # no descriptor is free, or the agent has gone; an agent tries again
            print(f"warm parent: cannot accept an agent: {error}", file=sys.stderr, flush=True)
            time.sleep(SHORTAGE_PAUSE_S)
            return
        # A client can run programs as this user, so the socket's mode is not the only protection.
        if peer(connection).uid != os.geteuid():
            connection.close()
            return
        if self._agent is not None:
            self._agent.close()  # a node has one agent: the newer one replaces one that has died
        self._agent = connection
        ready = pb.Ready(pid=os.getpid(), children=self._children.values(), import_s=self._import_s)
        for reply in (pb.ParentReply(ready=ready), *self._exits):
            self._send(reply)

    def _send(self, reply: pb.ParentReply) -> None:
        if self._agent is not None:
            try:
                self._agent.send(reply.SerializeToString())
            except OSError:
                self._drop_agent()

    def _drop_agent(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None
            self._agent_gone_at = time.monotonic()

    def _receive(self) -> pb.Fork | None:
        assert self._agent is not None
        try:
            data = self._agent.recv(MESSAGE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._drop_agent()
            return None
        try:
            request = pb.ParentRequest.FromString(data)
        except DecodeError as error:
            print(f"warm parent: a message makes no sense: {error}", file=sys.stderr, flush=True)
            return None
        match request.WhichOneof("kind"):
            case "fork":
                return self._fork(request.fork)
            case "preload" if self.is_warm:
                self.is_warm = preload(list(request.preload.modules))
                gc.freeze()
            case "host_store":
                self._host_store(request.host_store)
            case "leave":
                self._leaving = True
        return None

    def _fork(self, request: pb.Fork) -> pb.Fork | None:
        if self.is_warm and (did := why_no_fork()):  # a thread got its name late, or something else started it
            self.is_warm = False
            _say_cold(f"an import {did}")
        try:
            pid = os.fork()
        except OSError as error:  # no process or no memory is left; the ranks that run are not affected
            print(f"warm parent: cannot fork rank {request.rank}: {error}", file=sys.stderr, flush=True)
            self._send(pb.ParentReply(forked=pb.Forked(generation=request.generation, rank=request.rank)))
            return None
        if pid == 0:
            self._allow_stacks()
            self._forget()
            return request
        self._children[pid] = pb.Forked(generation=request.generation, rank=request.rank, pid=pid)
        self._send(pb.ParentReply(forked=self._children[pid]))
        return None

    def _forget(self) -> None:
        """In a child: give up everything that belongs to the parent.

        Descriptors survive fork(). A child that kept the listener or the agent's connection would keep them open after
        the parent's death: agents would connect to a socket that nobody serves, or wait for an answer forever.
        """
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        self._listener.close()
        os.close(self._claimed)
        if self._agent is not None:
            self._agent.close()
        # A session of its own, whose id is the child's pid: the agent kills a rank with everything that it has started
        # by that id, and Ctrl-C in a terminal does not reach the rank.
        os.setsid()

    def _allow_stacks(self) -> None:
        """In a rank: allow the agent's tools to read its stacks, on kernels where Yama requires permission."""
        if self._agent is not None:
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(peer(self._agent).pid), 0, 0, 0)

    def _host_store(self, request: pb.HostStore) -> None:
        try:
            self._fork_store(request)
        except (OSError, ValueError) as error:
            print(f"warm parent: cannot host a store: {error}", file=sys.stderr, flush=True)
            self._send(pb.ParentReply(store_ready=pb.StoreReady(generation=request.generation)))

    def _fork_store(self, request: pb.HostStore) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            self._forget()
            os.close(reader)
            name_process("holdfast-store")
            title_process(f"holdfast: rendezvous store of {self._run}, generation {request.generation}")
            _serve_store(request.address, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            port = pipe.read()  # ends when the child closes its end: once the store listens, or when the child dies
        self._children[pid] = pb.Forked(generation=request.generation, rank=STORE_RANK, pid=pid)
        ready = pb.StoreReady(generation=request.generation, port=int(port or 0), pid=pid)
        self._send(pb.ParentReply(store_ready=ready))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None and child.rank != STORE_RANK:
                reply = pb.ParentReply(
                    exited=pb.Exited(generation=child.generation, rank=child.rank, pid=pid, wait_status=status)
                )
                self._exits = [one for one in self._exits if one.exited.generation >= child.generation]
                self._exits.append(reply)
                self._send(reply)


def _serve_store(address: str, writer: int) -> NoReturn:
    """Serve a TCPStore on ``address`` alone, on a port that the kernel chooses, until killed.

    Writes the port to ``writer``. This runs in a child: the store starts threads, which the warm parent must not have.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port = listener.getsockname()[1]
    store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=True
    )
    os.write(writer, str(port).encode())
    os.close(writer)
    while store is not None:
        signal.pause()
    os._exit(0)


def modules_to_preload(command: list[str]) -> list[str]:
    """Return what to import before forking ``command``.

    A trainer started as ``python -m package`` may have ``package.preload``, a module that imports everything that its
    ranks need.
    """
    modules = ["torch", "torch.distributed", "holdfast_hooks"]
    if "-m" in command[:-1]:
        package = command[command.index("-m") + 1].split(".")[0]
        with contextlib.suppress(ImportError):
            if importlib.util.find_spec(f"{package}.preload") is not None:
                modules.append(f"{package}.preload")
    return modules


def main() -> None:
    """Serve; in a forked child, become the rank."""
    # Otherwise torch.cuda.is_available() initializes the CUDA driver in this process, and no fork of it can use CUDA.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # Otherwise NumPy starts OpenBLAS's threads here, and a process with threads cannot be forked safely.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.insert(0, str(Path.cwd()))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the agent, which decides whether the ranks end
    path, run = Path(sys.argv[1]), sys.argv[2]
    modules = sys.argv[3 : sys.argv.index("--")]
    name_process("holdfast-warm")
    title_process(f"holdfast: warm parent of {run} at {path}")
    claimed = claim(path)
    if claimed is None:
        sys.exit(f"warm parent: another one serves {path}")
    listener = listen(path)  # before the imports, so that an agent can connect now and wait for Ready
    started = time.monotonic()
    is_warm = preload(modules)
    gc.collect()
    # A garbage collection writes to every object that it visits. In a child, that would copy the pages which it shares
    # with the parent. Frozen objects are never visited.
    gc.freeze()
    parent = WarmParent(listener, claimed, time.monotonic() - started, run, is_warm=is_warm)
    request = parent.serve()
    if request is not None:
        if not parent.is_warm:
            start_cold(request, run)
        sys.path.pop(0)  # run_program() puts what `python` would put there
        signal.signal(signal.SIGINT, signal.default_int_handler)
        become_rank(request, run)


if __name__ == "__main__":
    main()
