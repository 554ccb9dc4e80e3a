"""Keeps what is known against nodes in a file: the record of a new run begins with it."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseError

from holdfast_core.nodes.node_faults import NODES_KEPT
from holdfast_daemon.file_saver import FileSaver
from holdfast_daemon.validation.message_rules import OF_ANY_RUN
from holdfast_proto import run_files
from holdfast_proto.message_json import from_json, to_json
from holdfast_proto.v1.store_pb2 import NodeHistory

log = logging.getLogger(__name__)

_MOST_BYTES = 16 * 2**20
_LAST_PATIENCE_S = 2.0


def changed_unix_s(history: NodeHistory) -> float:
    """Return when something about a node has changed last."""
    return max(history.since_unix_s, history.released_unix_s, *(fault.unix_s for fault in history.faults), 0.0)


def load(path: Path) -> list[NodeHistory]:
    """Return what the file holds; nothing if it is missing or damaged. The next change then replaces it."""
    try:
        with path.open("rb") as file:
            data: Any = json.loads(file.read(_MOST_BYTES))
        found = [from_json(entry, NodeHistory()) for entry in data["nodes"]]
        for history in found:
            OF_ANY_RUN.check(history)
    except FileNotFoundError:
        return []
    except (OSError, ParseError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        log.warning("%s cannot be used, what it knew against nodes is lost: %r", path, error)
        return []
    return found


class NodeFile:
    """What is known against the nodes of all runs that a daemon leads. Of two histories of one node, the newer wins."""

    def __init__(self, directory: Path) -> None:
        self._path = run_files.node_histories(directory)
        self._known: dict[str, NodeHistory] = {}
        """Node -> its history, in the order of their changes. It is replaced and not changed: the saver reads it."""
        self._of_runs: dict[str, dict[str, NodeHistory]] = {}
        """Run -> what its record held when it was saved last."""
        self._saver = FileSaver(self._path, self._text, "the next run does not know of faults of nodes")

    def begin(self, run: str) -> Iterable[NodeHistory]:
        """Return what is known against nodes as a run begins, in the order of their newest changes. Reads the file."""
        self._merge(load(self._path))
        self._of_runs[run] = self._known
        return self._known.values()

    def see(self, run: str, histories: Iterable[NodeHistory]) -> None:
        """Take in what the record of a run holds now, and have the file written if that is news."""
        now, known = {history.node: history for history in histories}, self._known
        before = self._of_runs.get(run)
        if now == before:
            return
        if before is None:  # this daemon takes the run over
            self._merge(load(self._path))
            changed = set(now)
        else:
            changed = {node for node in before.keys() | now.keys() if before.get(node) != now.get(node)}
            # What no other run has changed since may also become older: the end of a quarantine leaves no time.
            own = {node for node in changed if self._known.get(node) == before.get(node)}
            self._known = {node: history for node, history in self._known.items() if node not in own}
        # Copies: a message in a record keeps all of that record.
        copies = {node: NodeHistory.FromString(history.SerializeToString()) for node, history in now.items()}
        self._of_runs[run] = copies
        self._merge(history for node, history in copies.items() if node in changed)
        if self._known != known:
            self._saver.save_soon()

    def close(self) -> None:
        """Wait for the file, but not long."""
        self._saver.finish(_LAST_PATIENCE_S)

    def _merge(self, histories: Iterable[NodeHistory]) -> None:
        """Take in what is newer than what is known."""
        merged = dict(self._known)
        for history in histories:
            if history.node not in merged or changed_unix_s(history) > changed_unix_s(merged[history.node]):
                merged[history.node] = history
        kept = sorted(merged.values(), key=lambda one: (bool(one.quarantine), changed_unix_s(one)))[-NODES_KEPT:]
        self._known = {history.node: history for history in sorted(kept, key=changed_unix_s)}

    def _text(self) -> str:
        return json.dumps({"nodes": [to_json(history) for history in self._known.values()]})
