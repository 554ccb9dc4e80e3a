"""A torch without one of the private names that the hooks use: one line says what is lost, and training continues."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint  # with it loaded, a name can go without breaking torch itself
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, _utils, distribute_tensor

import holdfast_hooks
from holdfast_hooks.faults.fault import Fault, Site
from holdfast_hooks.faults.injector import Injector
from holdfast_hooks.state import sharding
from holdfast_hooks.telemetry.timeline import Timeline
from tests.trainer.world_of_one import world_of_one

STEPS = 20
C10D: Any = torch._C._distributed_c10d


@pytest.fixture
def world() -> Iterator[None]:
    with world_of_one():
        yield


DEVICES_LOST = "groups on devices are not followed: "
PROGRESS_LOST = "progress of process groups is not reported: "
MESSAGES_LOST = "point-to-point calls are not recorded: "


@dataclass(frozen=True)
class Missing:
    owner: Any
    name: str
    lines: tuple[str, ...]
    """How the lines begin that say what is lost."""


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    "missing",
    [
        Missing(C10D, "_dump_fr_trace_json", (PROGRESS_LOST,)),
        Missing(torch._C, "_distributed_c10d", (PROGRESS_LOST,)),
        Missing(dist.distributed_c10d, "_world", (DEVICES_LOST, PROGRESS_LOST)),
        Missing(dist.ProcessGroup, "send", (MESSAGES_LOST,)),
        Missing(dist.ProcessGroup, "recv", (MESSAGES_LOST,)),
        Missing(dist.ProcessGroup, "group_name", (MESSAGES_LOST, PROGRESS_LOST)),
        Missing(dist.ProcessGroup, "_get_sequence_number_for_group", (MESSAGES_LOST,)),
    ],
    ids=lambda missing: missing.name,
)
def test_one_line_says_what_is_lost_and_all_steps_are_reported(
    missing: Missing, agent: Any, launched: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = missing.name
    total = torch.ones(1)
    dist.all_reduce(total)  # so that the first poll sees a group
    if name == "_world":  # torch's own calls need it, so only others see a module without it
        contents = {key: value for key, value in vars(missing.owner).items() if key != name}
        monkeypatch.setitem(sys.modules, missing.owner.__name__, SimpleNamespace(**contents))
    else:
        monkeypatch.delattr(missing.owner, name)
    with holdfast_hooks.attach(device="cpu") as hooks:
        for step in hooks.steps(until=STEPS):
            if name != "group_name":  # as above
                dist.all_reduce(total)
            hooks.report(loss=float(step))
            if step % 5 == 0:  # several polls
                seen = len(agent.of("report"))
                agent.wait_until(lambda seen=seen: len(agent.of("report")) > seen)
    assert [record.step for record in agent.steps] == list(range(STEPS))
    assert total.item() == 1.0
    said = sorted(record.getMessage() for record in caplog.records if record.name == "holdfast_hooks")
    assert len(said) == len(missing.lines)
    for line, start in zip(said, missing.lines, strict=True):
        assert line.startswith(start)
        assert name in line
    monkeypatch.undo()  # before the world ends


@pytest.mark.parametrize(
    ("owner", "name"),
    [(C10D.Work, "boxed"), (C10D.Work, "unbox"), (torch._C.DispatchKey, "CompositeExplicitAutograd")],
)
def test_a_fault_of_calls_is_refused_and_does_not_end_the_rank_when_it_would_strike(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = Timeline(lambda step, phase, unix_ns: None)
    injector = Injector(Site(timeline, {}), rank=0)
    fault = Fault(kind="skipped-collective", rank=0, step=3)
    assert injector.accept(fault)
    monkeypatch.delattr(owner, name)
    with pytest.raises(ValueError, match=rf"^skipped-collective cannot strike with this torch \(.*{name}.*\): choose"):
        injector.arm(fault)
    assert injector.accept(Fault(kind="exception", rank=0, step=3))


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()])
def test_the_place_of_a_part_is_found_without_the_private_function(
    placement: Any, world: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = distribute_tensor(torch.arange(12.0).reshape(3, 4), init_device_mesh("cpu", (1,)), [placement])
    assert isinstance(tensor, DTensor)
    expected = sharding.local_part(tensor)[1:]
    sharding._global_offset.cache_clear()
    monkeypatch.delattr(_utils, "compute_local_shape_and_global_offset")
    assert sharding.local_part(tensor)[1:] == expected == ((3, 4), (0, 0))
    sharding._global_offset.cache_clear()
