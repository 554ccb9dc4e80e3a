"""The agent's side of the warm parent: starts it, finds it again, and asks it for ranks."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from holdfast_agent.processes.containment import Errors
from holdfast_agent.processes.warm_parent import MESSAGE_BYTES, modules_to_preload
from holdfast_base.files import share_file
from holdfast_base.processes import AgentError, kill_session, reap, start_ticks, start_ticks_of_child
from holdfast_base.sockets import peer
from holdfast_base.text import arguments_without_secrets
from holdfast_proto.v1 import warm_parent_pb2 as pb

REPLY_TIMEOUT_S = 60.0
"""Time for one fork or store, the wait for a warm parent included. A loaded machine is no reason to give up a run."""

IDENTIFY_PATIENCE_S = 10.0

MARKER = "HOLDFAST_NODE_PROCESSES"
"""Environment variable of a node's warm parent and of all that descends from it: ranks, their children, stores."""

DEATH_PAUSE_S = 1.0
"""Pause after a warm parent died before it listened. Its log says why, and the next one may fail in the same way."""

ExitHandler = Callable[[pb.Exited], None]
ReadyHandler = Callable[[pb.Ready], None]
Key = TypeVar("Key")
Reply = TypeVar("Reply")


class WarmParentClient:
    """Keeps a connection to the node's warm parent, and replaces a warm parent that dies.

    ``on_exit`` is called for every rank that the warm parent has reaped. ``on_ready`` is called after each connection,
    before the first request: all children that the warm parent has then were requested by earlier connections.
    ``mark``: value of :data:`MARKER` in the environment of the warm parents that it starts.
    """

    def __init__(
        self,
        socket_path: Path,
        log_path: Path,
        on_exit: ExitHandler,
        on_ready: ReadyHandler,
        errors: Errors | None = None,
        *,
        run_name: str,
        mark: str = "",
    ) -> None:
        self._run_name = run_name
        self._environment = {MARKER: mark} if mark else {}
        self._errors = errors or Errors()
        self._socket_path = socket_path
        self._log_path = log_path
        self._on_exit = on_exit
        self._on_ready = on_ready
        self._connection: socket.socket | None = None
        self._is_connected = asyncio.Event()
        self._forks: dict[tuple[int, int], asyncio.Future[int]] = {}
        self._stores: dict[int, asyncio.Future[pb.StoreReady]] = {}
        self._own_children: dict[int, int] = {}
        """Pid -> start time of the warm parents that this process has started and not reaped."""
        self._leaving = False
        self.pid = 0
        """Pid of the warm parent; 0 while there is none."""
        self.start_ticks = 0
        self._newest = (0, 0)
        """Pid and start time of the warm parent that was connected last. It may be dead: its children may not."""
        self.is_ready = False
        """Whether ranks can be forked now."""
        self.starts_total = 0
        """Warm parents that this process has started."""

    async def run(self, command: list[str]) -> None:
        """Keep a warm parent for ``command`` ready until :meth:`leave`: connect to one, or start one."""
        while not self._leaving:
            if await self._connect() or await self._start(command):
                try:
                    await self._listen()
                except Exception:
                    self._lost()
                    raise
                self._lost()

    async def fork(self, request: pb.Fork) -> int:
        """Return the pid of a new rank. If the warm parent is being replaced, wait for the next one.

        Raises AgentError if the warm parent dies before it answers, does not answer in time, or cannot fork.
        """
        pid = await self._ask(pb.ParentRequest(fork=request), self._forks, (request.generation, request.rank))
        if not pid:
            raise AgentError(f"the warm parent could not start rank {request.rank}: see {self._log_path}")
        return pid

    async def identify(self, pid: int) -> int:
        """Return the start time of a child that the warm parent has named; 0: it is gone, or is not its child.

        The agent signals a process only by the pid and start time that it has found here itself. So a wrong pid from
        the warm parent, or one that the kernel has given to another process, harms nobody. Waits while this process
        has no free descriptor. Raises AgentError if that takes too long.
        """
        deadline = time.monotonic() + IDENTIFY_PATIENCE_S
        while True:
            try:
                ticks = start_ticks_of_child(pid, *self._newest)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise AgentError(f"process {pid} of the warm parent cannot be looked at: {error}") from error
                await asyncio.sleep(0.05)
                continue
            if not ticks and start_ticks(pid):
                self._errors.refuse("warm_parent", "a process that is not its child")
            return ticks

    async def host_store(self, generation: int, address: str) -> pb.StoreReady:
        """Return where the rendezvous store of a generation listens. Waits and raises as :meth:`fork` does."""
        request = pb.HostStore(generation=generation, address=address)
        ready = await self._ask(pb.ParentRequest(host_store=request), self._stores, generation)
        if not ready.port:
            raise AgentError(f"no rendezvous store on --address {address}: is it an address of this node?")
        return ready

    async def preload(self, modules: list[str]) -> None:
        """Import modules ahead of the next fork."""
        await self._send(pb.ParentRequest(preload=pb.Preload(modules=modules)))

    async def leave(self) -> None:
        """Ask the warm parent to end once it has no children, and start no other."""
        self._leaving = True
        if self._connection is not None:
            await self._send(pb.ParentRequest(leave=pb.Leave()))
            return
        for child, ticks in self._own_children.items():  # started a moment ago and never connected: it has no ranks
            kill_session(child, ticks)

    async def _ask(self, request: pb.ParentRequest, waiting: "dict[Key, asyncio.Future[Reply]]", key: Key) -> Reply:
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await self._is_connected.wait()
                waiting[key] = asyncio.get_running_loop().create_future()
                await self._send(request)
                return await waiting[key]
        except TimeoutError as error:
            raise AgentError(f"the warm parent was lost, or has not answered for {REPLY_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise AgentError(f"the warm parent was lost while it was asked for a process: {error!r}") from error
        finally:
            waiting.pop(key, None)

    async def _send(self, request: pb.ParentRequest) -> None:
        if self._connection is None:
            raise ConnectionError("no warm parent")
        await asyncio.get_running_loop().sock_sendall(self._connection, request.SerializeToString())

    async def _connect(self) -> bool:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, str(self._socket_path))
            # If the backlog is full, connect() answers "try again", which asyncio takes for success. Then there is no
            # peer, and this raises.
            connection.getpeername()
        except OSError:
            connection.close()
            return False
        # In a folder that other users may write to, another user could have put a socket of this name there. The kernel
        # reports who listens.
        listener = peer(connection)
        if listener.uid != os.geteuid():
            reason = f"{self._socket_path} is served by another user (uid {listener.uid}): name another folder with "
            self._errors.refuse("warm_parent", f"{reason}--runtime-directory")
            connection.close()
            return False
        self._connection = connection
        self.pid, self.start_ticks = self._newest = listener.pid, start_ticks(listener.pid)
        self._is_connected.set()
        return True

    async def _start(self, command: list[str]) -> bool:
        """Start a warm parent and connect to it, or to another one that was quicker. Return False if it dies first."""
        child = self._spawn(command)
        while not await self._connect():
            if reap(child) is not None:
                self._own_children.pop(child, None)
                await asyncio.sleep(DEATH_PAUSE_S)
                return False
            await asyncio.sleep(0.02)
        return True

    def _spawn(self, command: list[str]) -> int:
        """Return the pid of a new warm parent, which may outlive this process."""
        # In a session of its own, so that Ctrl-C in a terminal, or the end of the terminal, does not reach it.
        # posix_spawn instead of fork: this process has threads, and gRPC.
        program = [sys.executable, "-m", "holdfast_agent.processes.warm_parent"]
        # Every user sees the arguments. Those after -- only make room for the titles of the forked ranks.
        room = arguments_without_secrets(command)
        arguments = [str(self._socket_path), self._run_name, *modules_to_preload(command), "--", *room]
        log = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            share_file(self._log_path, log)
            child = os.posix_spawn(
                sys.executable,
                [*program, *arguments],
                {**os.environ, **self._environment},
                file_actions=[(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)],
                setsid=True,
            )
        finally:
            os.close(log)
        self._own_children[child] = start_ticks(child)
        self.starts_total += 1
        return child

    def _reap(self) -> None:
        """Reap the warm parents that this process has started and that have ended."""
        self._own_children = {child: ticks for child, ticks in self._own_children.items() if reap(child) is None}

    async def _listen(self) -> None:
        assert self._connection is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await loop.sock_recv(self._connection, MESSAGE_BYTES)
            except OSError:
                return
            if not data:
                return
            try:
                reply = pb.ParentReply.FromString(data)
            except DecodeError:
                self._errors.refuse("warm_parent", "a message that cannot be parsed")
                continue
            with self._errors.contained("warm_parent"):
                self._handle(reply)

    def _handle(self, reply: pb.ParentReply) -> None:
        match reply.WhichOneof("kind"):
            case "ready":
                self._reap()  # if two were started, the one without the claim has ended immediately
                try:
                    self._on_ready(reply.ready)
                finally:
                    self.is_ready = True
            case "forked":
                _resolve(self._forks.get((reply.forked.generation, reply.forked.rank)), reply.forked.pid)
            case "store_ready":
                _resolve(self._stores.get(reply.store_ready.generation), reply.store_ready)
            case "exited":
                self._on_exit(reply.exited)

    def _lost(self) -> None:
        self.pid = self.start_ticks = 0
        self.is_ready = False
        self._is_connected.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._reap()
        waiting: list[asyncio.Future[Any]] = [*self._forks.values(), *self._stores.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionError("the warm parent died"))


def _resolve(future: "asyncio.Future[Reply] | None", reply: Reply) -> None:
    if future is not None and not future.done():
        future.set_result(reply)
