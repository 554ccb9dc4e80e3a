"""A fake daemon and a fake agent that files control. They are started with the command lines of the real ones.

The daemon answers with the RunStatus in ``status.pb`` of the run's directory. The agent keeps a recorded and an
unrecorded process until that status says that the run has ended.
"""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast_proto.v1.agent_record_pb2 import AgentRecord, RankRecord
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import (
    LIFE_RUNNING,
    RUN_PHASE_FAILED,
    RUN_PHASE_FINISHED,
    RUN_PHASE_LEAVING,
    RUN_PHASE_RUNNING,
)

RUN_ENDED_BY_OPERATOR = "stopped by an operator"


def read_status(directory: Path) -> RunStatus:
    try:
        return RunStatus.FromString((directory / "status.pb").read_bytes())
    except FileNotFoundError:
        return RunStatus(run=directory.name, phase=RUN_PHASE_RUNNING, generation=1, newest_step=3, store_up=True)


def write_status(directory: Path, status: RunStatus) -> None:
    partial = directory / "status.pb.partial"
    partial.write_bytes(status.SerializeToString())
    partial.replace(directory / "status.pb")


def write_endpoint(path: Path) -> None:
    path.write_text(json.dumps({"pid": os.getpid(), "metrics_port": 12345}))


def daemon(options: dict[str, str]) -> None:
    import grpc

    from holdfast_proto.v1 import control_pb2, control_pb2_grpc

    directory = Path(options["--directory"])

    class Control(control_pb2_grpc.ControlServicer):
        def GetStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
            if request.run not in ("", directory.name):
                context.abort(grpc.StatusCode.NOT_FOUND, f"there is no run {request.run}")
            status = read_status(directory)
            if not status.ranks:
                status.ranks.extend(ranks_of(directory))
            return status

        def ListIncidents(self, request: Any, context: Any) -> Any:  # noqa: N802
            status = read_status(directory)
            newest = [status.newest_incident] if status.HasField("newest_incident") else []
            return control_pb2.ListIncidentsResponse(incidents=newest)

        def TakeCheckpoint(self, request: Any, context: Any) -> Any:  # noqa: N802
            status = read_status(directory)
            status.newest_checkpoint = status.newest_step + 1
            write_status(directory, status)
            return control_pb2.TakeCheckpointResponse(step=status.newest_checkpoint)

        def StopRun(self, request: Any, context: Any) -> Any:  # noqa: N802
            status = read_status(directory)
            if request.grace_s and "FAKE_DAEMON_DAWDLES" in os.environ:
                status.phase = RUN_PHASE_LEAVING
            else:
                status.phase, status.outcome = RUN_PHASE_FAILED, RUN_ENDED_BY_OPERATOR
            write_status(directory, status)
            return control_pb2.StopRunResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    control_pb2_grpc.add_ControlServicer_to_server(Control(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{options['--control']}")
    server.start()
    write_endpoint(Path(options["--control"] + ".json"))
    server.wait_for_termination()


def ranks_of(directory: Path) -> list[RankView]:
    path = directory / "node-local" / "record.pb"
    record = AgentRecord.FromString(path.read_bytes()) if path.exists() else AgentRecord()
    return [RankView(rank=rank.rank, pid=rank.pid, life=LIFE_RUNNING) for rank in record.ranks]


def agent(options: dict[str, str]) -> None:
    if complaint := os.environ.get("FAKE_AGENT_COMPLAINT"):
        print(f"holdfast: {complaint}", file=sys.stderr)
        sys.exit(78)
    directory = Path(options["--directory"])
    rank, helper = (subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2))
    (directory / "helper.pid").write_text(str(helper.pid))
    (directory / "node-local").mkdir(exist_ok=True)
    start_ticks = int(Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[19])
    record = AgentRecord(ranks=[RankRecord(rank=0, pid=rank.pid, start_ticks=start_ticks)], warm_parent_pid=helper.pid)
    (directory / "node-local" / "record.pb").write_bytes(record.SerializeToString())
    memory = Path(options["--shm-directory"]) / f"holdfast-{os.geteuid()}-{options['--run']}@local"
    memory.mkdir(exist_ok=True)
    write_endpoint(Path(options["--runtime-directory"]) / "agent-local.json")

    def terminate(_: int, __: FrameType | None) -> None:
        sys.exit(1)

    signal.signal(signal.SIGINT, terminate)
    while (phase := read_status(directory).phase) not in (RUN_PHASE_FINISHED, RUN_PHASE_FAILED):
        time.sleep(0.02)
    sys.exit(0 if phase == RUN_PHASE_FINISHED else 1)


if __name__ == "__main__":
    words = sys.argv[2:]
    {"daemon": daemon, "agent": agent}[sys.argv[1]](dict(zip(words[::2], words[1::2], strict=True)))
