"""Groups that TorchComms runs have no recorder that could be read, and the log says what to set."""

from typing import Any

import pytest
from torch._C import _distributed_c10d as bindings

from holdfast_proto.v1 import common_pb2 as common
from tests.trainer_hooks.progress.device_world import Backend, DeviceWorld, numbers


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> DeviceWorld:
    return DeviceWorld(monkeypatch, "2.15.0+cu132")


@pytest.fixture(autouse=True)
def _recorders_of_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.15, whose dump takes a backend. Nobody may ask: its hook records nothing of TorchComms' "nccl"."""

    def dump(*_: Any, **__: Any) -> bytes:
        raise AssertionError("nobody may ask")

    dump.__doc__ = "_dump_fr_trace_json(backend: str = 'gloo') -> bytes"
    monkeypatch.setattr(bindings, "_dump_fr_trace_json", dump)


@pytest.mark.parametrize(
    ("backend", "shown"),
    [("nccl", "torchcomms-nccl"), ("gloo", "torchcomms-gloo"), ("torchcomms", "torchcomms")],
)
def test_it_is_named_once_with_the_setting_and_never_read(
    world: DeviceWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, backend: str, shown: str
) -> None:
    world.add_torchcomms(monkeypatch, backend)
    poll = world.poll()
    assert [poll.poll(), poll.poll()] == [[], []]
    assert poll.has_groups and poll.failures_total == 0
    assert [(one.source, one.backend) for one in poll.described()] == [(common.RECORDER_SOURCE_NONE, shown)]
    assert poll.recorders() == [] and world.asked == []
    (line,) = caplog.messages
    assert f"no recorder for backend {shown}: its hangs have no call" in line
    assert "unset TORCH_DISTRIBUTED_USE_TORCHCOMMS" in line


def test_groups_that_torch_runs_itself_are_read_next_to_it(world: DeviceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add_torchcomms(monkeypatch, "nccl", other=Backend("nccl-legacy", uid=3))
    world.status = {"3": numbers(5, -1, 5)}
    world.place += 1
    poll = world.poll()
    poll.poll()  # TorchComms may not count: then the training thread has to move first
    world.place += 1
    (shown,) = poll.poll()
    assert (shown.group, shown.enqueued, shown.source) == ("0", 5, common.RECORDER_SOURCE_NCCL)
    assert [(one.source, one.backend) for one in poll.described()] == [
        (common.RECORDER_SOURCE_NCCL, "nccl"),
        (common.RECORDER_SOURCE_NONE, "torchcomms-nccl"),
    ]
