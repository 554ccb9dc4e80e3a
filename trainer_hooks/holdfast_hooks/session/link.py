"""The rank's stream to its agent, which opens again whenever it breaks."""

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from time import monotonic

from holdfast_base.threads import show_name
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.session.own_grpc import grpc  # first: it decides how gRPC is imported
from holdfast_proto.rank_context import THREAD_PREFIX
from holdfast_proto.v1.session_pb2 import AgentMessage, Hello, RankMessage
from holdfast_proto.v1.session_pb2_grpc import RankAgentStub

_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 1.0
ENDING_S = 0.25
"""Time for a thread to end once it no longer waits for the agent. It takes milliseconds."""
# Without a pool of its own, a new channel inherits the (much longer) backoff of the one before.
_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


class Link:
    """Keeps one session with the agent. All waiting for the agent happens in the link's own thread.

    The link sends one message at a time, so that nothing piles up in gRPC while the agent does not read. It repeats a
    message in the next session unless gRPC has taken it. The agent may therefore get a message twice.

    Args:
        target: gRPC target of the agent.
        hello: first message of every session.
        wake: event that the link sets when a message has arrived, or when the next one may be sent.
    """

    def __init__(self, target: str, hello: Hello, wake: threading.Event, once: OnceLog) -> None:
        self.inbox: SimpleQueue[AgentMessage] = SimpleQueue()
        self._target = target
        self._hello = RankMessage(hello=hello)
        self._wake = wake
        self._once = once
        self._lock = threading.Lock()  # between the threads of the link and the reporter
        self._outgoing: SimpleQueue[RankMessage | None] = SimpleQueue()
        self._pending: RankMessage | None = None
        self._welcomed = False
        self._call: grpc.Call | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{THREAD_PREFIX}link", daemon=True)

    def start(self) -> None:
        """Start the thread that connects."""
        self._thread.start()

    def await_no_start(self) -> None:
        """Say in later sessions that the rank has its state to start from: it must never get another one."""
        hello = RankMessage()
        hello.CopyFrom(self._hello)
        hello.hello.awaits_start = False
        self._hello = hello  # replaced as a whole: gRPC's thread may be reading the old one

    @property
    def ready(self) -> bool:
        """Whether the agent has sent its Welcome and gRPC has written the last message."""
        with self._lock:
            return self._welcomed and self._pending is None

    def send(self, message: RankMessage) -> None:
        """Send a message. Only call this while :attr:`ready`."""
        with self._lock:
            self._pending = message
            self._outgoing.put(message)

    def close(self, timeout_s: float) -> None:
        """Tell the agent that nothing follows, wait for up to ``timeout_s`` until it has read all, and disconnect."""
        deadline_s = monotonic() + timeout_s
        with self._lock:
            self._closing.set()
            self._outgoing.put(None)
            call = self._call if self._welcomed else None
        if call is not None:
            self._thread.join(max(0.0, deadline_s - monotonic()))
        with self._lock:
            call = self._call
        if call is not None:
            call.cancel()
        self._thread.join(ENDING_S)

    def _run(self) -> None:
        show_name()
        backoff_s = _FIRST_BACKOFF_S
        while not self._closing.is_set():
            if self._converse():
                backoff_s = _FIRST_BACKOFF_S
            self._closing.wait(backoff_s)
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    def _converse(self) -> bool:
        """Hold one session until it breaks; return whether the agent sent its Welcome."""
        welcomed = False
        with grpc.insecure_channel(self._target, _CHANNEL_OPTIONS) as channel:
            try:
                self._open(channel)
                assert self._call is not None
                for message in self._call:
                    welcomed = welcomed or message.HasField("welcome")
                    self._receive(message)
            except grpc.RpcError as error:
                if not self._closing.is_set():
                    self._once.warn(f"no session with the agent at {self._target}", error.code())
            except RuntimeError as error:  # the kernel gives gRPC no new thread
                self._once.warn(f"no session with the agent at {self._target} yet", error)
            finally:
                with self._lock:
                    self._welcomed = False
                    self._call = None
                self._outgoing.put(None)
        return welcomed

    def _open(self, channel: grpc.Channel) -> None:
        outgoing: SimpleQueue[RankMessage | None] = SimpleQueue()
        with self._lock:
            self._outgoing = outgoing
            stub = RankAgentStub(channel)  # type: ignore[no-untyped-call]
            self._call = stub.Session(self._requests(outgoing))
            if self._closing.is_set():
                self._call.cancel()

    def _requests(self, outgoing: "SimpleQueue[RankMessage | None]") -> Iterator[RankMessage]:
        yield self._hello
        while (message := outgoing.get()) is not None:
            yield message
            # gRPC asks for the next message once it has written this one, and never if the session broke.
            with self._lock:
                if self._pending is message:
                    self._pending = None
            self._wake.set()

    def _receive(self, message: AgentMessage) -> None:
        if message.HasField("welcome"):
            with self._lock:
                self._welcomed = True
                if self._pending is not None:
                    self._outgoing.put(self._pending)
        self.inbox.put(message)
        self._wake.set()
