"""Which groups have their calls in which recorder, when a status may be read, and how each recorder is asked."""

import json
import sys
import threading
from typing import Any

import pytest
from torch._C import _distributed_c10d as bindings

from holdfast_hooks.progress.flight_recorder import RecorderUnavailableError
from holdfast_hooks.progress.group_making import MAKERS, groups_being_made
from holdfast_hooks.progress.recorders.groups import DeviceGroups
from holdfast_hooks.progress.recorders.quiet import QuietWatch
from holdfast_hooks.progress.recorders.recorder import BackendRecorder, NcclRecorder, torch_version
from holdfast_proto.v1 import common_pb2 as common
from tests.trainer_hooks.progress.device_world import Backend, DeviceWorld, Group, numbers


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> DeviceWorld:
    return DeviceWorld(monkeypatch)


def dump_of_a_backend(collectives: bool, only_active: bool, backend: str = "gloo") -> bytes:
    """_dump_fr_trace_json(includeCollectives: bool, backend: str = 'gloo') -> bytes"""
    return json.dumps({"asked": [collectives, only_active, backend], "pg_status": {"0": numbers(1, 1, 1)}}).encode()


# Groups.


def test_without_a_process_group_there_are_none(world: DeviceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add(Group("0", [0, 1], cuda=Backend("nccl", uid=0)))
    assert len(DeviceGroups().read()) == 1
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["torch.distributed"], "is_initialized", lambda: False)
        assert DeviceGroups().read() == {}
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["torch.distributed"], "is_available", lambda: False)
        assert DeviceGroups().read() == {}
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert DeviceGroups().read() == {}


@pytest.mark.parametrize("name", ["gloo", "mpi", "fake"])
def test_backends_without_a_recorder_of_a_device_are_left_out(world: DeviceWorld, name: str) -> None:
    world.add(Group("0", [0, 1], cpu=Backend(name)))
    assert DeviceGroups().read() == {}


@pytest.mark.parametrize(
    ("backend", "source", "recorder_id"),
    [
        (Backend("nccl", uid=3), common.RECORDER_SOURCE_NCCL, "3"),
        (Backend("nccl-legacy", uid=0), common.RECORDER_SOURCE_NCCL, "0"),
        (Backend("nccl"), common.RECORDER_SOURCE_NONE, None),  # it does not say which number it has
        (Backend("other", uid=3), common.RECORDER_SOURCE_NONE, None),
    ],
)
def test_nccl_records_the_groups_that_have_a_number_there(
    world: DeviceWorld, backend: Backend, source: "common.RecorderSource", recorder_id: str | None
) -> None:
    world.add(Group("0", [0, 1], cuda=backend))
    (group,) = DeviceGroups().read()
    assert (group.source, group.recorder_id) == (source, recorder_id)


def test_hooks_record_a_group_only_in_a_torch_that_keeps_a_recorder_for_each_backend(
    world: DeviceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked, bare = Group("0", [0, 1], cuda=Backend("nccl2")), Group("1", [0, 1], cuda=Backend("nccl2"))
    world.add(hooked)
    world.add(bare)
    world.hooks[hooked] = None
    monkeypatch.setattr(bindings, "_dump_fr_trace_json", lambda *_: b"")
    assert {group.source for group in DeviceGroups().read()} == {common.RECORDER_SOURCE_NONE}
    monkeypatch.setattr(bindings, "_dump_fr_trace_json", dump_of_a_backend)
    assert {group.name: group.source for group in DeviceGroups().read()} == {
        "0": common.RECORDER_SOURCE_BACKEND,
        "1": common.RECORDER_SOURCE_NONE,
    }


def test_a_backend_for_two_devices_is_one_and_a_group_without_a_description_has_none(world: DeviceWorld) -> None:
    backend = Backend("nccl", uid=0)
    group: Any = Group("0", [0, 1], cuda=backend, xpu=backend)
    group.group_desc = None
    world.add(group)
    (found,) = DeviceGroups().read()
    assert found.description == ""


# When a status may be read.


FILE = "/torch/distributed/distributed_c10d.py"


def run_inside(name: str, file: str, look: Any, **arguments: object) -> Any:
    """Return what ``look`` returns while another thread is in a function of this name and file."""
    entered, leave = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        leave.wait()

    names: dict[str, Any] = {}
    exec(compile(f"def {name}({', '.join(['wait', *arguments])}):\n    wait()\n", file, "exec"), names)
    thread = threading.Thread(target=names[name], args=(wait,), kwargs=arguments)
    thread.start()
    entered.wait()
    try:
        return look()
    finally:
        leave.set()
        thread.join()


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_it_is_not_quiet_while_torch_makes_a_group(name: str) -> None:
    watch = QuietWatch(lambda: 0, [])
    assert run_inside(name, FILE, lambda: watch.is_quiet({})) is False
    assert watch.is_quiet({})


@pytest.mark.parametrize(
    ("group_rank", "members", "seen"),
    [(1, [3, 0], [("1", [0, 3], "tp")]), (None, [1, 2], []), (0, [], [])],
    ids=["own", "of others", "world"],
)
def test_a_group_is_known_while_torch_makes_it(group_rank: int | None, members: list[int], seen: list[Any]) -> None:
    making = {"group_rank": group_rank, "global_ranks_in_group": members, "group_name": "1", "group_desc": "tp"}
    found = run_inside("_new_process_group_helper", FILE, groups_being_made, **making)
    assert [(group.group, list(group.members), group.description) for group in found] == seen


@pytest.mark.parametrize(("name", "file"), [("split_group", "/me/train.py"), ("all_reduce", FILE)])
def test_other_functions_make_no_group(name: str, file: str) -> None:
    assert run_inside(name, file, lambda: QuietWatch(lambda: 0, []).is_quiet({})) is True


@pytest.mark.parametrize(("count", "is_quiet"), [(0, True), (1, False), (2, True), (None, False)])
def test_a_group_may_be_in_its_first_call_if_it_has_counted_one_or_does_not_count(
    count: int | None, is_quiet: bool
) -> None:
    assert QuietWatch(lambda: 0, []).is_quiet({"0": count}) is is_quiet


# Recorders.


def test_each_recorder_is_asked_for_the_status_alone_or_for_all_its_calls(
    world: DeviceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings, "_dump_fr_trace_json", dump_of_a_backend)
    assert BackendRecorder("nccl2").status() == {"0": numbers(1, 1, 1)}
    assert json.loads(BackendRecorder("nccl2").entries())["asked"] == [True, False, "nccl2"]
    NcclRecorder().status()
    NcclRecorder().entries()
    assert world.asked == [("nccl", False), ("nccl", True)]


def test_a_torch_without_a_recorder_for_each_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "_dump_fr_trace_json", lambda *_: b"")
    with pytest.raises(RecorderUnavailableError, match="no recorder for backend nccl2"):
        BackendRecorder("nccl2").entries()


@pytest.mark.parametrize("status", [None, [], "7"])
def test_a_status_that_is_none_has_no_groups(world: DeviceWorld, status: Any) -> None:
    world.status = status
    assert NcclRecorder().status() == {}


@pytest.mark.parametrize(
    ("version", "found"), [("2.14.1+cu130", (2, 14)), ("2.9.0a0", (2, 9)), ("none", (0, 0)), ("", (0, 0))]
)
def test_the_version_of_torch(version: str, found: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["torch"], "__version__", version)
    assert torch_version() == found
    assert NcclRecorder().full_dumps == (found >= (2, 14))
