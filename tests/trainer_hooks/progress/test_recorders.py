"""Which groups have their calls in which recorder, when a status may be read, and how each recorder is asked."""

import json
import sys
import threading
from typing import Any

import pytest
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d as bindings

from holdfast_hooks.progress.device_poll import QuietWatch
from holdfast_hooks.progress.group_making import MAKERS, groups_being_made, is_making_groups, watch_makers
from holdfast_hooks.progress.recorders.groups import DeviceGroups
from holdfast_hooks.progress.recorders.recorder import (
    BackendRecorder,
    NcclRecorder,
    RecorderUnavailableError,
    torch_version,
)
from holdfast_proto.member_runs import members_of
from holdfast_proto.v1 import common_pb2 as common
from tests.trainer_hooks.progress.device_world import Backend, DeviceWorld, numbers, record_backends
from tests.trainer_hooks.progress.making import blocked_makers, making


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> DeviceWorld:
    return DeviceWorld(monkeypatch)


# Groups.


def test_without_a_process_group_there_are_none(world: DeviceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add_nccl()
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
    world.add(cpu=Backend(name))
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
    world.add(cuda=backend)
    (group,) = DeviceGroups().read()
    assert (group.source, group.recorder_id) == (source, recorder_id)


def test_hooks_record_a_group_only_in_a_torch_that_keeps_a_recorder_for_each_backend(
    world: DeviceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("0", hooked=True, cuda=Backend("nccl2"))
    world.add("1", cuda=Backend("nccl2"))
    monkeypatch.setattr(bindings, "_dump_fr_trace_json", lambda *_: b"")
    assert {group.source for group in DeviceGroups().read()} == {common.RECORDER_SOURCE_NONE}
    record_backends(monkeypatch, {})
    assert {group.name: group.source for group in DeviceGroups().read()} == {
        "0": common.RECORDER_SOURCE_BACKEND,
        "1": common.RECORDER_SOURCE_NONE,
    }


def test_a_backend_for_two_devices_is_one_and_a_group_without_a_description_has_none(world: DeviceWorld) -> None:
    backend = Backend("nccl", uid=0)
    group: Any = world.add(cuda=backend, xpu=backend)
    group.group_desc = None
    (found,) = DeviceGroups().read()
    assert found.description == ""


# When a status may be read.


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    return blocked_makers(monkeypatch)


@pytest.mark.parametrize("name", MAKERS)
def test_it_is_not_quiet_while_torch_makes_a_group(makers: threading.Event, name: str) -> None:
    watch = QuietWatch(lambda: 0, [])
    with making(makers, name):
        assert not watch.is_quiet({})
    assert watch.is_quiet({})


@pytest.mark.parametrize(
    ("group_rank", "members", "seen"),
    [
        (1, [3, 0], [("1", [0, 3], "tp")]),
        (None, [1, 2], []),
        (0, [], []),
        (0, [1, "a"], []),
    ],
    ids=["own", "of others", "world", "of some other kind"],
)
def test_a_group_is_known_while_torch_makes_it(
    makers: threading.Event, group_rank: int | None, members: list[Any], seen: list[Any]
) -> None:
    known = {"group_rank": group_rank, "global_ranks_in_group": members, "group_name": "1", "group_desc": "tp"}
    with making(makers, "_new_process_group_helper", **known):
        found = groups_being_made()
    assert [(group.group, list(members_of(group.member_runs)), group.description) for group in found] == seen
    assert groups_being_made() == []


def test_a_real_group_is_made_through_the_wrapper_and_its_error_is_torchs_own() -> None:
    watch_makers()
    for module in (c10d, dist):
        assert hasattr(vars(module)["split_group"], "holdfast_watches")
    wrapper = vars(c10d)["split_group"]
    watch_makers()
    assert vars(c10d)["split_group"] is wrapper
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dist.split_group(split_ranks=[[0]])
    assert not is_making_groups()


@pytest.mark.parametrize(("count", "is_quiet"), [(0, True), (1, False), (2, True), (None, False)])
def test_a_group_may_be_in_its_first_call_if_it_has_counted_one_or_does_not_count(
    count: int | None, is_quiet: bool
) -> None:
    assert QuietWatch(lambda: 0, []).is_quiet({"0": count}) is is_quiet


# Recorders.


def test_each_recorder_is_asked_for_the_status_alone_or_for_all_its_calls(
    world: DeviceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = record_backends(monkeypatch, {"0": numbers(1, 1, 1)})
    assert BackendRecorder("nccl2").status() == {"0": numbers(1, 1, 1)}
    BackendRecorder("nccl2").entries()
    assert asked[1:] == [("nccl2", True, False)]
    NcclRecorder().status()
    assert json.loads(NcclRecorder().entries())["version"] == "2.10"
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
