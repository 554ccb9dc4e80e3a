"""The way from the agent to one rank: messages for its session, and commands that it has not acknowledged yet."""

import asyncio
import itertools

from holdfast_proto.v1 import session_pb2 as session

Outbox = asyncio.Queue[session.AgentMessage | None]
"""Messages for a rank's session to send; None ends the session."""


class RankChannel:
    """Sends to one rank while it has a session, and matches its acknowledgements to the commands."""

    def __init__(self) -> None:
        self.outbox: Outbox | None = None
        """The open session's queue; None while the rank has no session."""
        self._ids = itertools.count(1)
        self._unacknowledged: dict[int, asyncio.Future[session.CommandAck]] = {}
        self._profiles: dict[str, asyncio.Future[session.ProfileDone]] = {}
        """Request -> the end of a profile that is waited for."""

    @property
    def unacknowledged(self) -> int:
        """Commands whose acknowledgement has not arrived."""
        return len(self._unacknowledged)

    def send(self, message: session.AgentMessage) -> bool:
        """Queue a message; return False, and drop it, if the rank has no session."""
        if self.outbox is not None:
            self.outbox.put_nowait(message)
        return self.outbox is not None

    def command(self, command: session.RankCommand) -> "asyncio.Future[session.CommandAck]":
        """Send a command; return the future of its acknowledgement, cancelled if the rank has no session."""
        command.id = next(self._ids)
        future: asyncio.Future[session.CommandAck] = asyncio.get_running_loop().create_future()
        if self.send(session.AgentMessage(command=command)):
            self._unacknowledged[command.id] = future
        else:
            future.cancel()
        return future

    def acknowledge(self, ack: session.CommandAck) -> None:
        """Resolve the command that ``ack`` answers, if it is still waited for."""
        future = self._unacknowledged.pop(ack.id, None)
        if future is not None and not future.done():
            future.set_result(ack)

    async def profile_end(self, request: str, timeout_s: float) -> session.ProfileDone | None:
        """Wait for the end of a profile; return None if it does not come within ``timeout_s``."""
        future = self._profiles[request] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return None
        finally:
            del self._profiles[request]

    def profile_done(self, done: session.ProfileDone) -> None:
        """Resolve the profile that ``done`` ends, if it is waited for.

        If it is not, the leader asks again as long as it wants it, and the rank repeats it.
        """
        future = self._profiles.get(done.request)
        if future is not None and not future.done():
            future.set_result(done)
