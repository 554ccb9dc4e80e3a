import json
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.evidence.flight_dumps import pending_calls
from holdfast_agent.evidence.recorder_dump import NoDumpError
from holdfast_proto.v1.common_pb2 import PendingCall


def entry(seq: object = 5, **changes: Any) -> dict[str, Any]:
    fields = {
        "is_p2p": False, "collective_seq_id": seq, "pg_id": 0, "process_group": ["0", "default"],
        "profiling_name": "gloo:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"],
    }  # fmt: skip
    return {**fields, **changes}


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in entry().items() if name not in names}


def dump(folder: Path, trace: object) -> Path:
    path = folder / "dump.json"
    path.write_text(json.dumps(trace))
    return path


JUNK: list[object] = [
    without("is_p2p"),
    without("collective_seq_id"),
    without("pg_id"),
    without("process_group"),
    without("profiling_name"),
    entry(seq="five"),
    entry(seq=-5),
    entry(seq=2**70),
    entry(process_group=[]),
    entry(process_group=None),
    entry(profiling_name=7),
    entry(pg_id=[]),
    None,
    7,
    "entry",
    [],
]


@pytest.mark.parametrize("junk", JUNK)
def test_entry_that_makes_no_sense_does_not_cost_the_others(tmp_path: Path, junk: object) -> None:
    trace = {"pg_status": {"0": {"last_completed_collective": 4}}, "entries": [junk, entry(), junk]}
    calls, odd = pending_calls(dump(tmp_path, trace), 3)
    # A negative number is not later than the completed one. It is neither junk nor a pending call.
    assert odd == (0 if junk == entry(seq=-5) else 2)
    expected = PendingCall(rank=3, group="0", seq=5, op="gloo:all_reduce", sizes="[[4]]", dtypes="['Float']")
    assert calls == [expected]


def test_an_asynchronous_call_that_has_overtaken_another_is_not_pending(tmp_path: Path) -> None:
    entries = [entry(seq=5, retired=False), entry(seq=6, retired=True), entry(seq=7, retired="yes")]
    calls, odd = pending_calls(
        dump(tmp_path, {"pg_status": {"0": {"last_completed_collective": 4}}, "entries": entries}), 3
    )
    assert ([call.seq for call in calls], odd) == ([5, 7], 0)


@pytest.mark.parametrize("status", [None, 7, [], {"x": {}}, {"0": None}, {"0": {"last_completed_collective": "x"}}])
def test_status_that_makes_no_sense_leaves_the_entries(tmp_path: Path, status: object) -> None:
    calls, _ = pending_calls(dump(tmp_path, {"pg_status": status, "entries": [entry()]}), 0)
    assert [call.seq for call in calls] == [5]


@pytest.mark.parametrize("trace", [[], None, 7, "text"])
def test_what_is_no_dump_is_a_value_error(tmp_path: Path, trace: object) -> None:
    with pytest.raises(ValueError, match="no dump"):
        pending_calls(dump(tmp_path, trace), 0)


def test_dump_without_entries_names_nothing(tmp_path: Path) -> None:
    assert pending_calls(dump(tmp_path, {}), 0) == ([], 0)
    assert pending_calls(dump(tmp_path, {"entries": {}}), 0) == ([], 1)


def test_dump_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(NoDumpError, match="it has more than 67108864 bytes"):
        pending_calls(path, 0)
