"""The warm parent: imports torch and the trainer once, then forks ranks that need not import anything.

A process of its own, with one thread: it opens no gRPC channel, serves nothing but its agent's socket and
touches no device, because a process with threads, channels or a CUDA context cannot be forked
safely. It outlives its agent; the next one connects to the same socket. There is one for a socket: where an agent
died before its warm parent listened, the next agent has started another, and the later of the two ends.

    python -m holdfast_agent.processes.warm_parent SOCKET MODULE...
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

from google.protobuf.message import DecodeError

from holdfast_proto.sockets import peer
from holdfast_proto.v1 import warm_parent_pb2 as pb

ORPHAN_PATIENCE_S = 60.0
"""Without an agent and without children the warm parent ends itself after so long."""

SHORTAGE_PAUSE_S = 0.2

MESSAGE_BYTES = 1 << 18
PR_SET_PTRACER = 0x59616D61
STORE_RANK = 0xFFFFFFFF
"""Stands for the process that serves the rendezvous store in messages about children."""


def claim(path: Path) -> int | None:
    """Return a descriptor whose lock says that this process serves ``path``, or None if another does.

    The lock is that of the process and of no child: it ends with the process, whoever lives on.
    """
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def listen(path: Path) -> socket.socket:
    """Return a listening SOCK_SEQPACKET socket (messages keep their borders), mode 0600. ``path`` must be claimed."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen()  # agents that died while they waited are still in the queue
    return listener


def preload(modules: list[str]) -> None:
    """Import what can be imported; what cannot will fail in the rank, with its own traceback."""
    gc.disable()  # nearly all that an import makes stays: looking for garbage meanwhile takes a fifth of its time
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001  any module of the user's may raise anything
                print(f"warm parent: cannot import {name} ahead: {error!r}", file=sys.stderr, flush=True)
    finally:
        gc.enable()


class WarmParent:
    """The parent's loop. :meth:`serve` returns in a forked child with what that child shall become."""

    def __init__(self, listener: socket.socket, claimed: int, import_s: float) -> None:
        self._listener = listener
        self._claimed = claimed
        self._import_s = import_s
        self._agent: socket.socket | None = None
        self._children: dict[int, pb.Forked] = {}
        self._unreported: list[pb.ParentReply] = []
        self._leaving = False
        self._agent_gone_at = time.monotonic()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> pb.Fork | None:
        """Serve until there is nothing left to do (None), or return the order in the child forked for it."""
        with selectors.DefaultSelector() as selector:
            while True:
                self._keep_path()
                for key in list(selector.get_map().values()):
                    selector.unregister(key.fileobj)
                for source in (self._listener, self._wake_reader, self._agent):
                    if source is not None:
                        selector.register(source, selectors.EVENT_READ)
                ready = {key.fileobj for key, _ in selector.select(timeout=5.0)}
                if self._wake_reader in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_reader, 4096)
                self._reap()
                if self._listener in ready:
                    self._accept()
                if self._agent is not None and self._agent in ready:
                    order = self._receive()
                    if order is not None:
                        return order
                if self._is_done():
                    return None

    def _keep_path(self) -> None:
        """Listen anew if somebody has removed the socket: no agent could reach us, and none could take our place."""
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
        except OSError as error:  # no descriptor is free, or the agent has gone: it tries again
            print(f"warm parent: cannot accept an agent: {error}", file=sys.stderr, flush=True)
            time.sleep(SHORTAGE_PAUSE_S)
            return
        if peer(connection).uid != os.geteuid():
            connection.close()
            return
        if self._agent is not None:
            self._agent.close()
        self._agent = connection
        ready = pb.Ready(pid=os.getpid(), children=self._children.values(), import_s=self._import_s)
        unreported, self._unreported = self._unreported, []
        for reply in (pb.ParentReply(ready=ready), *unreported):
            self._send(reply)

    def _send(self, reply: pb.ParentReply) -> None:
        if self._agent is not None:
            try:
                self._agent.send(reply.SerializeToString())
                return
            except OSError:
                self._drop_agent()
        if reply.HasField("exited"):
            self._unreported.append(reply)

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
            case "preload":
                preload(list(request.preload.modules))
                gc.freeze()
            case "host_store":
                self._host_store(request.host_store)
            case "leave":
                self._leaving = True
        return None

    def _fork(self, order: pb.Fork) -> pb.Fork | None:
        try:
            pid = os.fork()
        except OSError as error:  # no process or no memory is left: the ranks that run go on
            print(f"warm parent: cannot fork rank {order.rank}: {error}", file=sys.stderr, flush=True)
            self._send(pb.ParentReply(forked=pb.Forked(generation=order.generation, rank=order.rank)))
            return None
        if pid == 0:
            self._allow_stacks()
            self._forget()
            return order
        self._children[pid] = pb.Forked(generation=order.generation, rank=order.rank, pid=pid)
        self._send(pb.ParentReply(forked=self._children[pid]))
        return None

    def _forget(self) -> None:
        """In a child: let go of everything that is the parent's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        self._listener.close()
        os.close(self._claimed)
        if self._agent is not None:
            self._agent.close()
        os.setsid()

    def _allow_stacks(self) -> None:
        """In a rank: let the agent's tools read its stacks, where the kernel's Yama asks for leave."""
        if self._agent is not None:
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(peer(self._agent).pid), 0, 0, 0)

    def _host_store(self, order: pb.HostStore) -> None:
        try:
            self._fork_store(order)
        except (OSError, ValueError) as error:
            print(f"warm parent: cannot host a store: {error}", file=sys.stderr, flush=True)
            self._send(pb.ParentReply(store_ready=pb.StoreReady(generation=order.generation)))

    def _fork_store(self, order: pb.HostStore) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            self._forget()
            os.close(reader)
            _serve_store(order.address, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            port = pipe.read()  # the child closes its end when the store listens, or when it dies
        self._children[pid] = pb.Forked(generation=order.generation, rank=STORE_RANK, pid=pid)
        ready = pb.StoreReady(generation=order.generation, port=int(port or 0), pid=pid)
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
                exited = pb.Exited(generation=child.generation, rank=child.rank, pid=pid, wait_status=status)
                self._send(pb.ParentReply(exited=exited))


def _serve_store(address: str, writer: int) -> NoReturn:
    """Serve a TCPStore on a port that the kernel chooses, on one address only, until killed."""
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


def become_rank(order: pb.Fork) -> None:
    """Turn this forked child into a rank: its log, its environment, its program."""
    log = os.open(order.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)
    os.environ.update(order.environment)
    Path("/proc/self/comm").write_text(f"rank {order.rank}")  # what ps and top show
    run_program(list(order.command))


def run_program(command: list[str]) -> None:
    """Run ``python -m module ...`` and ``python script.py ...`` in this process, anything else by exec."""
    program, *arguments = command
    if not _is_this_python(program) or not arguments or (arguments[0].startswith("-") and arguments[0] != "-m"):
        os.execvp(sys.executable if _is_this_python(program) else program, command)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _is_this_python(program: str) -> bool:
    # A bare `python` means ours, as with torchrun, whether or not the environment is activated.
    if program in ("python", "python3"):
        return True
    found = shutil.which(program)
    # Not resolved: two virtual environments may link to the same interpreter and differ in packages.
    return found is not None and Path(found).parent == Path(sys.executable).parent and "python" in Path(found).name


def modules_to_preload(command: list[str]) -> list[str]:
    """Return what to import before forking ``command``.

    A trainer started as ``python -m package`` may offer ``package.preload``, a module that imports all
    that its ranks will need.
    """
    modules = ["torch", "torch.distributed", "grpc", "holdfast_hooks"]
    if "-m" in command[:-1]:
        package = command[command.index("-m") + 1].split(".")[0]
        with contextlib.suppress(ImportError):
            if importlib.util.find_spec(f"{package}.preload") is not None:
                modules.append(f"{package}.preload")
    return modules


def main() -> None:
    """Serve; in a forked child, become the rank."""
    # torch would otherwise ask the CUDA driver in this process, which poisons every fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # NumPy would otherwise start OpenBLAS's threads here: a process with threads cannot be forked safely.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.insert(0, str(Path.cwd()))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path = Path(sys.argv[1])
    claimed = claim(path)
    if claimed is None:
        sys.exit(f"warm parent: another one serves {path}")
    listener = listen(path)  # before the imports: an agent may connect and wait for Ready
    started = time.monotonic()
    preload(sys.argv[2:])
    gc.collect()
    gc.freeze()  # the garbage collector of a child shall not touch, and so copy, the shared pages
    order = WarmParent(listener, claimed, time.monotonic() - started).serve()
    if order is not None:
        sys.path.pop(0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        become_rank(order)


if __name__ == "__main__":
    main()
