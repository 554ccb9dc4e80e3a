"""Sends operators' requests to the daemon's control API."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from holdfast_cli.errors import CommandError
from holdfast_proto.v1 import control_pb2, control_pb2_grpc
from holdfast_proto.v1.control_pb2 import NodeView, RankView, RunStatus
from holdfast_proto.v1.fault_pb2 import Fault
from holdfast_proto.v1.store_pb2 import LIFE_EXITED, Incident
from holdfast_proto.vocabulary import ENDED

_Answer = TypeVar("_Answer", bound=Message)

_ANSWER_S = 10.0
"""Longest time until a rank, or its agent for it, answers."""

_STACKS_S = 40.0
"""Longest time until the daemon answers with the stacks that it has: longer than it waits for them itself."""

_PROFILE_S = 20.0
"""Time in addition to that for the steps, in which the daemon answers in any case."""

_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 1 << 30),  # the stacks of many ranks
)


def has_ended(status: RunStatus) -> bool:
    """Return whether the run has finished or failed."""
    return status.phase in ENDED


def counted_ranks(status: RunStatus) -> list[tuple[RankView, int]]:
    """Return the listed ranks, each once, and what groups of others share, with their number."""
    listed = [(rank, 1) for rank in status.ranks]
    return listed + [(group.like, group.count) for group in status.other_ranks]


def rank_pids(status: RunStatus) -> dict[int, int]:
    """Return rank -> pid of all ranks that are alive."""
    return {rank.rank: rank.pid for rank in status.ranks if rank.pid and rank.life != LIFE_EXITED}


class ControlError(CommandError):
    """The daemon refused, or, if ``unreachable`` is set, could not be reached."""

    def __init__(self, message: str, *, unreachable: bool) -> None:
        super().__init__(message)
        self.unreachable = unreachable


class ControlClient:
    """Asks a daemon about one run. Every method raises ControlError; any thread may call them.

    Each call opens its own connection: a channel that has lost its daemon would wait for seconds before it
    tries again, though the next daemon is up within a fraction of one.
    """

    def __init__(self, socket: Path, run: str, *, timeout_s: float = 5.0, is_starting: bool = False) -> None:
        """Ask the daemon at ``socket`` about ``run``. ``is_starting``: nobody expects it to answer already."""
        self._socket = socket
        self._run = run
        self._timeout_s = timeout_s
        self._is_starting = is_starting

    def status(self, page: control_pb2.GetStatusRequest | None = None) -> RunStatus:
        """Return the run as the daemon sees it. ``page`` says which ranks are listed; None: all are."""
        request = control_pb2.GetStatusRequest()
        if page is not None:
            request.CopyFrom(page)
        request.run = self._run
        return self._call("GetStatus", request, RunStatus)

    def incidents(self) -> list[Incident]:
        """Return all incidents of the run, oldest first."""
        return self.incident_page(0, 0)[0]

    def incident_page(self, most: int, skip: int) -> tuple[list[Incident], int]:
        """Return ``most`` incidents before the newest ``skip`` ones, oldest first, and the number of all. 0: all."""
        request = control_pb2.ListIncidentsRequest(run=self._run, most_incidents=most, skip_incidents=skip)
        answer = self._call("ListIncidents", request, control_pb2.ListIncidentsResponse)
        return list(answer.incidents), answer.count

    def acknowledge(self, incident: str) -> None:
        """Say that people know of the incident with this id."""
        request = control_pb2.AcknowledgeIncidentRequest(run=self._run, incident=incident)
        self._call("AcknowledgeIncident", request, control_pb2.AcknowledgeIncidentResponse)

    def nodes(self) -> list[NodeView]:
        """Return the nodes of the run: members in rank order, then the others by name."""
        request = control_pb2.ListNodesRequest(run=self._run)
        return list(self._call("ListNodes", request, control_pb2.ListNodesResponse).nodes)

    def release_node(self, node: str) -> None:
        """Say that a node may train again."""
        request = control_pb2.ReleaseNodeRequest(run=self._run, node=node)
        self._call("ReleaseNode", request, control_pb2.ReleaseNodeResponse)

    def daemon(self) -> control_pb2.DaemonStatus:
        """Return how the daemon itself is."""
        return self._call("GetDaemon", control_pb2.GetDaemonRequest(), control_pb2.DaemonStatus)

    def take_checkpoint(self) -> int:
        """Request a checkpoint and return its step. The checkpoint is not yet taken."""
        request = control_pb2.TakeCheckpointRequest(run=self._run)
        return self._call("TakeCheckpoint", request, control_pb2.TakeCheckpointResponse).step

    def inject_fault(self, fault: Fault) -> str:
        """Request a fault; return, once the rank has accepted it, what it waits for and may never get, or ""."""
        request = control_pb2.InjectFaultRequest(run=self._run, fault=fault)
        return self._call("InjectFault", request, control_pb2.InjectFaultResponse, timeout_s=_ANSWER_S).waits_for

    def take_stacks(self, ranks: Sequence[int], *, native: bool) -> list[control_pb2.NodeStacks]:
        """Return the stacks of ``ranks``, or of all that are alive if it is empty, by node."""
        request = control_pb2.TakeStacksRequest(run=self._run, ranks=ranks, native=native)
        answer = self._call("TakeStacks", request, control_pb2.TakeStacksResponse, timeout_s=_STACKS_S)
        return list(answer.nodes)

    def take_profile(self, rank: int, *, steps: int, patience_s: float) -> control_pb2.TakeProfileResponse:
        """Return where the profile of the next ``steps`` of a rank is, once it is written."""
        request = control_pb2.TakeProfileRequest(run=self._run, rank=rank, steps=steps, patience_s=patience_s)
        timeout_s = patience_s + _PROFILE_S
        return self._call("TakeProfile", request, control_pb2.TakeProfileResponse, timeout_s=timeout_s)

    def stop_run(self, *, grace_s: float = 0.0) -> None:
        """Request the end of the run: within ``grace_s`` after a last checkpoint, or immediately for 0.

        Ranks may still be alive when this returns.
        """
        request = control_pb2.StopRunRequest(run=self._run, grace_s=grace_s)
        self._call("StopRun", request, control_pb2.StopRunResponse)

    def launcher_ended(self, code: int) -> None:
        """Report that the launcher of an observed run has ended. ``code``: its exit code as in a shell."""
        request = control_pb2.LauncherEndedRequest(run=self._run, code=code)
        self._call("LauncherEnded", request, control_pb2.LauncherEndedResponse)

    def _call(self, method: str, request: Message, answer: type[_Answer], *, timeout_s: float | None = None) -> _Answer:
        timeout_s = timeout_s or self._timeout_s
        with grpc.insecure_channel(f"unix:{self._socket}", options=_OPTIONS) as channel:
            stub = control_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call]
            try:
                response = getattr(stub, method)(request, timeout=timeout_s)
            except grpc.RpcError as error:
                raise self._explain(error, timeout_s) from None
        assert isinstance(response, answer)
        return response

    def _explain(self, error: grpc.RpcError, timeout_s: float) -> ControlError:
        code, details = error.code(), " ".join(str(error.details()).split())
        if code is grpc.StatusCode.UNAVAILABLE and self._is_starting:
            return ControlError(
                f"run {self._run} is starting, and its daemon does not answer yet: try again in a few seconds",
                unreachable=True,
            )
        if code is grpc.StatusCode.UNAVAILABLE:
            return ControlError(
                f"no daemon answers at {self._socket}: is the run still going? "
                "Name another with --run, or its daemon's socket with --control",
                unreachable=True,
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ControlError(
                f"the daemon at {self._socket} did not answer within {timeout_s:g} s: "
                "try again, and see its log if it stays silent",
                unreachable=True,
            )
        return ControlError(f"the daemon refused: {details or code.name}", unreachable=False)
