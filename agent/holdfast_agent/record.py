"""The agent's memory on disk: enough to find its ranks again after it was killed."""

import fcntl
import logging
import os
from pathlib import Path

from google.protobuf.message import DecodeError

from holdfast_agent.processes import AgentError
from holdfast_proto.v1.agent_record_pb2 import AgentRecord

log = logging.getLogger(__name__)


def load(path: Path) -> AgentRecord | None:
    """Return the record of the last agent of this node, or None if there is none that can be read."""
    try:
        return AgentRecord.FromString(path.read_bytes())
    except (OSError, DecodeError):
        return None


def save(path: Path, record: AgentRecord) -> None:
    """Replace the record atomically. Not flushed: it matters only while this machine is up.

    On a full disk the old one stays, and training goes on: were this agent to die now, the next one would not know its
    ranks, and end them.
    """
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(record.SerializeToString())
        temporary.rename(path)
    except OSError as error:
        log.error("cannot keep the record of this node's ranks in --directory: %s: free space there", error)


def lock(path: Path) -> int:
    """Return a locked descriptor, held until this process ends, however it ends.

    Raises AgentError if another agent of this node holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise AgentError(
            f"another agent holds {path}: stop it, or give this one another --node or --directory"
        ) from None
    return descriptor
