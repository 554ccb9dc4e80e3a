"""The agent's record on disk: enough for the next agent to find the ranks after this one was killed."""

import fcntl
import logging
import os
from pathlib import Path

from google.protobuf.message import DecodeError

from holdfast_base.files import UnfitFileError, distrust, read_regular, replace_file
from holdfast_base.processes import AgentError
from holdfast_proto.v1.agent_record_pb2 import AgentRecord

log = logging.getLogger(__name__)

_MOST_BYTES = 64 << 20
"""A rank takes some 100 bytes. The spec has the command and the settings of notifications."""


def load(path: Path) -> AgentRecord | None:
    """Return the record of the last agent of a node, or None if there is none that is whole and can be trusted.

    The record names processes that are adopted or killed, so one that another user may have written is refused. Raises
    AgentError if the disk does not give it now: another start may find it.
    """
    try:
        problem = distrust(path)
        if problem:
            log.error("%s is not used, because it %s", path, problem)
            return None
        return AgentRecord.FromString(read_regular(path, _MOST_BYTES))
    except FileNotFoundError:
        return None
    except (UnfitFileError, DecodeError) as error:
        log.error("%s cannot be read: %s", path, error)
        return None
    except OSError as error:
        raise AgentError(f"{path}: {error.strerror}: the record of this node's ranks cannot be read now") from None


def save(path: Path, record: AgentRecord) -> bool:
    """Replace the record atomically; return whether that was possible.

    It is not flushed to the disk, because it matters only while this machine is up. On a full disk the old record stays
    and training continues. If this agent died then, the next one would not know all ranks, and would end them.
    """
    try:
        replace_file(path, record.SerializeToString(), mode=0o600)
    except OSError as error:
        log.error("cannot keep the record of this node's ranks in --directory: %s: free space there", error)
        return False
    return True


def lock(path: Path) -> int:
    """Return a descriptor whose lock the kernel holds until this process ends, however it ends.

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
