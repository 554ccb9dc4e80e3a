import json

import pytest
import torch
from torch._C import _distributed_c10d as bindings

from holdfast_hooks.progress.recorders.recorder import (
    BackendRecorder,
    FullDumpRefusedError,
    NcclRecorder,
    has_backend_recorders,
    torch_version,
)
from holdfast_proto.v1 import common_pb2 as common
from tests.trainer_hooks.progress.device_world import Backend, DeviceWorld, numbers, record_backends
from tests.trainer_hooks.progress.making import blocked_makers, making


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> DeviceWorld:
    return DeviceWorld(monkeypatch)


def test_numbers_of_nccl_are_reported_as_they_are_with_the_groups_they_belong_to(world: DeviceWorld) -> None:
    nccl = Backend("nccl", uid=3)
    world.add(cpu=Backend("gloo"), cuda=nccl)
    nccl.calls = 42
    world.status = {"3": numbers(42, -1, 7)}
    (shown,) = world.poll().poll()
    assert shown == common.GroupProgress(
        group="0",
        member_runs=[0, 1, 2],
        description="mesh_dp",
        enqueued=42,
        completed=7,
        source=common.RECORDER_SOURCE_NCCL,
    )
    assert world.asked == [("nccl", False)]  # the cheap call alone


def test_a_group_that_only_the_recorder_knows_is_reported_without_a_name(world: DeviceWorld) -> None:
    world.add_nccl()
    world.status = {"0": numbers(5, 5, 5), "1": numbers(2, -1, 1)}
    named, unnamed = world.poll().poll()
    assert named.group == "0"
    assert (unnamed.group, list(unnamed.member_runs), unnamed.description) == ("", [], "unknown group 1 of nccl")


def test_a_group_that_is_gone_is_reported_no_more(world: DeviceWorld) -> None:
    world.add_nccl()
    other = world.add("1", cuda=Backend("nccl", uid=1))
    world.status = {"0": numbers(5, 5, 5), "1": numbers(5, 5, 5)}
    poll = world.poll()
    assert [one.group for one in poll.poll()] == ["0", "1"]
    del world.groups[other]
    assert [one.group for one in poll.poll()] == ["0"]


@pytest.mark.parametrize("moves", [False, True], ids=["a second call follows", "the training thread has moved"])
def test_nothing_is_read_while_a_group_makes_its_first_collective(world: DeviceWorld, moves: bool) -> None:
    backend = world.add_nccl()
    world.status = {"0": numbers(1, -1, 1)}
    poll = world.poll()
    backend.calls = 1
    assert [poll.poll(), poll.poll(), world.asked] == [[], [], []]
    if moves:
        world.place += 1
    else:
        backend.calls = 2
    assert len(poll.poll()) == 1


def test_numbers_stay_while_none_can_be_read(world: DeviceWorld) -> None:
    world.add_nccl(calls=9)
    world.status = {"0": numbers(9, -1, 9)}
    poll = world.poll()
    before = poll.poll()
    world.opening.append("a first send")
    world.status = {"0": numbers(10, -1, 10)}
    assert poll.poll() == before
    world.opening.clear()
    assert poll.poll()[0].enqueued == 10


def test_nothing_is_read_while_a_thread_makes_a_group(world: DeviceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add_nccl()
    poll = world.poll()
    with making(blocked_makers(monkeypatch), "split_group"):
        poll.poll()
        assert world.asked == []
    poll.poll()
    assert world.asked == [("nccl", False)]


def test_gloo_alone_is_none_of_its_business(world: DeviceWorld) -> None:
    world.add(cpu=Backend("gloo"))
    poll = world.poll()
    assert (poll.poll(), poll.has_groups, world.asked, poll.failures_total) == ([], False, [], 0)


def test_a_rank_with_both_backends_says_which_recorders_it_uses(world: DeviceWorld) -> None:
    world.add(cpu=Backend("gloo"), cuda=Backend("nccl", uid=0))
    poll = world.poll()
    poll._has_gloo = lambda: True
    poll.poll()
    assert [(one.source, one.backend, one.full_dumps) for one in poll.described()] == [
        (common.RECORDER_SOURCE_GENERIC, "gloo", True),
        (common.RECORDER_SOURCE_NCCL, "nccl", True),
    ]


def test_a_backend_without_a_recorder_is_named_once_with_the_setting(
    world: DeviceWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bindings, "_dump_fr_trace_json", _without_backends)
    world.add(cuda=Backend("nccl2"))
    poll = world.poll()
    assert [poll.poll(), poll.poll()] == [[], []]
    (line,) = caplog.messages
    assert "no recorder for backend nccl2" in line and "TORCH_DIST_USE_NCCL2=0" in line
    assert [(one.source, one.backend) for one in poll.described()] == [(common.RECORDER_SOURCE_NONE, "nccl2")]


@pytest.mark.parametrize("setting", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])  # and its older name
def test_a_recorder_that_stays_empty_is_named_once_with_the_setting(
    world: DeviceWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, setting: str
) -> None:
    monkeypatch.setenv(setting, "0")
    backend = world.add_nccl()
    poll = world.poll()
    for _ in range(50):  # nobody has called anything yet
        poll.poll()
    assert caplog.records == []
    backend.calls = 100
    for _ in range(50):
        poll.poll()
    (line,) = caplog.messages
    assert "set TORCH_FR_BUFFER_SIZE=2000 for the ranks: it is 0" in line


def test_a_recorder_that_has_calls_is_not_taken_for_an_empty_one(
    world: DeviceWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.add_nccl(calls=100)
    world.add_nccl(1)
    poll = world.poll()
    for _ in range(20):
        poll.poll()
    world.status = {"0": numbers(100, -1, 100)}
    for _ in range(50):
        poll.poll()
    world.status = {}
    for _ in range(20):  # too few in a row
        poll.poll()
    assert caplog.records == []


@pytest.mark.parametrize("backend", ["xyz", "nccl2"])
def test_a_torch_with_a_recorder_for_each_backend_lacks_one_only_if_its_size_is_zero(
    backend: str, world: DeviceWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast_hooks.progress.device_poll.has_backend_recorders", lambda: True)
    world.add(cuda=Backend(backend))
    poll = world.poll()
    poll.poll()
    assert poll.has_groups
    (line,) = caplog.messages
    assert "set TORCH_FR_BUFFER_SIZE=2000 for the ranks before they start" in line


def test_the_ids_of_two_recorders_are_never_mixed(world: DeviceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    record_backends(monkeypatch, {"0": numbers(6, -1, 5)})
    world.add("own", cuda=Backend("nccl", uid=0))
    world.add("other", hooked=True, cuda=Backend("nccl2"))
    world.status = {"0": numbers(40, -1, 40)}
    shown = [(one.group, one.enqueued, one.source) for one in world.poll().poll()]
    assert sorted(shown) == [("other", 6, common.RECORDER_SOURCE_BACKEND), ("own", 40, common.RECORDER_SOURCE_NCCL)]


def test_a_build_without_the_recorder_is_named_once(
    world: DeviceWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(bindings, "_dump_nccl_trace_json")
    world.add_nccl()
    poll = world.poll()
    assert [poll.poll(), poll.poll(), poll.failures_total] == [[], [], 2]
    (line,) = caplog.messages
    assert "no NCCL recorder" in line


def test_the_one_group_of_a_backends_own_recorder_is_named(world: DeviceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = record_backends(monkeypatch, {"4": numbers(6, -1, 5)})
    world.add(hooked=True, cuda=Backend("nccl2"))
    (shown,) = world.poll().poll()
    assert (shown.group, shown.enqueued, shown.completed) == ("0", 6, 5)
    assert shown.source == common.RECORDER_SOURCE_BACKEND
    assert [(backend, collectives) for backend, collectives, _ in asked] == [("nccl2", False)]


def test_two_groups_of_a_backends_own_recorder_stay_without_names(
    world: DeviceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_backends(monkeypatch, {"0": numbers(6, -1, 5), "1": numbers(1, -1, 1)})
    for name in ("0", "1"):
        world.add(name, hooked=True, cuda=Backend("nccl2"))
    assert [one.group for one in world.poll().poll()] == ["", ""]


def test_groups_of_another_kind_of_torch_are_a_failure_that_is_logged_once(
    world: DeviceWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.groups[object()] = None  # type: ignore[index]
    poll = world.poll()
    assert [poll.poll(), poll.poll(), poll.failures_total] == [[], [], 2]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("version", ["2.13.0+cu130", "2.11.0"])
def test_old_torch_refuses_full_dumps_of_nccl(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = DeviceWorld(monkeypatch, version)
    with pytest.raises(FullDumpRefusedError, match=r"use torch 2\.14"):
        NcclRecorder().entries()
    assert world.asked == []


def _without_backends(collectives: bool, only_active: bool) -> bytes:
    raise AssertionError("nobody may ask")


@pytest.mark.skipif(not hasattr(bindings, "_dump_nccl_trace_json"), reason="this build of torch has no NCCL")
def test_the_real_nccl_recorder_answers_in_the_form_that_is_read() -> None:
    assert NcclRecorder().status() == {}
    assert torch_version() == tuple(map(int, torch.__version__.split(".")[:2]))
    assert hasattr(bindings.ProcessGroupNCCL, "uid")


@pytest.mark.skipif(not has_backend_recorders(), reason="this torch has no recorder for each backend")
def test_the_real_recorder_of_one_backend_answers_in_the_form_that_is_read() -> None:
    assert BackendRecorder("nccl2").status() == {}
    assert json.loads(BackendRecorder("nccl2").entries())["pg_status"] == {}
