"""The model of the recorder: each trap of torch's dumps is there, and the documents have torch's keys."""

import importlib.util
import json
import pickle
import pickletools
import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from tests.simulation.nccl.actions import Action, Capture, Collective, Group, Kernel, Message, NewGroups, Python, Replay
from tests.simulation.nccl.cases import cases
from tests.simulation.nccl.documents import Document, Form, document
from tests.simulation.nccl.machine import Machine, Settings
from tests.simulation.nccl.test_machine import all_reduce, batch, receive, run, send

LATER_S = 1000.0
STATUS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def dump(machine: Machine, rank: int = 0, form: Form | None = None, at_s: float = LATER_S) -> Document:
    return document(machine.recorders[rank], form or Form(), at_s)


def states(printed: Document) -> list[tuple[str, str, bool]]:
    return [(entry["profiling_name"], entry["state"], entry["retired"]) for entry in printed.get("entries", [])]


def status(printed: Document) -> dict[str, int]:
    return {key: int(value) for key, value in printed["pg_status"]["0"].items()}


def test_a_batch_before_a_pending_all_reduce_prints_as_torch_does() -> None:
    """41 collectives, 7 batches, then an all_reduce to which rank 1 never comes."""

    def before(peer: int, is_send: bool) -> list[Action]:
        calls: list[Action] = [all_reduce() for _ in range(41)]
        for handle in range(7):
            calls += batch(Message(is_send, peer, 4), handle=handle)
        return calls

    machine = run([*before(1, True), all_reduce(numel=1024)], [*before(0, False), Python(inf)])
    printed = dump(machine)
    assert {key: printed[key] for key in printed if key != "entries"} == {
        "version": "2.10",
        "comm_lib_version": "2.30.7",
        "nccl_comm_state": {},
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        # The number of the last batch is the completed one.
        "pg_status": {"0": dict(zip(STATUS, ("42", "-1", "7"), strict=True))},
    }
    member, closing, pending = printed["entries"][-3:]
    shared = {"pg_id": 0, "process_group": ["0", "default_pg"], "timeout_ms": 600_000, "time_discovered_started_ns": 0}
    sizes = {"input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"]}
    batched = {"collective_seq_id": 41, "p2p_seq_id": 7, "op_id": 48, **shared}
    assert member.items() >= {**batched, **sizes, "profiling_name": "nccl:send 0->1", "is_p2p": True}.items()
    assert member.items() >= {"state": "scheduled", "retired": False, "time_discovered_completed_ns": 0}.items()
    empty: dict[str, object] = {key: [] for key in sizes}
    assert closing.items() >= {**batched, **empty, "profiling_name": "nccl:coalesced", "is_p2p": False}.items()
    assert closing["state"] == "completed" and closing["retired"] and closing["time_discovered_completed_ns"] > 0
    assert pending.items() >= {**shared, "collective_seq_id": 42, "p2p_seq_id": 7, "op_id": 49, "is_p2p": False}.items()
    assert pending.items() >= {"state": "scheduled", "retired": False, "time_discovered_completed_ns": 0}.items()
    assert [entry["record_id"] for entry in printed["entries"]] == list(range(len(printed["entries"])))


def test_every_key_is_one_of_torch() -> None:
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    header = Path(torch.origin).parent / "include/torch/csrc/distributed/c10d/FlightRecorder.hpp"
    constants = set(re.findall(r'DEFINE_CONSTANT\(\w+, "([^"]+)"\)', header.read_text()))
    machine = run([all_reduce(), *batch(Message(True, 1, 4))], [all_reduce(), *batch(Message(False, 0, 4))])
    for pickled in (False, True):
        printed = dump(machine, form=Form(timing=True, pickled=pickled, with_frames=True))
        assert set(printed) <= constants
        assert {key for entry in printed["entries"] for key in entry} <= constants
        optional = {"frames", "duration_ms"}
        entries = {"thread_id", "thread_name", "record_id", "pg_id", "process_group", "state", "retired", "is_p2p"}
        assert set(printed["entries"][0]) - optional >= entries


def test_the_two_forms_differ_as_those_of_torch() -> None:
    machine = run([all_reduce(), all_reduce()], [all_reduce(), Python(inf)])
    text, pickled = dump(machine), dump(machine, form=Form(pickled=True))
    assert json.loads(json.dumps(text)) == text
    assert text["pg_status"]["0"]["last_enqueued_collective"] == "2"
    assert pickled["pg_status"]["0"]["last_enqueued_collective"] == 2
    assert text["entries"][1]["time_discovered_completed_ns"] == 0
    assert pickled["entries"][1]["time_discovered_completed_ns"] is None
    assert text["entries"][0]["process_group"] == ["0", "default_pg"]
    assert pickled["entries"][0]["process_group"] == ("0", "default_pg")
    assert text["nccl_comm_state"] == {} and "nccl_comm_state" not in pickled
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(pickle.dumps(pickled, protocol=2))}
    assert not opcodes & {"GLOBAL", "REDUCE", "BUILD", "NEWOBJ"}


def test_no_entries_key_in_an_empty_json_dump_but_in_a_pickle() -> None:
    machine = run([Python(inf)], [])
    assert "entries" not in dump(machine)
    assert dump(machine, form=Form(pickled=True))["entries"] == []
    assert "entries" not in dump(machine, form=Form(pickled=True, with_entries=False))
    assert dump(machine)["pg_status"] == {}


@pytest.mark.parametrize(
    ("version", "keys"),
    [
        ("2.3", set()),
        ("2.4", set()),
        ("2.7", {"nccl_version"}),
        ("2.9", {"nccl_version"}),
        ("2.10", {"comm_lib_version"}),
    ],
)
def test_versions_differ_in_the_key_of_the_library(version: str, keys: set[str]) -> None:
    printed = dump(run([all_reduce()], [all_reduce()]), form=Form(version=version))
    assert set(printed) & {"nccl_version", "comm_lib_version"} == keys
    assert ("thread_id" in printed["entries"][0]) == (version == "2.10")


def test_members_of_a_coalesced_group_stay_scheduled_and_share_its_number() -> None:
    uneven = Collective(0, "ALLGATHER_coalesced", ((4,),), ((8,),), ("uneven",), 1, ("_broadcast_oop",) * 2)
    machine = run([all_reduce(), uneven], [all_reduce(), uneven])
    printed = dump(machine)
    assert states(printed)[1:] == [
        ("nccl:_broadcast_oop", "scheduled", False),
        ("nccl:_broadcast_oop", "scheduled", False),
        ("nccl:ALLGATHER_coalesced", "completed", True),
    ]
    assert [entry["collective_seq_id"] for entry in printed["entries"]] == [1, 2, 2, 2]
    assert [entry["op_id"] for entry in printed["entries"]] == [1, 2, 3, 3]
    old = run([all_reduce(), uneven], [all_reduce(), uneven], settings=Settings(eager_init=True, records_members=False))
    assert len(dump(old)["entries"]) == 2


def test_the_end_of_a_synchronous_coalesced_group_is_recorded_on_an_idle_stream() -> None:
    uneven = Collective(0, "ALLGATHER_coalesced", ((4,),), ((8,),), ("uneven",), None, ("_broadcast_oop",))
    machine = run([uneven], [Python(inf)])
    assert states(dump(machine))[-1] == ("nccl:ALLGATHER_coalesced", "completed", True)


def test_the_status_of_a_group_can_go_back_while_a_collective_is_pending() -> None:
    machine = run(
        [*[all_reduce()] * 3, all_reduce(handle=9), send(1, 1)],
        [*[all_reduce()] * 3, receive(0, 1), Python(inf)],
        settings=Settings(),  # the message has a communicator and a stream of its own
    )
    printed = dump(machine)
    assert states(printed)[3:] == [("nccl:all_reduce", "scheduled", False), ("nccl:send 0->1", "completed", True)]
    assert status(printed)["last_enqueued_collective"] == status(printed)["last_completed_collective"] == 1


def test_timing_shows_which_streams_have_reached_a_call() -> None:
    machine = run([all_reduce()], [Kernel(inf), all_reduce()])
    assert [states(dump(machine, rank))[0][1] for rank in (0, 1)] == ["scheduled", "scheduled"]
    timed = Form(timing=True)
    assert [states(dump(machine, rank, timed))[0][1] for rank in (0, 1)] == ["started", "scheduled"]
    assert [status(dump(machine, rank, timed))["last_started_collective"] for rank in (0, 1)] == [1, -1]


def test_durations_are_printed_of_retired_entries_with_timing_only() -> None:
    machine = run([all_reduce(), all_reduce()], [all_reduce(), Python(inf)])
    assert ["duration_ms" in entry for entry in dump(machine, form=Form(timing=True))["entries"]] == [True, False]
    assert not any("duration_ms" in entry for entry in dump(machine)["entries"])


def test_a_call_that_has_not_returned_looks_completed() -> None:
    stuck = replace(all_reduce(), stuck_in_call=True)
    machine = run([all_reduce(), stuck], [all_reduce(), all_reduce()])
    assert states(dump(machine))[-1] == ("nccl:all_reduce", "completed", False)
    assert status(dump(machine))["last_enqueued_collective"] == 1
    assert states(dump(machine, 1))[-1] == ("nccl:all_reduce", "scheduled", False)
    # A victim whose launch queue is full shows the same.
    full = run(
        [Kernel(inf), Kernel(1.0), Kernel(1.0), all_reduce()],
        [all_reduce()],
        settings=Settings(eager_init=True, launch_limit=3),
    )
    assert states(dump(full))[-1] == ("nccl:all_reduce", "completed", False)
    assert status(dump(full))["last_enqueued_collective"] == -1


def test_the_watchdog_notices_at_its_next_look_and_a_dump_at_once() -> None:
    machine = run([all_reduce()], [all_reduce()])
    operation = machine.recorders[0].entries[0].operation
    assert operation is not None
    form = Form(watchdog_phase_s=operation.done_s - 0.001)  # it has just looked
    soon = dump(machine, form=form, at_s=operation.done_s + 0.05)
    assert states(soon) == [("nccl:all_reduce", "completed", False)]
    assert status(soon)["last_completed_collective"] == -1
    assert states(dump(machine, form=form, at_s=operation.done_s + 0.11)) == [("nccl:all_reduce", "completed", True)]


def test_a_stuck_watchdog_leaves_the_status_behind() -> None:
    machine = run([all_reduce()], [all_reduce()])
    printed = dump(machine, form=Form(watchdog_stuck_s=0.0))
    assert states(printed) == [("nccl:all_reduce", "completed", False)]
    assert status(printed)["last_completed_collective"] == -1


def test_with_blocking_wait_only_the_states_tell() -> None:
    settings = Settings(eager_init=True, blocking_wait=True)
    machine = run([all_reduce(), all_reduce()], [all_reduce(), Python(inf)], settings=settings)
    printed = dump(machine)
    assert set(status(printed).values()) == {-1}
    assert [(state, retired) for _, state, retired in states(printed)] == [("completed", False), ("scheduled", False)]


def test_the_ring_keeps_the_newest_entries_of_all_groups() -> None:
    machine = run([all_reduce()] * 9, [all_reduce()] * 9)
    printed = dump(machine, form=Form(ring=3))
    assert [entry["record_id"] for entry in printed["entries"]] == [6, 7, 8]
    assert status(printed)["last_enqueued_collective"] == 9


def test_a_recorder_that_is_off_prints_nothing() -> None:
    printed = dump(run([all_reduce()], [all_reduce()]), form=Form(ring=0))
    empty: Document = {"pg_config": {}, "pg_status": {}, "nccl_comm_state": {}}
    assert printed == {"version": "2.10", "comm_lib_version": "", **empty}


def test_only_active_leaves_out_what_looks_completed_and_keeps_members() -> None:
    machine = run(
        [all_reduce(), *batch(Message(True, 1, 4)), all_reduce()],
        [all_reduce(), *batch(Message(False, 0, 4)), Python(inf)],
    )
    names = [name for name, _, _ in states(dump(machine, form=Form(only_active=True)))]
    assert names == ["nccl:send 0->1", "nccl:all_reduce"]


def test_message_names_hold_ranks_of_the_group() -> None:
    made = NewGroups((1,))
    groups = [Group("7", "mesh_pp", (2, 1))]
    machine = run(
        [made], [made, send(2, 1, group=1)], [made, receive(1, 1, group=1)], settings=Settings(), groups=groups
    )
    assert states(dump(machine, 1))[0][0] == "nccl:send 1->0"
    assert states(dump(machine, 2))[0][0] == "nccl:recv 0<-1"
    assert dump(machine, 1)["entries"][0]["process_group"] == ["7", "mesh_pp"]
    assert dump(machine, 1)["pg_config"]["7"]["ranks"] == "[2, 1]"


def test_one_group_can_have_different_ids_on_different_ranks() -> None:
    differing = 0
    for case in cases(5, 30, ["healthy"], 16):
        printed = [entry for found in case.documents.values() for entry in (found or {}).get("entries", [])]
        ids = {(entry["process_group"][0], entry["pg_id"]) for entry in printed}
        differing += len({group for group, _ in ids}) < len(ids)
    assert differing


def test_captured_calls_are_counted_and_leave_at_most_an_entry_that_never_moves() -> None:
    noted = replace(all_reduce(), op="allreduce_coalesced")
    program: list[Action] = [all_reduce(), Capture((all_reduce(), all_reduce()), noted), all_reduce()]
    machine = run(program, program)
    printed = dump(machine)
    assert [entry["collective_seq_id"] for entry in printed["entries"]] == [1, 4, 5]
    assert states(printed)[1:] == [
        ("nccl:allreduce_coalesced", "scheduled", False),
        ("nccl:all_reduce", "completed", True),
    ]
    assert machine.finished


def test_replays_of_a_graph_are_not_recorded() -> None:
    program: list[Action] = [all_reduce(), Replay((all_reduce(), all_reduce()), 0.1), all_reduce()]
    machine = run(program, program)
    assert machine.finished
    assert [entry["collective_seq_id"] for entry in dump(machine)["entries"]] == [1, 2]
    assert len(machine.communicators.get(0).rendezvous) == 4
