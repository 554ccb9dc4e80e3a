"""Removes everything that a run has left outside its directory: processes, sockets, shared memory, targets."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from holdfast_agent.processes import agent_record
from holdfast_base.processes import AgentError
from holdfast_base.run_processes import ProcessIdentity, kill_all, marked_processes
from holdfast_cli.run_folder.record import RunRecord
from holdfast_cli.run_folder.scrape_targets import remove_targets
from holdfast_proto.run_files import AGENT_RECORDS
from holdfast_proto.v1.agent_record_pb2 import AgentRecord

MARKER = "HOLDFAST_RUN_INSTANCE"
"""Environment variable of every process of a run; its value is RunSpec.instance."""

RUNTIME_PREFIX = "holdfast-"

log = logging.getLogger(__name__)


def sweep(record: RunRecord) -> None:
    """Kill the processes of ``record``'s run that are left. Remove its targets, sockets and shared memory."""
    recorded = [
        ProcessIdentity(rank.pid, rank.start_ticks)
        for agent in agent_records(Path(record.directory))
        if agent.spec.command  # without one, another launcher started them
        for rank in agent.ranks
    ]
    marked = list(marked_processes(MARKER, record.instance))
    killed = kill_all({process.pid: process for process in (*recorded, *marked)}.values())
    if killed:
        log.warning("%d processes had outlived run %s and were killed", killed, record.run)
    remove_targets(Path(record.directory))
    runtime = Path(record.runtime_directory)
    if runtime.name.startswith(RUNTIME_PREFIX):
        _remove(runtime)
    _remove(Path(record.shm_directory))


def agent_records(run_directory: Path) -> Iterator[AgentRecord]:
    """Yield the records that the agents of a run keep of their ranks, as far as they can be read and trusted."""
    for path in run_directory.glob(AGENT_RECORDS):
        try:
            record = agent_record.load(path)
        except AgentError as error:
            log.warning("%s", error)
        else:
            if record is not None:
                yield record


def forget_ranks(run_directory: Path) -> None:
    """Remove the agents' records of an earlier run of the same name: nothing is left to adopt."""
    for path in run_directory.glob(AGENT_RECORDS):
        path.unlink()


def _remove(directory: Path) -> None:
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        log.error("%s could not be removed: %s", directory, error)
