"""Documents of torch's Flight Recorder, written call by call as a rank makes them."""

from collections.abc import Mapping, Sequence
from typing import Any

SECOND_NS = 1_000_000_000
START_NS = 1_700_000_000 * SECOND_NS


class Document:
    """One rank's recorder. Each method makes one entry, or the entries of one batch."""

    def __init__(self, groups: Mapping[str, Sequence[int]], *, backend: str = "nccl", first_record: int = 0) -> None:
        """``groups``: name -> members, in the order of ``pg_id``. ``first_record``: above 0 for a ring that is full."""
        self.entries: list[dict[str, Any]] = []
        self._groups = groups
        self._backend = backend
        self._record = first_record
        self._collectives = dict.fromkeys(groups, 0)
        self._transfers = dict.fromkeys(groups, 0)
        self._status: dict[str, tuple[int, int, int]] | None = dict.fromkeys(groups, (-1, -1, -1))

    def call(
        self,
        op: str = "all_reduce",
        group: str = "0",
        *,
        seq: int | None = None,
        state: str = "completed",
        retired: bool | None = None,
        elements: int = 4,
        dtype: str = "Float",
        **others: Any,
    ) -> "Document":
        """Make a collective. It is done by default; ``state``: as torch writes it."""
        self._collectives[group] = number = seq if seq is not None else self._collectives[group] + 1
        self._note(group, number, done=state == "completed" if retired is None else retired)
        sizes = [] if op == "coalesced" else [[elements]]
        shape = {"input_sizes": sizes, "input_dtypes": [dtype] if sizes else []}
        self._entry(op, group, state, retired, **(shape | others))
        return self

    def pending(self, op: str = "all_reduce", group: str = "0", **others: Any) -> "Document":
        """Make a collective that does not complete."""
        return self.call(op, group, state="scheduled", **others)

    def transfer(self, way: str, one: int, other: int, group: str = "0", *, state: str = "completed") -> "Document":
        """Make a send or a receive that is in no batch: ``transfer("send", 0, 1)`` is made by rank 0 of the group."""
        self._transfers[group] += 1
        self._note(group, self._transfers[group], done=state == "completed")
        arrow = "->" if way == "send" else "<-"
        self._entry(f"{way} {one}{arrow}{other}", group, state, None, is_p2p=True)
        return self

    def batch(self, *transfers: tuple[str, int, int], group: str = "0", state: str = "completed") -> "Document":
        """Make a batch of transfers: members without a state, and the entry that closes them."""
        self._transfers[group] += 1
        self._note(group, self._transfers[group], done=state == "completed")
        for way, one, other in transfers:
            arrow = "->" if way == "send" else "<-"
            self._entry(f"{way} {one}{arrow}{other}", group, "scheduled", False, is_p2p=True)
        self._entry("coalesced", group, state, None, input_sizes=[], input_dtypes=[])
        return self

    def coalesced(self, members: Sequence[str], group: str = "0", *, state: str = "completed") -> "Document":
        """Make a batch of collectives under one number."""
        self._collectives[group] += 1
        self._note(group, self._collectives[group], done=state == "completed")
        for op in members:
            self._entry(op, group, "scheduled", False)
        self._entry("coalesced", group, state, None, input_sizes=[], input_dtypes=[])
        return self

    def status(self, group: str, enqueued: int, started: int, completed: int) -> "Document":
        """Set the counters of a group. Without this, they are those of the newest calls."""
        assert self._status is not None
        self._status[group] = (enqueued, started, completed)
        return self

    def without_status(self) -> "Document":
        """Leave the status out."""
        self._status = None
        return self

    def document(self, *, entries: bool = True) -> dict[str, Any]:
        """Return the document as JSON has it. ``entries``: false for the status alone."""
        config = {
            name: {"name": name, "desc": "default_pg" if name == "0" else "undefined", "ranks": str(list(members))}
            for name, members in self._groups.items()
            if members
        }
        written: dict[str, Any] = {"version": "2.10", "comm_lib_version": "2.27.5", "pg_config": config}
        if self._status is not None:
            ids = {name: str(number) for number, name in enumerate(self._groups)}
            keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
            written["pg_status"] = {
                ids[name]: dict(zip(keys, map(str, numbers), strict=True)) for name, numbers in self._status.items()
            }
        if entries:
            written["entries"] = self.entries
        return written

    def of_torchcomms(self) -> dict[str, Any]:
        """Return the document as torchcomms writes it: see ``FlightRecorder::record`` in its hooks/fr, 2026.

        It has no status, the id 0 for all groups that torch makes, ranks within the group, the name of the backend as
        the description, and one number for the calls of all groups.
        """
        entries = [
            entry
            | {"pg_id": 0, "process_group": [entry["process_group"][0], self._backend], "is_p2p": False}
            | {"collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "state": "scheduled"}
            for number, entry in enumerate(self.entries)
        ]
        config = {
            name: {"name": name, "desc": self._backend, "ranks": f"[{','.join(map(str, range(len(members))))}]"}
            for name, members in self._groups.items()
        }
        return {"version": "2.10", "comm_lib_version": "", "pg_config": config, "pg_status": {}, "entries": entries}

    def _note(self, group: str, number: int, *, done: bool) -> None:
        if self._status is not None:
            _, started, completed = self._status[group]
            self._status[group] = (number, started, number if done else completed)

    def _entry(self, op: str, group: str, state: str, retired: bool | None, **others: Any) -> None:
        entry = {
            "record_id": self._record,
            "pg_id": list(self._groups).index(group),
            "process_group": [group, "default_pg" if group == "0" else "undefined"],
            "collective_seq_id": self._collectives[group],
            "p2p_seq_id": self._transfers[group],
            "op_id": self._record + 1,
            "profiling_name": f"{self._backend}:{op}",
            "is_p2p": False,
            "input_sizes": [[4]],
            "output_sizes": [[4]],
            "input_dtypes": ["Float"],
            "output_dtypes": ["Float"],
            "state": state,
            "retired": state == "completed" if retired is None else retired,
            "time_created_ns": START_NS + self._record * SECOND_NS,
            "time_discovered_started_ns": 0,
            "time_discovered_completed_ns": 0,
            "timeout_ms": 600_000,
        }
        self.entries.append(entry | others)
        self._record += 1
