"""The agent's side of the warm parent: starts it, finds it again, asks it for ranks."""

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
from holdfast_checkpoint.processes import AgentError, kill_session, reap, start_ticks, start_ticks_of_child
from holdfast_proto.sockets import peer
from holdfast_proto.v1 import warm_parent_pb2 as pb

REPLY_TIMEOUT_S = 60.0
"""For one fork or store, with the wait for a warm parent; a loaded machine is no reason to give a run up."""

IDENTIFY_PATIENCE_S = 10.0

DEATH_PAUSE_S = 1.0
"""After a warm parent that died before it listened: its log tells why, and the next may do no better."""

ExitHandler = Callable[[pb.Exited], None]
ReadyHandler = Callable[[pb.Ready], None]
Key = TypeVar("Key")
Reply = TypeVar("Reply")


class WarmParentClient:
    """Connection to the node's warm parent.

    ``on_exit`` is called for every rank it has reaped, ``on_ready`` whenever one is connected, before anything is asked
    of it: all children that it has then are of earlier connections.
    """

    def __init__(
        self,
        socket_path: Path,
        log_path: Path,
        on_exit: ExitHandler,
        on_ready: ReadyHandler,
        errors: Errors | None = None,
    ) -> None:
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
        """Warm parents started here, pid -> start time."""
        self._leaving = False
        self.pid = 0
        """Of the warm parent; 0 while there is none."""
        self.start_ticks = 0
        self._newest = (0, 0)
        """Pid and start time of the warm parent that was connected last."""
        self.is_ready = False
        """Whether ranks can be forked now."""
        self.starts_total = 0

    async def run(self, command: list[str]) -> None:
        """Keep a warm parent for ``command`` at hand until :meth:`leave`: connect to the one there, or start one."""
        while not self._leaving:
            if await self._connect() or await self._start(command):
                try:
                    await self._listen()
                except Exception:
                    self._lost()
                    raise
                self._lost()

    async def fork(self, order: pb.Fork) -> int:
        """Return the pid of a new rank; while the warm parent is being replaced, wait for the next one.

        Raises AgentError if the warm parent is lost meanwhile, does not answer or cannot fork.
        """
        pid = await self._ask(pb.ParentRequest(fork=order), self._forks, (order.generation, order.rank))
        if not pid:
            raise AgentError(f"the warm parent could not start rank {order.rank}: see {self._log_path}")
        return pid

    async def identify(self, pid: int) -> int:
        """Return the start time of a child that the warm parent has named; 0: it is gone, or no child of it.

        Only what is found here is ever signalled: nobody else's process, whatever the warm parent says. While this
        process is out of descriptors it waits.
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
        """Let the warm parent end when it has no children, and want no other."""
        self._leaving = True
        if self._connection is not None:
            await self._send(pb.ParentRequest(leave=pb.Leave()))
            return
        for child, ticks in self._own_children.items():  # started a moment ago, and not reached yet: it has no ranks
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
            connection.getpeername()  # asyncio takes "try again", of a full backlog, for a connection
        except OSError:
            connection.close()
            return False
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
        """Start a warm parent and connect to it, or to another that was quicker. False: it died before."""
        child = self._spawn(command)
        while not await self._connect():
            if reap(child) is not None:
                self._own_children.pop(child, None)
                await asyncio.sleep(DEATH_PAUSE_S)
                return False
            await asyncio.sleep(0.02)
        return True

    def _spawn(self, command: list[str]) -> int:
        """Return the pid of a new warm parent. It is not waited for as a child: it may outlive us, or we it."""
        arguments = [sys.executable, "-m", "holdfast_agent.processes.warm_parent", str(self._socket_path)]
        log = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = os.posix_spawn(
                sys.executable,
                [*arguments, *modules_to_preload(command)],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)],
                setsid=True,
            )
        finally:
            os.close(log)
        self._own_children[child] = start_ticks(child)
        self.starts_total += 1
        return child

    def _reap(self) -> None:
        """Let go of the warm parents started here that have ended."""
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
                self._reap()  # of two that were started one has ended at once
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
